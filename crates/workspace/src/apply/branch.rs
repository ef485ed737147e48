//! Only a branch at the run's head: nothing else of the checkout changes.

use cofferdam_run::{ObjectId, RunId};

use super::Applied;
use super::error::ApplyError;
use crate::bundle::is_ref_name;
use crate::checkout::Checkout;

/// Makes `refs/heads/<name>`, which must not exist.
pub(super) async fn create(
    checkout: &Checkout,
    run: &RunId,
    name: String,
    head: &ObjectId,
) -> Result<Applied, ApplyError> {
    let reference = format!("refs/heads/{name}");
    // As git-branch(1): a leading dash or the name HEAD could not be used afterwards.
    if name.starts_with('-') || name == "HEAD" || !is_ref_name(&reference) {
        let name = cofferdam_git::escape::line(&name, 120);
        return Err(ApplyError::Branch { name, why: "this is not a valid branch name" });
    }
    let created = checkout
        .git()
        .call("update-ref")
        .args(["-m", &format!("cofferdam: branch from run {run}"), "--stdin"])
        .stdin(format!("create {reference} {head}\n").into_bytes())
        .run()
        .await;
    match created {
        Ok(_) => Ok(Applied::Branch { name }),
        Err(error) if error.stderr().contains("exists") => {
            Err(ApplyError::Branch { name, why: "it exists already" })
        }
        Err(error) => Err(error.into()),
    }
}
