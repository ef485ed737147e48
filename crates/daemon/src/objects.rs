//! Searching the objects that came back for secrets: contents of files, trees, commit messages.
//!
//! Commits are compressed on disk, so they are read through git. Reading objects runs nothing.

use std::path::Path;
use std::time::Duration;

use cofferdam_git::Git;
use cofferdam_run::ObjectId;

use crate::canary::{MAX_SEARCH_BYTES, Needles};

const LIMIT: Duration = Duration::from_secs(300);
/// Object names that are listed at most, bytes of text; more is an error, and the search counts as
/// not made.
const MAX_LIST_BYTES: usize = 256 << 20;

/// Searches what `heads` have over `base`, and every file in the tree of each head: what came in with
/// the snapshot counts too, since the agent could read it. Gives the name of the secret that was found.
pub(crate) async fn search(
    checkout: &Path,
    base: &ObjectId,
    heads: &[ObjectId],
    needles: &Needles,
    scratch: &Path,
) -> Result<Option<String>, String> {
    let git = Git::for_person(checkout).await.map_err(|e| e.to_string())?;
    let mut names = git
        .call("rev-list")
        .args(["--objects", "--no-object-names"])
        .args(heads.iter().map(ObjectId::as_str))
        .arg(format!("^{base}"))
        .limit(MAX_LIST_BYTES)
        .within(LIMIT)
        .run()
        .await
        .map_err(|e| e.to_string())?
        .stdout;
    // Trees have no ancestors, so this lists the whole of each.
    let files = git
        .call("rev-list")
        .args(["--objects", "--no-object-names"])
        .args(heads.iter().map(|head| format!("{head}^{{tree}}")))
        .limit(MAX_LIST_BYTES)
        .within(LIMIT)
        .run()
        .await
        .map_err(|e| e.to_string())?
        .stdout;
    names.extend_from_slice(&files);
    if names.is_empty() {
        return Ok(None);
    }
    let sizes = git
        .call("cat-file")
        .arg("--batch-check=%(objectsize)")
        .stdin(names.clone())
        .limit(MAX_LIST_BYTES)
        .within(LIMIT)
        .run()
        .await
        .map_err(|e| e.to_string())?
        .stdout;
    let total: u64 =
        String::from_utf8_lossy(&sizes).lines().filter_map(|l| l.parse::<u64>().ok()).sum();
    if total > MAX_SEARCH_BYTES {
        return Err(format!(
            "the commits hold {total} bytes; at most {MAX_SEARCH_BYTES} are searched"
        ));
    }
    let file = std::fs::File::create(scratch).map_err(|e| e.to_string())?;
    git.call("cat-file")
        .args(["--batch", "--buffer"])
        .stdin(names)
        .stdout_to(file)
        .within(LIMIT)
        .run()
        .await
        .map_err(|e| e.to_string())?;
    let (needles, path) = (needles.clone(), scratch.to_path_buf());
    tokio::task::spawn_blocking(move || {
        let found = std::fs::File::open(&path).and_then(|f| needles.find_in_reader(f));
        // Scratch of ours; the run directory goes as a whole anyway.
        let _ = std::fs::remove_file(&path);
        found.map_err(|e| e.to_string())
    })
    .await
    .map_err(|e| e.to_string())?
}
