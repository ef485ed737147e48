//! Settings of the machine that an attacker would like to change: the same before and after.

use std::collections::BTreeMap;

const SETTINGS: [&str; 9] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/net/ipv4/ip_forward",
    "/etc/passwd",
    "/etc/hosts",
    "/proc/swaps",
    "/proc/sys/kernel/printk",
];

/// A snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Machine(BTreeMap<&'static str, Option<Vec<u8>>>);

impl Machine {
    pub(crate) fn look() -> Self {
        Self(SETTINGS.into_iter().map(|path| (path, std::fs::read(path).ok())).collect())
    }
}
