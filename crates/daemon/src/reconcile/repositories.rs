//! What killed processes left in the checkouts of runs: locks and scratch below names that are ours
//! alone.
//!
//! It touches nothing under a name that git or the person could use: no index, no branch, no pack.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cofferdam_ledger::ListFilter;
use cofferdam_workspace::Checkout;

use super::SweepReport;
use crate::host::Host;

/// Checkouts of the newest runs that are looked at; older ones were looked at before.
pub(super) const MAX_CHECKOUTS: usize = 200;

impl Host {
    /// Looks at the checkouts of the newest runs.
    pub(super) async fn sweep_repositories(&self, report: &mut SweepReport) {
        let Ok(rows) = self.ledger.list(ListFilter::default(), u32::MAX).await else { return };
        let checkouts: BTreeSet<String> = rows.into_iter().map(|row| row.checkout).collect();
        for place in checkouts.iter().take(MAX_CHECKOUTS) {
            // A checkout that is not there any more has nothing of ours left either.
            let Ok(checkout) = Checkout::open(Path::new(place)).await else { continue };
            let (dry_run, found) =
                (report.dry_run, cofferdam_workspace::stale(&checkout, self.now_ms().0));
            for place in found {
                remove(place, dry_run, report);
            }
        }
    }
}

fn remove(place: PathBuf, dry_run: bool, report: &mut SweepReport) {
    let shown = place.display().to_string();
    let removed = if dry_run { Ok(()) } else { cofferdam_sandbox::remove_tree(&place) };
    match removed {
        Ok(()) => report.directories.push(shown),
        Err(error) => report.failed.push(format!("{shown}: {error}")),
    }
}
