//! Reads object ids out of git's answers, once.

use cofferdam_git::{Authority, Git, GitError, Output, escape};
use cofferdam_run::ObjectId;

/// The one object id that a call printed.
pub(crate) fn id_in(subcommand: &'static str, output: &Output) -> Result<ObjectId, GitError> {
    id(subcommand, output.line())
}

/// An object id in `bytes`.
pub(crate) fn id(subcommand: &'static str, bytes: &[u8]) -> Result<ObjectId, GitError> {
    std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| GitError::Unexpected { subcommand, what: escape::line(bytes, 80) })
}

/// The tree of `commit`.
pub(crate) async fn tree_of<A: Authority>(
    git: &Git<A>,
    commit: &ObjectId,
) -> Result<ObjectId, GitError> {
    let output = git
        .call("rev-parse")
        .args(["--verify", "--end-of-options"])
        .arg(format!("{commit}^{{tree}}"))
        .run()
        .await?;
    id("rev-parse", last_line(output.line()))
}

/// The commit that `name` means, when there is one.
pub(crate) async fn commit_named<A: Authority>(
    git: &Git<A>,
    name: &str,
) -> Result<Option<ObjectId>, GitError> {
    let output = git
        .call("rev-parse")
        .args(["--verify", "--quiet", "--end-of-options"])
        .arg(format!("{name}^{{commit}}"))
        // An id that is well-formed but not here is a fatal error rather than a quiet "no".
        .accept(&[0, 1, 128])
        .run()
        .await?;
    if output.code == 0 { id("rev-parse", last_line(output.line())).map(Some) } else { Ok(None) }
}

/// Whether the object is in the repository.
pub(crate) async fn is_present<A: Authority>(
    git: &Git<A>,
    object: &ObjectId,
) -> Result<bool, GitError> {
    let output =
        git.call("cat-file").args(["-e", object.as_str()]).accept(&[0, 1, 128]).run().await?;
    Ok(output.code == 0)
}

/// Some versions of `rev-parse` echo `--end-of-options`.
fn last_line(bytes: &[u8]) -> &[u8] {
    bytes.rsplit(|b| *b == b'\n').next().unwrap_or(bytes)
}

/// Whether `ancestor` is one of `descendant` (or the same).
pub(crate) async fn is_ancestor<A: Authority>(
    git: &Git<A>,
    ancestor: &ObjectId,
    descendant: &ObjectId,
) -> Result<bool, GitError> {
    let output = git
        .call("merge-base")
        .args(["--is-ancestor", ancestor.as_str(), descendant.as_str()])
        .accept(&[0, 1])
        .run()
        .await?;
    Ok(output.code == 0)
}
