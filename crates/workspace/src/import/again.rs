//! An import that was finished and that nobody has recorded: its process was killed in between.
//!
//! The refs of a run are made in one transaction, after every check; where they are, the import was
//! whole. Nothing is read but the person's own repository.

use cofferdam_git::GitError;
use cofferdam_run::{ObjectId, RunId};

use super::{Imported, MAX_SUBJECT_CHARS, MAX_SUBJECTS, SideRef};
use crate::checkout::Checkout;
use crate::objects;

/// What a finished import of `run` has left, or `None`.
///
/// # Errors
/// Git itself.
pub async fn imported(
    checkout: &Checkout,
    run: &RunId,
    base: &ObjectId,
) -> Result<Option<Imported>, GitError> {
    let git = checkout.git();
    let reference = crate::run_reference(run);
    let Some(head) = objects::commit_named(git, &reference).await? else { return Ok(None) };
    let listed = git
        .call("for-each-ref")
        .args(["--format=%(objectname) %(refname)", &format!("refs/cofferdam/sides/{run}/")])
        .run()
        .await?;
    let mut sides = Vec::new();
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let Some((id, reference)) = line.split_once(' ') else { continue };
        let id = objects::id("for-each-ref", id.as_bytes())?;
        // What the sandbox called it is not kept anywhere.
        sides.push(SideRef { name: "?".to_owned(), reference: reference.to_owned(), id });
    }
    let commits = count(checkout, std::slice::from_ref(&head), base).await?;
    let all: Vec<ObjectId> = sides.iter().map(|s| s.id.clone()).chain([head.clone()]).collect();
    let side_commits = count(checkout, &all, base).await?.saturating_sub(commits);
    let logged = git
        .call("log")
        .args(["-z", "--format=tformat:%s", "--max-count", &MAX_SUBJECTS.to_string()])
        .args(["--no-show-signature", &format!("{base}..{head}")])
        .cut_at(4 << 20)
        .run()
        .await?;
    let subjects = logged.stdout.split(|b| *b == 0).filter(|line| !line.is_empty());
    let subjects =
        subjects.map(|line| cofferdam_git::escape::line(line, MAX_SUBJECT_CHARS)).collect();
    Ok(Some(Imported { reference, head, commits, side_commits, subjects, sides }))
}

async fn count(checkout: &Checkout, heads: &[ObjectId], base: &ObjectId) -> Result<u64, GitError> {
    let output = checkout
        .git()
        .call("rev-list")
        .arg("--count")
        .args(heads.iter().map(ObjectId::as_str))
        .arg(format!("^{base}"))
        .run()
        .await?;
    std::str::from_utf8(output.line()).ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
        let what = cofferdam_git::escape::line(output.line(), 80);
        GitError::Unexpected { subcommand: "rev-list", what }
    })
}
