//! What a run changed, between its base and its head, for people and programs.
//!
//! Computed in a scratch repository: no configuration of the person, no attributes of the run, no
//! external diff, no textconv. Nothing that is returned has a control character in it but line feed
//! and tab.

use std::collections::BTreeMap;

use cofferdam_git::{Git, Scratch, escape};
use cofferdam_run::{ObjectId, RunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checkout::Checkout;
use crate::error::WorkspaceError;
use crate::objects;
use crate::risk::{self, Risk};
use crate::scratch::ScratchDir;
use crate::stage::MAX_LISTING_BYTES;

/// Most files listed. The rest is counted in [`Diff::files_left_out`]; risky ones are kept first.
pub const MAX_DIFF_FILES: usize = 5_000;

/// Longest patch, bytes. A longer one is cut and [`Diff::patch_cut`] says so.
pub const MAX_PATCH_BYTES: usize = 8 << 20;

/// How much to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffForm {
    /// Files with counts.
    Files,
    /// And the patch.
    Patch,
}

/// What to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffRequest {
    /// The snapshot's commit.
    pub base: ObjectId,
    /// How much.
    pub form: DiffForm,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// New.
    Added,
    /// Changed.
    Modified,
    /// Gone.
    Deleted,
    /// Under another name, perhaps changed.
    Renamed,
    /// File, symbolic link and submodule exchanged.
    TypeChanged,
}

/// One file. Paths are escaped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileChange {
    /// Its path, the new one when renamed.
    pub path: String,
    /// Its former path when renamed.
    pub from: Option<String>,
    /// What happened.
    pub change: Change,
    /// Lines added; `None` for binary files.
    pub added: Option<u64>,
    /// Lines removed; `None` for binary files.
    pub removed: Option<u64>,
    /// Git's mode before, for example `100644`; `000000` for a new file.
    pub mode_before: String,
    /// Git's mode after; `000000` for a deleted file.
    pub mode_after: String,
    /// Marks, worst first.
    pub risks: Vec<Risk>,
}

/// The difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    /// From.
    pub base: ObjectId,
    /// To.
    pub head: ObjectId,
    /// Files, risky ones first, then by path.
    pub files: Vec<FileChange>,
    /// Files beyond [`MAX_DIFF_FILES`].
    pub files_left_out: u64,
    /// Lines added in all files.
    pub added: u64,
    /// Lines removed in all files.
    pub removed: u64,
    /// The patch, in the same order of files as git gives, when asked for.
    pub patch: Option<String>,
    /// The patch was cut at [`MAX_PATCH_BYTES`].
    pub patch_cut: bool,
}

/// Compares a run's base with its head.
///
/// # Errors
/// The run has no ref here, the base is not here, or git fails.
pub async fn diff(
    checkout: &Checkout,
    run: &RunId,
    request: DiffRequest,
) -> Result<Diff, WorkspaceError> {
    let head = run_head(checkout, run).await?;
    let base = request.base;
    if !objects::is_present(checkout.git(), &base).await? {
        return Err(WorkspaceError::NoSuchCommit(base.to_string()));
    }
    let scratch = ScratchDir::create(checkout, &checkout.room()?, "diff-").await?;
    let mut files = changes(scratch.git(), &base, &head).await?;
    let added = files.iter().filter_map(|f| f.added).fold(0, u64::saturating_add);
    let removed = files.iter().filter_map(|f| f.removed).fold(0, u64::saturating_add);
    // Stable: git's own order, by path, stays within each group.
    files.sort_by_key(|f| f.risks.first().copied().map_or((1, None), |risk| (0, Some(risk))));
    let left_out = files.len().saturating_sub(MAX_DIFF_FILES);
    files.truncate(MAX_DIFF_FILES);
    let (patch, patch_cut) = match request.form {
        DiffForm::Files => (None, false),
        DiffForm::Patch => {
            let (text, cut) = patch(scratch.git(), &base, &head).await?;
            (Some(text), cut)
        }
    };
    Ok(Diff {
        base,
        head,
        files,
        files_left_out: u64::try_from(left_out).unwrap_or(u64::MAX),
        added,
        removed,
        patch,
        patch_cut,
    })
}

/// The commit that a run brought back.
pub(crate) async fn run_head(checkout: &Checkout, run: &RunId) -> Result<ObjectId, WorkspaceError> {
    objects::commit_named(checkout.git(), &crate::run_reference(run))
        .await?
        .ok_or_else(|| WorkspaceError::NoSuchRun(run.to_string()))
}

const DIFF_OPTIONS: [&str; 6] =
    ["-r", "-M", "-l2000", "--no-ext-diff", "--no-textconv", "--ignore-submodules=none"];

async fn changes(
    git: &Git<Scratch>,
    base: &ObjectId,
    head: &ObjectId,
) -> Result<Vec<FileChange>, WorkspaceError> {
    let listed = git
        .call("diff-tree")
        .args(DIFF_OPTIONS)
        .args(["-z", "--raw", "--numstat", "--no-abbrev"])
        .args([base.as_str(), head.as_str()])
        .limit(MAX_LISTING_BYTES)
        .run()
        .await?;
    Ok(read_changes(&listed.stdout))
}

/// Reads `--raw --numstat -z`: first all raw records, then all counts. A rename has two paths in
/// both; its count record ends with an empty path.
fn read_changes(bytes: &[u8]) -> Vec<FileChange> {
    let mut records = bytes.split(|b| *b == 0).peekable();
    let mut files: Vec<(Vec<u8>, FileChange)> = Vec::new();
    while let Some(meta) = records.next_if(|r| r.starts_with(b":")) {
        let text = String::from_utf8_lossy(&meta[1..]).into_owned();
        let fields: Vec<&str> = text.split(' ').collect();
        let [before, after, _, _, status] = fields[..] else { break };
        let first = records.next().unwrap_or_default();
        let renamed = status.starts_with(['R', 'C']);
        let path = if renamed { records.next().unwrap_or_default() } else { first };
        let file = FileChange {
            path: escape::path(os(path)),
            from: renamed.then(|| escape::path(os(first))),
            change: match status.as_bytes().first() {
                Some(b'A' | b'C') => Change::Added,
                Some(b'D') => Change::Deleted,
                Some(b'R') => Change::Renamed,
                Some(b'T') => Change::TypeChanged,
                _ => Change::Modified,
            },
            added: None,
            removed: None,
            mode_before: before.to_owned(),
            mode_after: after.to_owned(),
            risks: Vec::new(),
        };
        files.push((path.to_vec(), file));
    }
    let mut counts: BTreeMap<Vec<u8>, (Option<u64>, Option<u64>)> = BTreeMap::new();
    while let Some(record) = records.next() {
        let mut fields = record.splitn(3, |b| *b == b'\t');
        let (Some(added), Some(removed), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = if path.is_empty() {
            let _from = records.next();
            records.next().unwrap_or_default()
        } else {
            path
        };
        counts.insert(path.to_vec(), (number(added), number(removed)));
    }
    files
        .into_iter()
        .map(|(path, mut file)| {
            let count = counts.get(&path).copied();
            (file.added, file.removed) = count.unwrap_or_default();
            file.risks = risks(&path, &file, count.is_some_and(|(added, _)| added.is_none()));
            file
        })
        .collect()
}

fn os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn risks(path: &[u8], file: &FileChange, binary: bool) -> Vec<Risk> {
    let mut risks = risk::of_path(path);
    let modes = [file.mode_before.as_str(), file.mode_after.as_str()];
    if modes.contains(&"120000") {
        risks.push(Risk::Symlink);
    }
    if modes.contains(&"160000") {
        risks.push(Risk::Submodule);
    }
    if (!modes.contains(&"000000") && modes[0] != modes[1])
        || (modes[0] == "000000" && modes[1] == "100755")
    {
        risks.push(Risk::ModeChange);
    }
    if binary {
        risks.push(Risk::Binary);
    }
    risks.sort_unstable();
    risks
}

async fn patch(
    git: &Git<Scratch>,
    base: &ObjectId,
    head: &ObjectId,
) -> Result<(String, bool), WorkspaceError> {
    let output = git
        .call("diff-tree")
        .args(DIFF_OPTIONS)
        .args(["--patch", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"])
        .args([base.as_str(), head.as_str()])
        .cut_at(MAX_PATCH_BYTES)
        .run()
        .await?;
    Ok((escape::text(&output.stdout), output.cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_and_counts_are_joined_by_path() {
        let bytes = b":100644 100644 aa bb M\0a b\0:100644 100755 aa bb R090\0old\0new\0\
            :000000 120000 00 bb A\0l\0\
            1\t2\ta b\x003\t4\t\0old\0new\0-\t-\tl\0";
        let files = read_changes(bytes);
        assert_eq!(files.len(), 3);
        assert_eq!((files[0].added, files[0].removed), (Some(1), Some(2)));
        assert_eq!(files[1].from.as_deref(), Some("old"));
        assert_eq!((files[1].added, files[1].removed), (Some(3), Some(4)));
        assert_eq!(files[1].risks, [Risk::ModeChange]);
        assert_eq!(files[2].risks, [Risk::Symlink, Risk::Binary]);
    }
}
