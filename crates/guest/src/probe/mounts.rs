//! Mounts, from `/proc/self/mountinfo`.
//!
//! Takes a mount for writable unless it is read-only, or the kernel refuses this user everywhere on it
//! (a container's `/sys/fs/cgroup` on cgroup v1 is a root-owned tmpfs
//! that is not mounted read-only).

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cofferdam_run::posture::MountSeen;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::limits::{PROBE_ENTRIES, PROC_FILE};
use crate::probe::read_bounded;

/// What the mounts say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mounts {
    /// The topmost mount at `/` is read-only.
    pub(super) root_read_only: bool,
    /// Mount points that are writable.
    pub(super) writable: Vec<String>,
    /// Every mount.
    pub(super) all: Vec<MountSeen>,
}

pub(super) fn read() -> Mounts {
    match read_bounded("/proc/self/mountinfo", PROC_FILE) {
        Ok(text) => {
            let mut mounts = parse(&text);
            mounts.writable.retain(|point| may_write(Path::new(point)));
            mounts
        }
        Err(_) => Mounts {
            root_read_only: false,
            writable: vec!["unreadable: /proc/self/mountinfo".to_owned()],
            all: Vec::new(),
        },
    }
}

/// False only when the kernel clearly refuses this user everywhere on the mount: anything unclear,
/// and a tree of more than [`PROBE_ENTRIES`] entries, counts as writable.
fn may_write(point: &Path) -> bool {
    let Ok(device) = point.metadata().map(|m| m.dev()) else { return true };
    let mut left = PROBE_ENTRIES;
    let mut waiting = vec![point.to_path_buf()];
    while let Some(place) = waiting.pop() {
        if !matches!(access(&place, Access::WRITE_OK), Err(Errno::ACCESS | Errno::ROFS)) {
            return true;
        }
        let entries = match std::fs::read_dir(&place) {
            Ok(entries) => entries,
            // A file, or a directory that cannot be listed; its own answer counted above.
            Err(error) => match error.kind() {
                ErrorKind::PermissionDenied | ErrorKind::NotADirectory => continue,
                _ => return true,
            },
        };
        for entry in entries {
            let (Ok(entry), Some(rest)) = (entry, left.checked_sub(1)) else { return true };
            left = rest;
            // What is mounted on top is judged by its own line; a link is judged where it leads.
            if entry.metadata().is_ok_and(|m| m.dev() == device && !m.is_symlink()) {
                waiting.push(entry.path());
            }
        }
    }
    false
}

fn parse(text: &str) -> Mounts {
    let mut mounts = Mounts::default();
    for line in text.lines() {
        let Some((seen, read_only)) = parse_line(line) else {
            mounts
                .writable
                .push(format!("unreadable: {}", line.chars().take(200).collect::<String>()));
            continue;
        };
        let point = seen.point.clone();
        if mounts.all.len() < PROBE_ENTRIES {
            mounts.all.push(seen);
        }
        if point == "/" {
            // A later mount at the same place covers an earlier one.
            mounts.root_read_only = read_only;
        }
        if !read_only && mounts.writable.len() < PROBE_ENTRIES {
            mounts.writable.push(point);
        }
    }
    mounts
}

/// `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/x rw`: the mount, and whether either it
/// or its file system is read-only.
fn parse_line(line: &str) -> Option<(MountSeen, bool)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(4);
    let (point, options) = (fields.next()?, fields.next()?);
    let (kind, system_options) = (system.split(' ').next()?, system.split(' ').nth(2)?);
    let is_ro = |options: &str| options.split(',').any(|o| o == "ro");
    let seen =
        MountSeen { point: unescape(point), kind: kind.to_owned(), options: options.to_owned() };
    Some((seen, is_ro(options) || is_ro(system_options)))
}

/// Undoes the octal escapes of blanks and backslashes.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_counts_at_the_mount_and_at_its_file_system() {
        let text = "1 0 0:1 / / ro,relatime - overlay overlay rw\n\
                    2 1 0:2 / /work rw - tmpfs tmpfs rw,size=1k\n\
                    3 1 0:3 / /usr rw - squashfs x ro\n\
                    4 1 0:4 / /with\\040blank rw shared:3 master:1 - ext4 /dev/a rw\n";
        let mounts = parse(text);
        assert!(mounts.root_read_only);
        assert_eq!(mounts.writable, ["/work", "/with blank"]);
    }

    #[test]
    fn a_place_that_this_user_may_write_to_is_writable_and_so_is_an_unclear_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(may_write(dir.path()));
        assert!(may_write(Path::new("/does/not/exist")), "unclear counts as writable");
    }

    #[test]
    fn topmost_root_counts() {
        let text = "1 0 0:1 / / ro - overlay o ro\n2 0 0:1 / / rw - tmpfs t rw\n";
        assert!(!parse(text).root_read_only);
    }

    #[test]
    fn line_that_means_nothing_counts_as_writable() {
        assert_eq!(parse("nonsense\n").writable, ["unreadable: nonsense"]);
    }
}
