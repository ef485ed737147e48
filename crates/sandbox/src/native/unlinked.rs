//! Files that the guest deleted and still holds open: on the disk, and under no name that a walk of
//! the volume meets.
//!
//! It looks through `/proc` at processes of the sandbox only. A file that is mapped and not open, or
//! on its way through a socket, is not seen here; the floor of free space is what holds against it.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Processes that are looked at; of more the rest is left out. Above any process limit that the
/// product sets by itself.
pub const UNLINKED_PROCESSES: usize = 4_096;
/// Descriptors of all of them that are looked at; of more the rest is left out.
pub const UNLINKED_DESCRIPTORS: usize = 200_000;
const BLOCK: u64 = 512;

/// Bytes of deleted files on the file system of `work` that processes in the sandbox of `first` hold
/// open.
pub(crate) fn bytes(work: &Path, first: i32) -> u64 {
    let Ok(device) = fs::metadata(work).map(|meta| meta.dev()) else { return 0 };
    let Ok(space) = fs::read_link(format!("/proc/{first}/ns/pid")) else { return 0 };
    let (mut seen, mut sum, mut left) = (HashSet::new(), 0u64, UNLINKED_DESCRIPTORS);
    for pid in members(&space) {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let Some(rest) = left.checked_sub(1) else { return sum };
            left = rest;
            // Follows to the open file itself, whatever its name was.
            let Ok(meta) = fs::metadata(descriptor.path()) else { continue };
            if meta.is_file()
                && meta.nlink() == 0
                && meta.dev() == device
                && seen.insert(meta.ino())
            {
                sum = sum.saturating_add(meta.blocks().saturating_mul(BLOCK));
            }
        }
    }
    sum
}

/// Processes whose process-id namespace is that one.
fn members(space: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|ns| ns == space))
        .take(UNLINKED_PROCESSES)
        .collect()
}
