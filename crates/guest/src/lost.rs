//! Commits that no branch and no tag has: stashes, heads that were left behind, worktrees, odd refs.
//!
//! Gives each a ref of its own, so that it travels. What the agent replaced on purpose, by amending
//! or rebasing, is not brought back.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cofferdam_run::ids::ObjectId;

use crate::collect::commit_of;
use crate::git::Git;
use crate::leftovers::NotTaken;
use crate::limits::{GIT_CALL, GIT_LONG_CALL, LOST_REFS, REFLOG_ENTRIES};
use crate::log;

/// Worktrees beside the main one that have nothing uncommitted; those that have are named.
pub(crate) async fn worktrees(git: &Git, not_taken: &mut NotTaken) -> Vec<PathBuf> {
    let mut clean = Vec::new();
    for (path, _) in listed(git).await {
        if path.symlink_metadata().is_err() {
            continue;
        }
        let there = git.elsewhere(&path);
        match there.ask(&["status", "--porcelain"], GIT_LONG_CALL).await {
            Ok(output) if output.code == 0 && output.stdout.is_empty() => {
                clean.extend(path.canonicalize());
            }
            Ok(_) | Err(_) => {
                let path = path.display();
                not_taken.say(&format!("worktree {path}: its uncommitted files are not carried"));
            }
        }
    }
    clean
}

async fn listed(git: &Git) -> Vec<(PathBuf, Option<ObjectId>)> {
    let Ok(output) = git.ask(&["worktree", "list", "--porcelain", "-z"], GIT_CALL).await else {
        return Vec::new();
    };
    let mut found: Vec<(PathBuf, Option<ObjectId>)> = Vec::new();
    for field in output.stdout.split('\0') {
        if let Some(path) = field.strip_prefix("worktree ") {
            found.push((Path::new(path).to_owned(), None));
        } else if let Some(head) = field.strip_prefix("HEAD ")
            && let Some(last) = found.last_mut()
        {
            last.1 = head.parse().ok();
        }
    }
    // The main one comes first.
    found.into_iter().skip(1).take(LOST_REFS).collect()
}

/// Makes refs for what would stay behind, and gives their names.
pub(crate) async fn keep(
    git: &Git,
    base: Option<&ObjectId>,
    not_taken: &mut NotTaken,
) -> Vec<String> {
    let mut found: Vec<(&'static str, ObjectId)> = Vec::new();
    found.extend(reflog(git, "refs/stash").await.into_iter().map(|id| ("stash", id)));
    found.extend(listed(git).await.into_iter().filter_map(|(_, id)| Some(("lost", id?))));
    found.extend(odd_refs(git).await.into_iter().map(|id| ("lost", id)));
    found.extend(reflog(git, "HEAD").await.into_iter().map(|id| ("lost", id)));
    let mut refs = Vec::new();
    for (kind, id) in unreachable(git, base, &found, not_taken).await {
        if refs.len() >= LOST_REFS {
            not_taken.say(&format!("commit {id}: too many that no branch has"));
            continue;
        }
        let name = format!("refs/cofferdam/{kind}/{}", refs.len());
        match git.run(&["update-ref", "--no-deref", &name, id.as_str()]).await {
            Ok(_) => refs.push(name),
            Err(error) => {
                log::line(&error.to_string());
                not_taken.say(&format!("commit {id}: only the reflog has it"));
            }
        }
    }
    refs
}

/// Where a ref was, newest first, without what was replaced on purpose.
async fn reflog(git: &Git, name: &str) -> Vec<ObjectId> {
    let bound = REFLOG_ENTRIES.to_string();
    let args = ["log", "-g", "--format=%H %gs", "-n", &bound, name, "--"];
    let Ok(output) = git.ask(&args, GIT_CALL).await else { return Vec::new() };
    let mut before_is_replaced = false;
    let mut replaced = BTreeSet::new();
    let mut found = Vec::new();
    for line in output.stdout.lines() {
        let (id, how) = line.split_once(' ').unwrap_or((line, ""));
        if before_is_replaced {
            replaced.insert(id);
        }
        found.push(id);
        before_is_replaced = how.starts_with("commit (amend)") || how.starts_with("rebase");
    }
    // A head that was replaced once stands in other entries as well.
    found.into_iter().filter(|id| !replaced.contains(id)).filter_map(|id| id.parse().ok()).collect()
}

/// Refs that are neither branches nor tags, and refs that a merge or rebase left.
async fn odd_refs(git: &Git) -> Vec<ObjectId> {
    let args = ["for-each-ref", "--format=%(objecttype) %(objectname) %(refname)"];
    let Ok(output) = git.ask(&args, GIT_CALL).await else { return Vec::new() };
    let known = ["refs/heads/", "refs/tags/", "refs/cofferdam/", "refs/stash"];
    let fields = output.stdout.lines().filter_map(|line| {
        let mut words = line.splitn(3, ' ');
        Some((words.next()?, words.next()?, words.next()?))
    });
    fields
        .filter(|(kind, _, name)| *kind == "commit" && !known.iter().any(|k| name.starts_with(k)))
        .take(REFLOG_ENTRIES)
        .filter_map(|(_, id, _)| id.parse().ok())
        .collect()
}

/// Those that no branch, tag or head has, without those that another of them has.
async fn unreachable<'k>(
    git: &Git,
    base: Option<&ObjectId>,
    found: &[(&'k str, ObjectId)],
    not_taken: &mut NotTaken,
) -> Vec<(&'k str, ObjectId)> {
    if found.is_empty() {
        return Vec::new();
    }
    let mut args = vec!["rev-list", "--parents", "--ignore-missing"];
    args.extend(found.iter().map(|(_, id)| id.as_str()));
    args.extend(["--not", "--branches", "--tags"]);
    let head = commit_of(git, "HEAD").await;
    args.extend(head.as_ref().map(ObjectId::as_str));
    args.extend(base.map(ObjectId::as_str));
    args.push("--");
    let output = match git.run_within(&args, GIT_LONG_CALL).await {
        Ok(output) => output,
        Err(error) => {
            log::line(&error.to_string());
            not_taken.say("commits that no branch has: the repository could not be searched");
            return Vec::new();
        }
    };
    let mut commits = BTreeSet::new();
    let mut parents = BTreeSet::new();
    for line in output.lines() {
        let mut ids = line.split(' ');
        commits.extend(ids.next());
        parents.extend(ids);
    }
    let mut seen = BTreeSet::new();
    found
        .iter()
        .filter(|(_, id)| commits.contains(id.as_str()) && !parents.contains(id.as_str()))
        .filter(|(_, id)| seen.insert(id.clone()))
        .cloned()
        .collect()
}
