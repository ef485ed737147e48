//! Counting what a run's work volume takes on the disk, while the run goes on.
//!
//! It never follows a link, never leaves the volume (nothing is mounted below it on the host), holds a bounded number of descriptors, and
//! believes no size that the guest wrote: what counts is the blocks that the file system gave out.
//! What it cannot count it says, so that a tree made to be uncountable is no way around a bound.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;

use crate::tree::{self, DIRECTORY};

/// Levels that one walk goes down with an open descriptor each. What lies deeper is walked
/// afterwards, from a descriptor that is kept for it.
pub const COUNT_DEPTH: usize = 64;
/// Directories deeper than [`COUNT_DEPTH`] that are kept for later at once. With more the count is not
/// whole, which is treated as over the bound.
pub const DEEP_DIRECTORIES: usize = 64;
/// Files with several names that are remembered, so that each counts once. Past it every name counts
/// in full, which errs against the guest.
pub const LINKED_FILES: usize = 1 << 20;
/// Bytes of a block in `st_blocks`, whatever the file system's own block size is.
const BLOCK: u64 = 512;

/// When a count need not go on: at a bound that is passed, or when nobody waits for it any more.
#[derive(Debug, Clone)]
pub struct Stop {
    /// Bytes past which the rest makes no difference.
    pub bytes: u64,
    /// Files and directories past which the rest makes no difference.
    pub files: u64,
    cancelled: Arc<AtomicBool>,
}

impl Stop {
    /// Goes on until one of the two is passed.
    #[must_use]
    pub fn at(bytes: u64, files: u64) -> Self {
        Self { bytes, files, cancelled: Arc::default() }
    }

    /// Ends the walk when the guard is dropped: for a walk on a thread of its own.
    #[must_use]
    pub fn guard(&self) -> StopGuard {
        StopGuard(Arc::clone(&self.cancelled))
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Ends a walk when dropped.
#[derive(Debug)]
pub struct StopGuard(Arc<AtomicBool>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a volume takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkUse {
    /// Bytes on the disk: blocks that are given out, not lengths.
    pub bytes: u64,
    /// Files, links and directories.
    pub files: u64,
    /// All of it was counted, or counting ended at a bound of [`Stop`]. When false the tree was made
    /// so that it cannot be counted, and the numbers are a lower bound.
    pub whole: bool,
}

/// Counts `top` and everything below it. A volume that is not there takes nothing.
///
/// # Errors
/// Only when `top` itself cannot be read. What vanishes while it is counted is left out.
pub fn count(top: &Path, stop: &Stop) -> io::Result<WorkUse> {
    let opened = match rustix::fs::open(top, DIRECTORY, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(WorkUse { whole: true, ..WorkUse::default() }),
        Err(error) => return Err(error.into()),
    };
    let mut walk = Walk {
        stop,
        seen: WorkUse { whole: true, ..WorkUse::default() },
        linked: HashSet::new(),
        deep: Vec::new(),
    };
    let mut next = Some(opened);
    while let Some(directory) = next {
        if walk.descend(directory) {
            break;
        }
        next = walk.deep.pop();
    }
    Ok(walk.seen)
}

struct Walk<'a> {
    stop: &'a Stop,
    seen: WorkUse,
    linked: HashSet<(u64, u64)>,
    deep: Vec<OwnedFd>,
}

struct Level {
    directory: OwnedFd,
    pending: Vec<CString>,
}

impl Walk<'_> {
    /// Counts a directory and [`COUNT_DEPTH`] levels below it. True when the count is at its end.
    fn descend(&mut self, top: OwnedFd) -> bool {
        let Some(first) = self.enter(top) else { return self.over() };
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            if self.over() {
                return true;
            }
            let Some(name) = level.pending.pop() else {
                levels.pop();
                continue;
            };
            let Some(opened) = self.open(&level.directory, &name) else { continue };
            if levels.len() < COUNT_DEPTH {
                levels.extend(self.enter(opened));
            } else if self.deep.len() < DEEP_DIRECTORIES {
                self.deep.push(opened);
            } else {
                self.seen.whole = false;
            }
        }
        self.over()
    }

    fn over(&self) -> bool {
        self.seen.bytes > self.stop.bytes
            || self.seen.files > self.stop.files
            || self.stop.is_cancelled()
    }

    /// Counts a directory and all in it that is no directory; gives the directories that are left.
    fn enter(&mut self, directory: OwnedFd) -> Option<Level> {
        let stat = rustix::fs::fstat(&directory).ok()?;
        self.add(&stat);
        let mut pending = Vec::new();
        let listed = tree::each(&directory, |name, kind, _| {
            if self.over() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if kind == FileType::Directory {
                pending.push(name.to_owned());
            } else if let Ok(stat) = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                self.add(&stat);
            }
            Ok(())
        });
        if listed.is_err() && !self.over() {
            self.seen.whole = false;
        }
        Some(Level { directory, pending })
    }

    fn add(&mut self, stat: &Stat) {
        let several = stat.st_nlink > 1 && FileType::from_raw_mode(stat.st_mode).is_file();
        let id = (stat.st_dev, stat.st_ino);
        if several && self.linked.len() < LINKED_FILES && !self.linked.insert(id) {
            return;
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.seen.bytes = self.seen.bytes.saturating_add(blocks.saturating_mul(BLOCK));
        self.seen.files = self.seen.files.saturating_add(1);
    }

    /// Opens a directory, with its owner's rights lent to it where the guest took them away. One that
    /// has gone meanwhile is left out.
    fn open(&mut self, parent: &OwnedFd, name: &CString) -> Option<OwnedFd> {
        match openat(parent, name, DIRECTORY, Mode::empty()) {
            Ok(opened) => Some(opened),
            Err(Errno::ACCESS) => {
                let opened = open_closed(parent, name);
                self.seen.whole &= opened.is_some();
                opened
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            Err(_) => {
                self.seen.whole = false;
                None
            }
        }
    }
}

/// An ordinary user's own directory with a mode that keeps its owner out. The mode is changed through
/// a descriptor that is bound to the directory, for as long as opening takes.
fn open_closed(parent: &OwnedFd, name: &CString) -> Option<OwnedFd> {
    let bound = openat(parent, name, DIRECTORY | OFlags::PATH, Mode::empty()).ok()?;
    let before = Mode::from_raw_mode(rustix::fs::fstat(&bound).ok()?.st_mode);
    let link = format!("/proc/self/fd/{}", bound.as_raw_fd());
    rustix::fs::chmod(link.as_str(), before | Mode::RWXU).ok()?;
    let opened = openat(parent, name, DIRECTORY, Mode::empty()).ok();
    // Only the guest's own tree is at stake, and only its mode: nothing follows from a failure.
    let _stays_open = rustix::fs::chmod(link.as_str(), before);
    opened
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
