//! Sample calls that a sandbox should deny, made for real with arguments that can have no effect.
//!
//! Without a filter the kernel answers each with a complaint about its arguments (or a descriptor
//! that is closed again); a denial shows as one of the codes in [`is_denial`]. A call that the
//! kernel itself denies to an unprivileged process counts as denied: that is what an agent would
//! get.

use libc::{c_int, c_long};

/// What the samples gave.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    pub(super) admitted: Vec<String>,
    pub(super) denied: Vec<String>,
}

type Sample = (&'static str, fn() -> Result<c_long, c_int>);

/// How many samples there are.
#[cfg(test)]
pub(super) const SAMPLES: usize = CALLS.len();

/// Descriptor number that is never open.
const NO_FD: c_long = -1;
/// Address that is never mapped.
const NOWHERE: c_long = 0;
/// Flag word that no call accepts.
const ALL_FLAGS: c_long = 0x7fff_ffff;
/// Operation number that no call has.
const NO_OPERATION: c_long = 0x7fff;

const CALLS: &[Sample] = &[
    // An unknown operation.
    ("keyctl", || call(libc::SYS_keyctl, [NO_OPERATION, 0, 0, 0, 0])),
    // Names at an unmapped address.
    ("add_key", || call(libc::SYS_add_key, [NOWHERE, NOWHERE, NOWHERE, 0, 0])),
    // Parameters at an unmapped address.
    ("io_uring_setup", || call(libc::SYS_io_uring_setup, [1, NOWHERE, 0, 0, 0])),
    // An unknown command.
    ("bpf", || call(libc::SYS_bpf, [NO_OPERATION, NOWHERE, 0, 0, 0])),
    // A new user namespace together with a flag that `unshare` does not know.
    ("unshare", || {
        call(libc::SYS_unshare, [i64::from(libc::CLONE_NEWUSER | libc::CLONE_VFORK), 0, 0, 0, 0])
    }),
    // No open namespace.
    ("setns", || call(libc::SYS_setns, [NO_FD, 0, 0, 0, 0])),
    // A target at an unmapped address.
    ("mount", || call(libc::SYS_mount, [NOWHERE, NOWHERE, NOWHERE, 0, NOWHERE])),
    // An unknown request for process 0, which is none.
    ("ptrace", || call(libc::SYS_ptrace, [NO_OPERATION, 0, 0, 0, 0])),
    // No such process.
    ("process_vm_readv", || {
        call(libc::SYS_process_vm_readv, [0x7fff_fffe, NOWHERE, 0, NOWHERE, 0])
    }),
    // Flags that it does not know.
    ("perf_event_open", || call(libc::SYS_perf_event_open, [NOWHERE, 0, -1, -1, ALL_FLAGS])),
    ("userfaultfd", || call(libc::SYS_userfaultfd, [ALL_FLAGS, 0, 0, 0, 0])),
    // No open mount, a handle at an unmapped address.
    ("open_by_handle_at", || call(libc::SYS_open_by_handle_at, [NO_FD, NOWHERE, 0, 0, 0])),
    ("io_uring_enter", || call(libc::SYS_io_uring_enter, [NO_FD, 0, 0, ALL_FLAGS, NOWHERE])),
    ("request_key", || call(libc::SYS_request_key, [NOWHERE, NOWHERE, NOWHERE, 0, 0])),
    // A new user namespace, and a thread that shares neither memory nor what it would have to.
    ("clone(CLONE_NEWUSER)", || {
        let flags = libc::CLONE_NEWUSER | libc::CLONE_FS | libc::CLONE_THREAD;
        call(libc::SYS_clone, [i64::from(flags), NOWHERE, 0, 0, 0])
    }),
    // Its arguments lie in memory, where no filter can look: it is to be refused whole.
    ("clone3", || call(libc::SYS_clone3, [NOWHERE, 0, 0, 0, 0])),
    ("umount2", || call(libc::SYS_umount2, [NOWHERE, ALL_FLAGS, 0, 0, 0])),
    ("open_tree", || call(libc::SYS_open_tree, [NO_FD, NOWHERE, ALL_FLAGS, 0, 0])),
    ("move_mount", || call(libc::SYS_move_mount, [NO_FD, NOWHERE, NO_FD, NOWHERE, ALL_FLAGS])),
    ("fsopen", || call(libc::SYS_fsopen, [NOWHERE, ALL_FLAGS, 0, 0, 0])),
    ("fsconfig", || call(libc::SYS_fsconfig, [NO_FD, NO_OPERATION, NOWHERE, NOWHERE, 0])),
    ("mount_setattr", || call(libc::SYS_mount_setattr, [NO_FD, NOWHERE, ALL_FLAGS, NOWHERE, 0])),
    ("pivot_root", || call(libc::SYS_pivot_root, [NOWHERE, NOWHERE, 0, 0, 0])),
    ("chroot", || call(libc::SYS_chroot, [NOWHERE, 0, 0, 0, 0])),
    ("kexec_load", || call(libc::SYS_kexec_load, [NOWHERE, 0, NOWHERE, ALL_FLAGS, 0])),
    ("init_module", || call(libc::SYS_init_module, [NOWHERE, 0, NOWHERE, 0, 0])),
    ("finit_module", || call(libc::SYS_finit_module, [NO_FD, NOWHERE, ALL_FLAGS, 0, 0])),
    ("delete_module", || call(libc::SYS_delete_module, [NOWHERE, 0, 0, 0, 0])),
    ("quotactl", || call(libc::SYS_quotactl, [ALL_FLAGS, NOWHERE, 0, NOWHERE, 0])),
    // No name: accounting would be switched off, which an ordinary user may not anyway.
    ("acct", || call(libc::SYS_acct, [1, 0, 0, 0, 0])),
    ("swapon", || call(libc::SYS_swapon, [NOWHERE, ALL_FLAGS, 0, 0, 0])),
    // None of the magic numbers.
    ("reboot", || call(libc::SYS_reboot, [0, 0, 0, NOWHERE, 0])),
    ("settimeofday", || call(libc::SYS_settimeofday, [1, 1, 0, 0, 0])),
    ("clock_settime", || call(libc::SYS_clock_settime, [NO_OPERATION, NOWHERE, 0, 0, 0])),
    ("syslog", || call(libc::SYS_syslog, [NO_OPERATION, NOWHERE, 0, 0, 0])),
    ("process_vm_writev", || {
        call(libc::SYS_process_vm_writev, [0x7fff_fffe, NOWHERE, 0, NOWHERE, 0])
    }),
    ("pidfd_getfd", || call(libc::SYS_pidfd_getfd, [NO_FD, NO_FD, ALL_FLAGS, 0, 0])),
    ("kcmp", || call(libc::SYS_kcmp, [0x7fff_fffe, 0x7fff_fffe, NO_OPERATION, 0, 0])),
    ("name_to_handle_at", || {
        call(libc::SYS_name_to_handle_at, [NO_FD, NOWHERE, NOWHERE, NOWHERE, ALL_FLAGS])
    }),
    ("fanotify_init", || call(libc::SYS_fanotify_init, [ALL_FLAGS, ALL_FLAGS, 0, 0, 0])),
    // On no terminal.
    ("ioctl(TIOCSTI)", || call(libc::SYS_ioctl, [NO_FD, 0x5412, NOWHERE, 0, 0])),
    ("ioctl(TIOCLINUX)", || call(libc::SYS_ioctl, [NO_FD, 0x541c, NOWHERE, 0, 0])),
    ("socket(AF_ALG)", || socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    ("socket(AF_VSOCK)", || socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    ("socket(AF_PACKET)", || socket(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    ("socket(AF_BLUETOOTH)", || socket(libc::AF_BLUETOOTH, libc::SOCK_RAW, 0)),
    ("socket(AF_KEY)", || socket(libc::AF_KEY, libc::SOCK_RAW, 2)),
    ("socket(AF_XDP)", || socket(libc::AF_XDP, libc::SOCK_RAW, 0)),
    ("socket(NETLINK_SOCK_DIAG)", || netlink(libc::NETLINK_SOCK_DIAG)),
    ("socket(NETLINK_NETFILTER)", || netlink(libc::NETLINK_NETFILTER)),
    ("socket(NETLINK_GENERIC)", || netlink(libc::NETLINK_GENERIC)),
    ("socket(NETLINK_KOBJECT_UEVENT)", || netlink(libc::NETLINK_KOBJECT_UEVENT)),
];

pub(super) fn sample() -> Sampled {
    let mut sampled = Sampled::default();
    for (name, call) in CALLS {
        let list = match call() {
            Err(code) if is_denial(code) => &mut sampled.denied,
            Ok(_) | Err(_) => &mut sampled.admitted,
        };
        list.push((*name).to_owned());
    }
    sampled
}

fn is_denial(code: c_int) -> bool {
    matches!(code, libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EAFNOSUPPORT)
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[expect(unsafe_code, reason = "the point is the call itself, with arguments no wrapper allows")]
fn call(number: c_long, args: [c_long; 5]) -> Result<c_long, c_int> {
    let [a, b, c, d, e] = args;
    // SAFETY: every entry of `CALLS` passes only integers and addresses in the first page, which is
    // never mapped, so that the kernel reads and writes no memory of this process, and none can succeed.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result == -1 { Err(errno()) } else { Ok(result) }
}

fn netlink(protocol: c_int) -> Result<c_long, c_int> {
    socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)
}

#[expect(unsafe_code, reason = "the safe wrappers lack these families")]
fn socket(family: c_int, kind: c_int, protocol: c_int) -> Result<c_long, c_int> {
    // SAFETY: takes three integers.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd == -1 {
        return Err(errno());
    }
    // SAFETY: the descriptor was opened just above and nobody else has it.
    unsafe { libc::close(fd) };
    Ok(0)
}
