//! Writes that should be refused and files that should tell nothing, tried for real.
//!
//! Nothing is changed: a file that could be made is removed again, what could be opened for writing is
//! closed without a byte, and of what can be read at most one byte is.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use cofferdam_run::posture::{Attempt, Tried};
use cofferdam_wire::layout;
use rustix::fs::{Mode, OFlags, open, unlink};
use rustix::io::Errno;

/// Directories in which nothing may be made, then those in which it may.
const DIRECTORIES: [&str; 21] = [
    "/",
    "/usr",
    "/usr/bin",
    "/usr/local",
    "/etc",
    "/dev",
    "/proc",
    "/proc/sys/kernel",
    "/sys",
    "/sys/fs/cgroup",
    "/cofferdam",
    "/var",
    "/run",
    "/home",
    "/root",
    "/opt",
    "/mnt",
    layout::TRIPWIRE,
    layout::WORK,
    layout::TMP,
    "/dev/shm",
];

/// Files that nothing inside may open for writing.
const FILES: [&str; 7] = [
    "/etc/passwd",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/drop_caches",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
    layout::GUEST_BIN,
];

/// What tells of the machine and should not.
const HIDDEN: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// The file that is tried to make.
const NAME: &str = ".cofferdam-probe";

pub(super) fn writes() -> Vec<Tried> {
    let made = DIRECTORIES.into_iter().map(|place| tried(place, make(Path::new(place))));
    let opened = FILES.into_iter().map(|place| tried(place, open_for_writing(Path::new(place))));
    made.chain(opened).collect()
}

pub(super) fn reads() -> Vec<Tried> {
    HIDDEN.into_iter().map(|place| tried(place, read(Path::new(place)))).collect()
}

fn tried(what: &str, result: Attempt) -> Tried {
    Tried { what: what.to_owned(), result }
}

fn make(place: &Path) -> Attempt {
    let file = place.join(NAME);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match open(&file, flags, Mode::RUSR) {
        Ok(_made) => {
            // Ours alone, made a moment ago; that it stays where it cannot be removed is told by
            // the attempt itself.
            let _stays = unlink(&file);
            Attempt::Done
        }
        Err(errno) => outcome(errno),
    }
}

fn open_for_writing(file: &Path) -> Attempt {
    match open(file, OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_opened) => Attempt::Done,
        Err(errno) => outcome(errno),
    }
}

fn read(place: &Path) -> Attempt {
    let failed = |error: std::io::Error| {
        error.raw_os_error().map_or(Attempt::Failed, |code| outcome(Errno::from_raw_os_error(code)))
    };
    let meta = match fs::metadata(place) {
        Ok(meta) => meta,
        Err(error) => return failed(error),
    };
    let holds = if meta.is_dir() {
        fs::read_dir(place).map(|mut entries| entries.next().is_some())
    } else {
        File::open(place).and_then(|mut file| file.read(&mut [0]).map(|n| n > 0))
    };
    match holds {
        Ok(true) => Attempt::Done,
        Ok(false) => Attempt::Empty,
        Err(error) => failed(error),
    }
}

fn outcome(errno: Errno) -> Attempt {
    match errno {
        Errno::ROFS => Attempt::ReadOnly,
        Errno::ACCESS | Errno::PERM => Attempt::Refused,
        Errno::NOENT | Errno::NOTDIR => Attempt::Missing,
        _ => Attempt::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_made_is_removed_again() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(make(temp.path()), Attempt::Done);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
        assert_eq!(make(&temp.path().join("none")), Attempt::Missing);
    }

    #[test]
    fn content_shows_and_emptiness_does() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(read(temp.path()), Attempt::Empty);
        fs::write(temp.path().join("file"), "x").unwrap();
        assert_eq!(read(temp.path()), Attempt::Done);
        assert_eq!(read(&temp.path().join("file")), Attempt::Done);
        assert_eq!(read(Path::new("/dev/null")), Attempt::Empty);
        assert_eq!(read(&temp.path().join("none")), Attempt::Missing);
    }

    #[test]
    fn opening_for_writing_writes_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("file");
        fs::write(&file, "x").unwrap();
        assert_eq!(open_for_writing(&file), Attempt::Done);
        assert_eq!(fs::read(&file).unwrap(), b"x");
    }
}
