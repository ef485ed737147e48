//! Numbers of the system calls that the profile names. Data only.

/// Denied whatever the arguments are: kernel surface that no toolchain needs, and every way to make
/// or enter a namespace, to mount, to reach another process's memory or to reach files by handle.
pub(crate) const DENIED: &[&str] = &[
    "_sysctl",
    "acct",
    "add_key",
    "bpf",
    "chroot",
    "clock_adjtime",
    "clock_settime",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "listmount",
    "lookup_dcookie",
    "mbind",
    "migrate_pages",
    "modify_ldt",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "name_to_handle_at",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "open_tree_attr",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "statmount",
    "swapoff",
    "swapon",
    "sysfs",
    "syslog",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "ustat",
    "vhangup",
];

/// The newest call of both tables when this list was written (Linux 6.18, `file_setattr`). The
/// tables of x86-64 and aarch64 share their numbers from 424 on.
pub(crate) const LAST_KNOWN: u32 = cofferdam_wire::layout::LAST_KNOWN_CALL;

/// Names of [`legacy_number`], which exist as names on every architecture.
const LEGACY: [&str; 7] = ["_sysctl", "sysfs", "ioperm", "iopl", "modify_ldt", "uselib", "ustat"];

/// Whether the name is one of a system call, on this architecture or another.
pub(crate) fn is_known(name: &str) -> bool {
    number(name).is_some() || LEGACY.contains(&name)
}

/// The number of a call on this architecture; `None` where it has none.
pub(crate) fn number(name: &str) -> Option<i64> {
    let number = match name {
        "acct" => libc::SYS_acct,
        "add_key" => libc::SYS_add_key,
        "bpf" => libc::SYS_bpf,
        "chroot" => libc::SYS_chroot,
        "clock_adjtime" => libc::SYS_clock_adjtime,
        "clock_settime" => libc::SYS_clock_settime,
        "clone" => libc::SYS_clone,
        "clone3" => libc::SYS_clone3,
        "delete_module" => libc::SYS_delete_module,
        "fanotify_init" => libc::SYS_fanotify_init,
        "finit_module" => libc::SYS_finit_module,
        "fsconfig" => libc::SYS_fsconfig,
        "fsmount" => libc::SYS_fsmount,
        "fsopen" => libc::SYS_fsopen,
        "fspick" => libc::SYS_fspick,
        "init_module" => libc::SYS_init_module,
        "io_uring_enter" => libc::SYS_io_uring_enter,
        "io_uring_register" => libc::SYS_io_uring_register,
        "io_uring_setup" => libc::SYS_io_uring_setup,
        "ioctl" => libc::SYS_ioctl,
        "kcmp" => libc::SYS_kcmp,
        "kexec_file_load" => libc::SYS_kexec_file_load,
        "kexec_load" => libc::SYS_kexec_load,
        "keyctl" => libc::SYS_keyctl,
        "lookup_dcookie" => libc::SYS_lookup_dcookie,
        "mbind" => libc::SYS_mbind,
        "migrate_pages" => libc::SYS_migrate_pages,
        "mount" => libc::SYS_mount,
        "mount_setattr" => libc::SYS_mount_setattr,
        "move_mount" => libc::SYS_move_mount,
        "move_pages" => libc::SYS_move_pages,
        "name_to_handle_at" => libc::SYS_name_to_handle_at,
        "nfsservctl" => libc::SYS_nfsservctl,
        "open_by_handle_at" => libc::SYS_open_by_handle_at,
        "open_tree" => libc::SYS_open_tree,
        "perf_event_open" => libc::SYS_perf_event_open,
        "pidfd_getfd" => libc::SYS_pidfd_getfd,
        "pivot_root" => libc::SYS_pivot_root,
        "process_madvise" => libc::SYS_process_madvise,
        "process_vm_readv" => libc::SYS_process_vm_readv,
        "process_vm_writev" => libc::SYS_process_vm_writev,
        "ptrace" => libc::SYS_ptrace,
        "quotactl" => libc::SYS_quotactl,
        "quotactl_fd" => libc::SYS_quotactl_fd,
        "reboot" => libc::SYS_reboot,
        "request_key" => libc::SYS_request_key,
        "set_mempolicy" => libc::SYS_set_mempolicy,
        "setdomainname" => libc::SYS_setdomainname,
        "sethostname" => libc::SYS_sethostname,
        "setns" => libc::SYS_setns,
        "settimeofday" => libc::SYS_settimeofday,
        "socket" => libc::SYS_socket,
        "socketpair" => libc::SYS_socketpair,
        "swapoff" => libc::SYS_swapoff,
        "swapon" => libc::SYS_swapon,
        "syslog" => libc::SYS_syslog,
        "umount2" => libc::SYS_umount2,
        "unshare" => libc::SYS_unshare,
        "userfaultfd" => libc::SYS_userfaultfd,
        "vhangup" => libc::SYS_vhangup,
        // Newer than the bindings; the number is the same on both architectures.
        "set_mempolicy_home_node" => 450,
        "statmount" => 457,
        "listmount" => 458,
        "open_tree_attr" => 467,
        _ => return legacy_number(name),
    };
    Some(number)
}

/// Calls that only x86-64 has.
#[cfg(target_arch = "x86_64")]
fn legacy_number(name: &str) -> Option<i64> {
    let number = match name {
        "ioperm" => libc::SYS_ioperm,
        "iopl" => libc::SYS_iopl,
        "modify_ldt" => libc::SYS_modify_ldt,
        "_sysctl" => libc::SYS__sysctl,
        "sysfs" => libc::SYS_sysfs,
        "uselib" => libc::SYS_uselib,
        "ustat" => libc::SYS_ustat,
        _ => return None,
    };
    Some(number)
}

/// Calls that only x86-64 has.
#[cfg(not(target_arch = "x86_64"))]
fn legacy_number(_name: &str) -> Option<i64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_denied_name_has_a_number() {
        for name in DENIED.iter().chain(&["clone", "clone3", "ioctl", "socket", "socketpair"]) {
            let number = number(name).unwrap_or_else(|| panic!("{name} has no number"));
            assert!(number <= i64::from(LAST_KNOWN), "{name}");
        }
    }

    #[test]
    fn denied_names_are_sorted_and_unique() {
        assert!(DENIED.windows(2).all(|w| w[0] < w[1]));
    }
}
