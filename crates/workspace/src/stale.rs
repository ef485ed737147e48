//! What killed processes of ours have left in a person's repository.
//!
//! Only names that nobody but Cofferdam uses, and one exception: git's index lock, when our own note
//! says that this very file is ours. A thing that a living process holds is never named.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::apply::abandoned_index_lock;
use crate::checkout::Checkout;
use crate::scratch::is_abandoned;

/// Age of a lock below `refs/cofferdam` from which on no git process of ours can still hold it: longer
/// than any call that writes a ref may take.
pub const STALE_LOCK_AGE: Duration = Duration::from_secs(10 * 60);
/// Levels below `refs/cofferdam` that are looked into: ours are two deep.
const DEPTH: usize = 4;

/// Everything of that kind, at `now` (Unix milliseconds).
#[must_use]
pub fn stale(checkout: &Checkout, now_ms: u64) -> Vec<PathBuf> {
    let room = checkout.common_dir().join("cofferdam");
    let mut found: Vec<PathBuf> =
        entries(&room).into_iter().filter(|path| path.is_dir() && is_abandoned(path)).collect();
    locks(&checkout.common_dir().join("refs/cofferdam"), DEPTH, now_ms, &mut found);
    found.extend(abandoned_index_lock(checkout.git_dir(), &room));
    found
}

fn entries(place: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(place).into_iter().flatten().flatten().map(|e| e.path()).collect()
}

fn locks(place: &Path, depth: usize, now_ms: u64, found: &mut Vec<PathBuf>) {
    for path in entries(place) {
        let Ok(meta) = path.symlink_metadata() else { continue };
        if meta.is_dir() && depth > 0 {
            locks(&path, depth - 1, now_ms, found);
        }
        let at = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        let old = at.is_some_and(|at| {
            u128::from(now_ms).saturating_sub(at.as_millis()) > STALE_LOCK_AGE.as_millis()
        });
        if meta.is_file() && old && path.extension().is_some_and(|e| e == "lock") {
            found.push(path);
        }
    }
}

/// True when nobody holds the lock of `file`, which is there.
pub(crate) fn is_free(file: &Path) -> bool {
    File::open(file).is_ok_and(|file| file.try_lock().is_ok())
}
