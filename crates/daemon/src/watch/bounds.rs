//! Where too much begins, and what has to follow. Pure, but for the look at a file system.

use std::path::Path;

use cofferdam_run::spec::RunSpec;
use cofferdam_sandbox::{Stop, WorkUse};

/// Free space of the host that no run may use up, bytes, unless the configuration says another
/// number; on a small file system [`FLOOR_SHARE`] of it where that is less.
pub(crate) const FLOOR_BYTES: u64 = 1 << 30;
/// One part in so many of a file system that stays free at least.
pub(crate) const FLOOR_SHARE: u64 = 50;
/// Free inodes of the host that no run may use up; on a small file system [`FLOOR_SHARE`] of them.
pub(crate) const FLOOR_FILES: u64 = 10_000;
/// How far past its bound the work volume may grow while the run is being stopped, as one part in so
/// many of the bound; then it is killed, and its work is saved from outside.
pub(crate) const KILL_SHARE: u64 = 4;
/// The least of that, bytes.
pub(crate) const KILL_BYTES: u64 = 64 << 20;
/// The least of that, files.
pub(crate) const KILL_FILES: u64 = 10_000;

/// What a run may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) work_bytes: u64,
    pub(crate) work_files: u64,
    pub(crate) cpu_ms: Option<u64>,
    /// As configured; `None` for the default.
    pub(crate) floor_bytes: Option<u64>,
}

/// What has to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The run is stopped, and what it made is brought out.
    Stop,
    /// It grew on while it was stopped.
    Kill,
}

/// Something that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name as in `StopCause::Budget`.
    pub(crate) budget: &'static str,
    pub(crate) need: Need,
}

/// What a file system has left for an ordinary user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) bytes: u64,
    pub(crate) all_bytes: u64,
    pub(crate) files: u64,
    /// Zero where the file system has no fixed number.
    pub(crate) all_files: u64,
}

impl Free {
    /// That of the file system at `place`; `None` when it cannot be asked.
    pub(crate) fn of(place: &Path) -> Option<Self> {
        let seen = rustix::fs::statvfs(place).ok()?;
        Some(Self {
            bytes: seen.f_bavail.saturating_mul(seen.f_frsize),
            all_bytes: seen.f_blocks.saturating_mul(seen.f_frsize),
            files: seen.f_favail,
            all_files: seen.f_files,
        })
    }
}

impl Bounds {
    pub(crate) fn of(spec: &RunSpec, floor_bytes: Option<u64>) -> Self {
        Self {
            work_bytes: spec.resources.work_bytes,
            work_files: spec.resources.work_files,
            cpu_ms: spec.budgets.cpu_ms,
            floor_bytes,
        }
    }

    /// Past this a count need not go on: it is time to kill, however much more there is.
    pub(crate) fn stop(&self) -> Stop {
        let (bytes, files) = self.killing();
        Stop::at(bytes, files)
    }

    fn killing(&self) -> (u64, u64) {
        let beyond = |bound: u64, least: u64| bound.saturating_add((bound / KILL_SHARE).max(least));
        (beyond(self.work_bytes, KILL_BYTES), beyond(self.work_files, KILL_FILES))
    }

    pub(super) fn work(&self, seen: &WorkUse) -> Option<Finding> {
        let (kill_bytes, kill_files) = self.killing();
        let need = |kill| if kill { Need::Kill } else { Need::Stop };
        if seen.bytes > self.work_bytes {
            let need = need(seen.bytes > kill_bytes);
            return Some(Finding { budget: "work_bytes", need });
        }
        // A tree that cannot be counted counts as over: else that would be the way around the bound.
        (seen.files > self.work_files || !seen.whole)
            .then(|| Finding { budget: "work_files", need: need(seen.files > kill_files) })
    }

    pub(super) fn cpu(&self, used_ms: Option<u64>) -> Option<Finding> {
        let over = used_ms? > self.cpu_ms?;
        over.then_some(Finding { budget: "cpu_time", need: Need::Stop })
    }

    /// Bytes that stay free on that file system.
    pub(super) fn floor(configured: Option<u64>, free: &Free) -> u64 {
        configured.unwrap_or_else(|| FLOOR_BYTES.min(free.all_bytes / FLOOR_SHARE))
    }

    pub(super) fn host(&self, free: Option<Free>) -> Option<Finding> {
        let free = free?;
        let floor = Self::floor(self.floor_bytes, &free);
        let floor_files = FLOOR_FILES.min(free.all_files / FLOOR_SHARE);
        let need = if free.bytes < floor / 2 || free.files < floor_files / 2 {
            Need::Kill
        } else if free.bytes < floor || free.files < floor_files {
            Need::Stop
        } else {
            return None;
        };
        Some(Finding { budget: "host_disk", need })
    }
}
