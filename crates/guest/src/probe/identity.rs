//! Who this process is for the kernel: ids, per-process limits, namespaces.
//!
//! What cannot be read is left out, and the host takes it for missing.

use std::os::unix::fs::MetadataExt as _;

use cofferdam_run::posture::{NamespaceSeen, RlimitSeen};
use rustix::process::{Resource, getrlimit};

/// Real, effective, saved and file-system id, from the line of `/proc/self/status`.
pub(super) fn four(line: &str) -> Option<[u32; 4]> {
    let ids: Option<Vec<u32>> = line.split_ascii_whitespace().map(|id| id.parse().ok()).collect();
    ids?.try_into().ok()
}

pub(super) fn rlimits() -> Vec<RlimitSeen> {
    [
        ("nofile", Resource::Nofile),
        ("nproc", Resource::Nproc),
        ("core", Resource::Core),
        ("fsize", Resource::Fsize),
        ("memlock", Resource::Memlock),
    ]
    .map(|(name, resource)| {
        let seen = getrlimit(resource);
        RlimitSeen { name: name.to_owned(), soft: seen.current, hard: seen.maximum }
    })
    .into()
}

pub(super) fn namespaces() -> Vec<NamespaceSeen> {
    ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"]
        .into_iter()
        .filter_map(|kind| {
            // The link leads to the namespace itself, whose inode is its number.
            let id = std::fs::metadata(format!("/proc/self/ns/{kind}")).ok()?.ino();
            Some(NamespaceSeen { kind: kind.to_owned(), id })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_ids_are_four_and_nothing_else() {
        assert_eq!(four("1\t2\t3\t4"), Some([1, 2, 3, 4]));
        for text in ["", "1\t2\t3", "1 2 3 4 5", "1 2 3 x"] {
            assert_eq!(four(text), None, "{text}");
        }
    }
}
