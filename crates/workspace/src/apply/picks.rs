//! The new `HEAD`, made in the scratch repository: no working tree, no configuration, no drivers.

use std::collections::BTreeSet;

use cofferdam_git::{Authority, Git, GitError, GitVar, Scratch, escape};
use cofferdam_run::ObjectId;

use super::error::ApplyError;
use super::{Work, named};
use crate::objects;

/// Longest commit object, bytes; a longer one fails the apply.
const MAX_COMMIT_BYTES: usize = 8 << 20;

/// Outcome of picking.
pub(super) enum Picked {
    /// The run changed nothing.
    Nothing,
    /// All is there.
    AlreadyApplied,
    /// There is a new head.
    Onto(Onto),
}

/// A new head.
pub(super) struct Onto {
    pub(super) head: ObjectId,
    pub(super) commits: u64,
    pub(super) already: u64,
    pub(super) flattened_merges: u64,
    pub(super) fast_forward: bool,
    pub(super) squashed: bool,
}

/// A three-way merge.
pub(super) enum Merged {
    Clean(ObjectId),
    Conflict(Vec<String>),
}

struct Pick {
    parent: ObjectId,
    commit: ObjectId,
    merge: bool,
}

/// Merges the trees `ours` and `theirs` over the commit `base`.
///
/// Both are put onto `base` as commits of their own, which makes it their merge base whatever the
/// real history is. (`--merge-base` would say the same, from git 2.40 on.)
pub(super) async fn merge(
    git: &Git<Scratch>,
    base: &ObjectId,
    ours: &ObjectId,
    theirs: &ObjectId,
) -> Result<Merged, GitError> {
    let ours = carrier(git, ours, Some(base)).await?;
    let theirs = carrier(git, theirs, Some(base)).await?;
    let output = git
        .call("merge-tree")
        .args(["--write-tree", "-z", "--name-only", "--no-messages"])
        .args([ours.as_str(), theirs.as_str()])
        .accept(&[0, 1])
        .run()
        .await?;
    let mut records = output.records();
    let tree = objects::id("merge-tree", records.next().unwrap_or_default())?;
    if output.code == 0 { Ok(Merged::Clean(tree)) } else { Ok(Merged::Conflict(named(records))) }
}

/// A commit in the scratch repository that only carries `tree`.
pub(super) async fn carrier(
    git: &Git<Scratch>,
    tree: &ObjectId,
    parent: Option<&ObjectId>,
) -> Result<ObjectId, GitError> {
    let mut call = git
        .call("commit-tree")
        .args(["-m", "carrier"])
        .var(GitVar::AuthorName, "cofferdam")
        .var(GitVar::AuthorEmail, "run@cofferdam.invalid")
        .var(GitVar::CommitterName, "cofferdam")
        .var(GitVar::CommitterEmail, "run@cofferdam.invalid");
    if let Some(parent) = parent {
        call = call.args(["-p", parent.as_str()]);
    }
    let output = call.arg(tree.as_str()).run().await?;
    objects::id_in("commit-tree", &output)
}

/// Picks the run's commits onto `HEAD`.
pub(super) async fn pick(work: &Work<'_>) -> Result<Picked, ApplyError> {
    let git = work.scratch.git();
    if work.run_head == work.base {
        return Ok(Picked::Nothing);
    }
    if objects::is_ancestor(git, work.run_head, work.head).await? {
        return Ok(Picked::AlreadyApplied);
    }
    if work.head == work.base && objects::is_ancestor(git, work.base, work.run_head).await? {
        let commits = count(work).await?;
        return Ok(Picked::Onto(Onto {
            head: work.run_head.clone(),
            commits,
            already: 0,
            flattened_merges: 0,
            fast_forward: true,
            squashed: false,
        }));
    }
    let line = first_parent_line(work).await?;
    let squashed = line.is_none();
    let picks = line.unwrap_or_else(|| {
        vec![Pick { parent: work.base.clone(), commit: work.run_head.clone(), merge: false }]
    });
    let there = equivalents(work).await?;
    let committer = committer(work).await?;
    let mut onto = Onto {
        head: work.head.clone(),
        commits: 0,
        already: 0,
        flattened_merges: 0,
        fast_forward: false,
        squashed,
    };
    for pick in &picks {
        if !squashed && there.contains(&pick.commit) {
            onto.already += 1;
            continue;
        }
        let its_tree = objects::tree_of(git, &pick.commit).await?;
        if its_tree == objects::tree_of(git, &pick.parent).await? {
            continue;
        }
        let raw = raw_commit(git, &pick.commit).await?;
        let tree_before = objects::tree_of(git, &onto.head).await?;
        let tree = match merge(git, &pick.parent, &tree_before, &its_tree).await? {
            Merged::Clean(tree) => tree,
            Merged::Conflict(files) => {
                return Err(ApplyError::Conflict { commit: raw.subject(), files });
            }
        };
        if tree == tree_before {
            onto.already += 1;
            continue;
        }
        let message = if squashed {
            format!("Changes of cofferdam run {}\n", work.run).into_bytes()
        } else {
            raw.message.clone()
        };
        onto.head = raw.recommit(git, &tree, &onto.head, &committer, &message).await?;
        onto.commits += 1;
        onto.flattened_merges += u64::from(pick.merge);
    }
    Ok(match (onto.commits, onto.already) {
        (0, 0) => Picked::Nothing,
        (0, _) => Picked::AlreadyApplied,
        _ => Picked::Onto(onto),
    })
}

async fn count(work: &Work<'_>) -> Result<u64, GitError> {
    let output = work
        .scratch
        .git()
        .call("rev-list")
        .arg("--count")
        .arg(format!("{}..{}", work.base, work.run_head))
        .run()
        .await?;
    std::str::from_utf8(output.line()).ok().and_then(|t| t.parse().ok()).ok_or_else(|| {
        GitError::Unexpected { subcommand: "rev-list", what: escape::line(output.line(), 80) }
    })
}

/// The commits from the base to the run's head along first parents, oldest first; `None` when that
/// line does not begin at the base.
async fn first_parent_line(work: &Work<'_>) -> Result<Option<Vec<Pick>>, GitError> {
    let output = work
        .scratch
        .git()
        .call("rev-list")
        .args(["--first-parent", "--reverse", "--parents"])
        .arg(format!("{}..{}", work.base, work.run_head))
        .run()
        .await?;
    let mut picks = Vec::new();
    for line in output.stdout.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        let mut ids = line.split(|b| *b == b' ').map(|id| objects::id("rev-list", id));
        let Some(commit) = ids.next().transpose()? else { continue };
        let Some(parent) = ids.next().transpose()? else { return Ok(None) };
        picks.push(Pick { parent, commit, merge: ids.next().is_some() });
    }
    let begins_at_base = picks.first().is_some_and(|first: &Pick| first.parent == *work.base);
    Ok(begins_at_base.then_some(picks))
}

/// Commits of the run whose patch is between `HEAD` and its merge base with the run, too.
async fn equivalents(work: &Work<'_>) -> Result<BTreeSet<ObjectId>, GitError> {
    let output = work
        .scratch
        .git()
        .call("rev-list")
        .args(["--right-only", "--cherry-mark", "--no-merges"])
        .arg(format!("{}...{}", work.head, work.run_head))
        .run()
        .await?;
    output
        .stdout
        .split(|b| *b == b'\n')
        .filter_map(|line| line.strip_prefix(b"="))
        .map(|id| objects::id("rev-list", id))
        .collect()
}

/// The person, now, as a commit object writes it.
async fn committer(work: &Work<'_>) -> Result<Vec<u8>, ApplyError> {
    let (name, email) = work.checkout.identity().await?;
    let output = work
        .checkout
        .git()
        .call("var")
        .arg("GIT_COMMITTER_IDENT")
        .var(GitVar::CommitterName, name)
        .var(GitVar::CommitterEmail, email)
        .run()
        .await?;
    Ok(output.line().to_vec())
}

/// What is taken over from a commit: its author and message, byte for byte. A signature is not: it
/// would not hold for the new object.
struct RawCommit {
    author: Vec<u8>,
    encoding: Option<Vec<u8>>,
    message: Vec<u8>,
}

async fn raw_commit<A: Authority>(git: &Git<A>, commit: &ObjectId) -> Result<RawCommit, GitError> {
    let output = git
        .call("cat-file")
        .args(["commit", commit.as_str()])
        .limit(MAX_COMMIT_BYTES)
        .run()
        .await?;
    RawCommit::parse(&output.stdout).ok_or_else(|| GitError::Unexpected {
        subcommand: "cat-file",
        what: format!("commit {commit} has no author"),
    })
}

impl RawCommit {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(2).position(|w| w == b"\n\n").unwrap_or(bytes.len());
        let lines = || bytes[..end].split(|b| *b == b'\n');
        let header = |name: &[u8]| lines().find_map(|l| l.strip_prefix(name)).map(<[u8]>::to_vec);
        Some(Self {
            author: header(b"author ")?,
            encoding: header(b"encoding "),
            message: bytes.get(end + 2..).unwrap_or_default().to_vec(),
        })
    }

    fn subject(&self) -> String {
        let first = self.message.split(|b| *b == b'\n').next().unwrap_or_default();
        escape::line(first, 120)
    }

    async fn recommit<A: Authority>(
        &self,
        git: &Git<A>,
        tree: &ObjectId,
        parent: &ObjectId,
        committer: &[u8],
        message: &[u8],
    ) -> Result<ObjectId, GitError> {
        let mut bytes = format!("tree {tree}\nparent {parent}\nauthor ").into_bytes();
        bytes.extend(&self.author);
        bytes.extend(b"\ncommitter ");
        bytes.extend(committer);
        if let Some(encoding) = &self.encoding {
            bytes.extend(b"\nencoding ");
            bytes.extend(encoding);
        }
        bytes.extend(b"\n\n");
        bytes.extend(message);
        let output = git
            .call("hash-object")
            .args(["-t", "commit", "-w", "--stdin"])
            .stdin(bytes)
            .run()
            .await?;
        objects::id_in("hash-object", &output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn author_encoding_and_message_are_taken_over_and_the_signature_is_not() {
        let raw = RawCommit::parse(
            b"tree x\nparent y\nauthor A <a@b> 1 +0000\ncommitter C <c@d> 2 +0000\n\
            encoding ISO-8859-1\ngpgsig -----BEGIN\n author forged <f@f> 1 +0000\n\nsubject\n\nauthor in the body\n",
        )
        .unwrap();
        assert_eq!(raw.author, b"A <a@b> 1 +0000");
        assert_eq!(raw.encoding.as_deref(), Some(&b"ISO-8859-1"[..]));
        assert_eq!(raw.message, b"subject\n\nauthor in the body\n");
        assert_eq!(raw.subject(), "subject");
    }
}
