//! When the work volume is counted again: seldom while little happens, at once when it could be full.
//!
//! The free space of its file system says how much it can have grown at most since it was last
//! counted, at the price of one system call. So a large tree is walked seldom, and a fast writer is
//! caught at the next look all the same. Other writers to the same file system cause walks for nothing,
//! and what others free hides growth until the next regular walk: both are bounded here.

use std::time::Duration;

use cofferdam_sandbox::WorkUse;

use super::bounds::{Bounds, Free};

/// Between two regular counts, at least.
pub(crate) const COUNT_EVERY: Duration = Duration::from_secs(2);
/// Between two regular counts, at most, however long one takes.
pub(crate) const COUNT_AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// Regular counts take one part in so many of the time.
pub(crate) const COUNT_SHARE: u32 = 20;
/// Counts because space went take one part in so many of the time, at most.
pub(crate) const HURRY_SHARE: u32 = 4;

#[derive(Debug)]
pub(super) struct Pace {
    work_bytes: u64,
    work_files: u64,
    every: Duration,
    /// When the last count ended, since the beginning.
    ended: Duration,
    took: Duration,
    seen: WorkUse,
    free: Option<Free>,
}

impl Pace {
    /// Counts every `every` at most, regularly; `free` is what there was at the beginning.
    pub(super) fn new(bounds: &Bounds, every: Duration, free: Option<Free>) -> Self {
        Self {
            work_bytes: bounds.work_bytes,
            work_files: bounds.work_files,
            every,
            ended: Duration::ZERO,
            took: Duration::ZERO,
            seen: WorkUse::default(),
            free,
        }
    }

    /// True when it is time to count, `now` after the beginning, with that much free.
    pub(super) fn is_due(&self, now: Duration, free: Option<Free>) -> bool {
        let since = now.saturating_sub(self.ended);
        let regular = (self.took * COUNT_SHARE).clamp(self.every, COUNT_AT_LEAST_EVERY);
        since >= regular || (since >= self.took * HURRY_SHARE && self.may_be_full(free))
    }

    /// As much went from the file system as the volume had left.
    fn may_be_full(&self, free: Option<Free>) -> bool {
        let (Some(before), Some(now)) = (self.free, free) else { return false };
        let left_bytes = self.work_bytes.saturating_sub(self.seen.bytes);
        let left_files = self.work_files.saturating_sub(self.seen.files);
        before.bytes.saturating_sub(now.bytes) > left_bytes
            || before.files.saturating_sub(now.files) > left_files
    }

    /// A count has ended. `free` was asked before it began.
    pub(super) fn counted(
        &mut self,
        now: Duration,
        took: Duration,
        seen: Option<WorkUse>,
        free: Option<Free>,
    ) {
        (self.ended, self.took, self.free) = (now, took, free);
        self.seen = seen.unwrap_or(self.seen);
    }
}
