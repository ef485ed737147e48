//! `list_files`: what files there are.
//!
//! In a repository git says what counts; elsewhere a bounded walk that follows no links.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ToolError, ToolResult, Toolbox, blocking, parse, schema};
use crate::limits::{HELPER_TIMEOUT_S, LIST_ENTRIES_MAX, LIST_SCAN_MAX};
use crate::model::ToolSpec;
use crate::process::{Ended, Invocation, output};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    path: Option<String>,
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "list_files",
        description: format!(
            "Lists files below a directory, without those that git ignores. Shows at most {LIST_ENTRIES_MAX}."
        ),
        schema: schema(&[(
            "path",
            "string",
            false,
            "Directory; the working directory when left out.",
        )]),
    }
}

pub(super) async fn run(toolbox: &Toolbox, arguments: Map<String, Value>) -> ToolResult {
    let args: Args = parse(arguments)?;
    let name = args.path.filter(|p| !p.is_empty()).unwrap_or_else(|| ".".to_owned());
    let path = toolbox.roots.resolve(&name)?;
    if !path.is_dir() {
        let what = if path.exists() { "is no directory" } else { "does not exist" };
        return Err(ToolError(format!("`{name}` {what}.")));
    }
    let (files, complete) = match from_git(toolbox, &path).await {
        Some(found) => found,
        None => {
            let root = path.clone();
            blocking(move || Ok(walk(&root))).await?
        }
    };
    if files.is_empty() {
        return Ok(format!("There are no files below `{name}`."));
    }
    let mut text = String::new();
    for file in files.iter().take(LIST_ENTRIES_MAX) {
        text.push_str(&toolbox.roots.show(&path.join(file)).replace('\n', "?"));
        text.push('\n');
    }
    if files.len() > LIST_ENTRIES_MAX {
        let more = files.len() - LIST_ENTRIES_MAX;
        text.push_str(&format!("[{more} more files; list a directory below to see them]\n"));
    }
    if !complete {
        text.push_str("[the listing is incomplete: there are too many files]\n");
    }
    Ok(text)
}

/// Files that git tracks or would track, relative to `path`; `None` outside a repository.
async fn from_git(toolbox: &Toolbox, path: &Path) -> Option<(BTreeSet<PathBuf>, bool)> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let invocation = Invocation {
        program: "git",
        args: args.iter().map(OsStr::new).collect(),
        cwd: path,
        env: &toolbox.env,
        timeout: Duration::from_secs(HELPER_TIMEOUT_S),
        with_stderr: false,
        host: toolbox.host.as_ref(),
    };
    let (bytes, ended, mut complete) = output(&invocation).await.ok()?;
    if matches!(ended, Ended::Exited(status) if !status.success()) {
        return None;
    }
    let mut files = BTreeSet::new();
    for name in bytes.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        if files.len() == LIST_SCAN_MAX {
            complete = false;
            break;
        }
        let name = PathBuf::from(OsStr::from_bytes(name));
        // Tracked, but deleted since.
        if path.join(&name).symlink_metadata().is_ok() {
            files.insert(name);
        }
    }
    Some((files, complete))
}

/// Directories that hold what nobody wrote by hand.
const SKIPPED: [&str; 3] = [".git", "node_modules", "target"];

fn walk(root: &Path) -> (BTreeSet<PathBuf>, bool) {
    let mut files = BTreeSet::new();
    let mut open = vec![root.to_owned()];
    let mut seen = 0;
    while let Some(directory) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            if seen > LIST_SCAN_MAX {
                return (files, false);
            }
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => {
                    if !SKIPPED.iter().any(|name| entry.file_name() == *name) {
                        open.push(path);
                    }
                }
                _ => {
                    if let Ok(relative) = path.strip_prefix(root) {
                        files.insert(relative.to_owned());
                    }
                }
            }
        }
    }
    (files, true)
}
