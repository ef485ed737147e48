//! What a person should know about the place of the work volumes, for `cofferdam doctor`.
//!
//! It only looks, and claims no bound of the file system's: none is used.

use std::path::Path;

use serde::Serialize;

use super::bounds::{Bounds, Free};

/// How the work volumes of the native engine are bounded here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkPlace {
    /// Type of the file system of the data directory, such as `ext4`.
    pub file_system: String,
    /// It is mounted with project quotas, which could bound a volume without any overshoot. They are
    /// not used yet.
    pub project_quota: bool,
    /// Bytes free for an ordinary user.
    pub free_bytes: u64,
    /// Bytes that no run may use up.
    pub floor_bytes: u64,
}

impl WorkPlace {
    /// Looks at the file system of `data`; `None` when it cannot be asked.
    #[must_use]
    pub fn of(data: &Path, floor_bytes: Option<u64>) -> Option<Self> {
        let free = Free::of(data)?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let (file_system, project_quota) = mount_of(&mounts, &data.canonicalize().ok()?)?;
        let floor_bytes = Bounds::floor(floor_bytes, &free);
        Some(Self { file_system, project_quota, free_bytes: free.bytes, floor_bytes })
    }
}

impl std::fmt::Display for WorkPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let quota = if self.project_quota {
            "has project quotas (not used)"
        } else {
            "has no project quotas"
        };
        write!(
            f,
            "watched from outside: {} {quota}; {} MiB free, of which no run takes the last {} MiB",
            self.file_system,
            self.free_bytes >> 20,
            self.floor_bytes >> 20
        )
    }
}

/// Type of the innermost mount that holds `path`, and whether it has project quotas.
fn mount_of(mountinfo: &str, path: &Path) -> Option<(String, bool)> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let point = Path::new(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        let kind = right.next()?;
        let quota = right.nth(1)?.split(',').any(|o| matches!(o, "prjquota" | "pquota"));
        path.starts_with(point).then(|| (point.components().count(), kind.to_owned(), quota))
    });
    // Of several at one place the last one covers the others.
    let (_, kind, quota) = mounts.max_by_key(|(depth, _, _)| *depth)?;
    Some((kind, quota))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_mount_counts_and_its_quota_shows() {
        let mounts = "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n\
                      2 1 8:2 / /data rw - xfs /dev/b rw,attr2,prjquota\n\
                      3 1 8:3 / /database rw - btrfs /dev/c rw\n";
        let of = |path: &str| mount_of(mounts, Path::new(path)).unwrap();
        assert_eq!(of("/home/x"), ("ext4".to_owned(), false));
        assert_eq!(of("/data/cofferdam"), ("xfs".to_owned(), true));
        assert_eq!(of("/database"), ("btrfs".to_owned(), false));
    }

    #[test]
    fn this_machine_has_a_place() {
        let place = WorkPlace::of(Path::new("/tmp"), Some(7)).unwrap();
        assert_eq!(place.floor_bytes, 7);
        assert!(!place.file_system.is_empty());
    }
}
