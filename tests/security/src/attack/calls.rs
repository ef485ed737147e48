//! System calls that the filter refuses: kernel surface, namespaces, mounts, other processes' memory,
//! and ways around the filter itself.
//!
//! The arguments are harmless: what gets through asks for information, acts on this process or its
//! own child, or fails on an argument.

use super::twins;
use crate::outcome::{Outcome, errno_name, last_errno};
use crate::promise::Promise::P4;
use crate::table::Attempt;

const fn row(
    name: &'static str,
    attack: fn() -> Outcome,
    twin: fn() -> Result<(), String>,
) -> Attempt {
    Attempt::new(name, "seccomp", P4, attack, twin)
}

pub(crate) const TABLE: &[Attempt] = &[
    row("seccomp.io_uring_setup", io_uring, twins::epoll),
    row("seccomp.bpf_map", bpf, twins::own_filter),
    row("seccomp.keyctl", keyctl, twins::memfd),
    row("seccomp.add_key", add_key, twins::memfd),
    row("seccomp.request_key", request_key, twins::memfd),
    row("seccomp.userfaultfd", userfaultfd, twins::memory),
    row("seccomp.perf_event_open", perf, twins::read_own_proc),
    row("seccomp.ptrace_traceme", ptrace, twins::fork_and_wait),
    row("seccomp.process_vm_readv", vm_read, twins::fork_and_wait),
    row("seccomp.process_vm_writev", vm_write, twins::fork_and_wait),
    row("seccomp.process_madvise", madvise, twins::memory),
    row("seccomp.kcmp", kcmp, twins::fork_and_wait),
    row("seccomp.pidfd_getfd", pidfd_getfd, twins::socket_pair),
    row("seccomp.unshare_user", unshare_user, twins::fork_and_wait),
    row("seccomp.unshare_net", unshare_net, twins::loopback),
    row("seccomp.unshare_mount", unshare_mount, twins::write_where_allowed),
    row("seccomp.clone_user", clone_user, twins::fork_and_wait),
    row("seccomp.clone_net", clone_net, twins::fork_and_wait),
    row("seccomp.clone3", clone3, twins::fork_and_wait),
    row("seccomp.setns_own", setns, twins::read_own_proc),
    row("seccomp.mount_tmpfs", mount, twins::write_where_allowed),
    row("seccomp.bind_over_work", bind, twins::write_where_allowed).case("S70"),
    row("seccomp.umount_proc", umount, twins::read_own_proc),
    row("seccomp.fsopen", fsopen, twins::write_where_allowed),
    row("seccomp.open_tree", open_tree, twins::write_where_allowed),
    row("seccomp.mount_setattr", mount_setattr, twins::write_where_allowed),
    row("seccomp.pivot_root", pivot_root, twins::write_where_allowed),
    row("seccomp.chroot", chroot, twins::write_where_allowed),
    row("seccomp.statmount", statmount, twins::read_own_proc)
        .native_only("engines leave out of a profile what their libseccomp has no name for"),
    row("seccomp.name_to_handle_at", name_to_handle, twins::write_where_allowed),
    row("seccomp.open_by_handle_at", open_by_handle, twins::write_where_allowed),
    row("seccomp.fanotify_init", fanotify, twins::inotify),
    row("seccomp.init_module", init_module, twins::memfd),
    row("seccomp.kexec_load", kexec, twins::memfd),
    row("seccomp.reboot", reboot, twins::fork_and_wait),
    row("seccomp.swapon", swapon, twins::memory),
    row("seccomp.acct", acct, twins::read_own_proc),
    row("seccomp.clock_adjtime", adjtime, twins::read_own_proc),
    row("seccomp.syslog", syslog, twins::read_own_proc),
    row("seccomp.quotactl", quotactl, twins::write_where_allowed),
    row("seccomp.move_pages", move_pages, twins::memory),
    row("seccomp.set_mempolicy", mempolicy, twins::memory),
    row("seccomp.modify_ldt", modify_ldt, twins::memory),
    row("seccomp.iopl", iopl, twins::memory),
    row("seccomp.tiocsti", tiocsti, twins::terminal),
    row("seccomp.tiocsti_upper_bits", tiocsti_upper, twins::terminal),
    row("seccomp.tioclinux", tioclinux, twins::terminal),
    row("seccomp.x32_numbers", x32, twins::fork_and_wait),
    row("seccomp.int80_io_uring", int80, twins::fork_and_wait),
    row("seccomp.looser_filter_on_top", relax, twins::own_filter),
];

/// A raw call, judged.
fn call(number: i64, arguments: [usize; 6]) -> Outcome {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: each caller passes arguments that are valid for the call, or null.
    Outcome::call(unsafe { libc::syscall(number, a, b, c, d, e, f) })
}

fn at<T>(value: &T) -> usize {
    std::ptr::from_ref(value) as usize
}

fn io_uring() -> Outcome {
    call(libc::SYS_io_uring_setup, [1, at(&[0u32; 32]), 0, 0, 0, 0])
}

fn bpf() -> Outcome {
    // BPF_MAP_CREATE of an array of one number.
    let map: [u32; 32] = std::array::from_fn(|n| [2, 4, 4, 1].get(n).copied().unwrap_or(0));
    call(libc::SYS_bpf, [0, at(&map), 16, 0, 0, 0])
}

fn keyctl() -> Outcome {
    // KEYCTL_GET_KEYRING_ID of the process keyring, not created.
    call(libc::SYS_keyctl, [0, usize::MAX - 1, 0, 0, 0, 0])
}

fn add_key() -> Outcome {
    let (kind, name, value) = (c"user", c"cofferdam-test", b"x");
    let arguments = [
        kind.as_ptr() as usize,
        name.as_ptr() as usize,
        value.as_ptr() as usize,
        1,
        usize::MAX - 1,
        0,
    ];
    call(libc::SYS_add_key, arguments)
}

fn request_key() -> Outcome {
    let (kind, name) = (c"user", c"cofferdam-none");
    call(libc::SYS_request_key, [kind.as_ptr() as usize, name.as_ptr() as usize, 0, 0, 0, 0])
}

fn userfaultfd() -> Outcome {
    // UFFD_USER_MODE_ONLY: what the kernel lets an ordinary user have.
    call(libc::SYS_userfaultfd, [1, 0, 0, 0, 0, 0])
}

fn perf() -> Outcome {
    // A software counter of this process, user mode only.
    let mut attributes = [0u64; 16];
    attributes[0] = 1 | (128 << 32);
    attributes[5] = 0b110_0000;
    call(libc::SYS_perf_event_open, [at(&attributes), 0, usize::MAX, usize::MAX, 0, 0])
}

fn ptrace() -> Outcome {
    call(libc::SYS_ptrace, [0, 0, 0, 0, 0, 0])
}

fn with_child(then: impl FnOnce(i32) -> Outcome) -> Outcome {
    // SAFETY: the child only waits; it is killed and reaped.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::pause();
            libc::_exit(0);
        }
        let outcome = then(child);
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        outcome
    }
}

fn vm(number: i64) -> Outcome {
    static HERE: u64 = 5;
    with_child(|child| {
        let mut there = 0u64;
        let local = libc::iovec { iov_base: (&raw mut there).cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: (&raw const HERE).cast_mut().cast(), iov_len: 8 };
        call(number, [child.unsigned_abs() as usize, at(&local), 1, at(&remote), 1, 0])
    })
}

fn vm_read() -> Outcome {
    vm(libc::SYS_process_vm_readv)
}

fn vm_write() -> Outcome {
    vm(libc::SYS_process_vm_writev)
}

fn own_pidfd() -> usize {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    usize::try_from(fd).unwrap_or(usize::MAX)
}

fn madvise() -> Outcome {
    call(libc::SYS_process_madvise, [own_pidfd(), 0, 0, 20, 0, 0])
}

fn kcmp() -> Outcome {
    with_child(|child| {
        // SAFETY: takes no arguments.
        let own = unsafe { libc::getpid() };
        call(
            libc::SYS_kcmp,
            [own.unsigned_abs() as usize, child.unsigned_abs() as usize, 2, 0, 0, 0],
        )
    })
}

fn pidfd_getfd() -> Outcome {
    call(libc::SYS_pidfd_getfd, [own_pidfd(), 1, 0, 0, 0, 0])
}

fn flags(bits: i32) -> usize {
    bits.unsigned_abs() as usize
}

fn unshare_user() -> Outcome {
    call(libc::SYS_unshare, [flags(libc::CLONE_NEWUSER), 0, 0, 0, 0, 0])
}

fn unshare_net() -> Outcome {
    call(libc::SYS_unshare, [flags(libc::CLONE_NEWUSER | libc::CLONE_NEWNET), 0, 0, 0, 0, 0])
}

fn unshare_mount() -> Outcome {
    call(libc::SYS_unshare, [flags(libc::CLONE_NEWUSER | libc::CLONE_NEWNS), 0, 0, 0, 0, 0])
}

fn clone_with(bits: i32) -> Outcome {
    // SAFETY: without a stack this is a fork; the child ends at once and is reaped.
    unsafe {
        let child = libc::syscall(libc::SYS_clone, bits | libc::SIGCHLD, 0, 0, 0, 0);
        if child == 0 {
            libc::_exit(0);
        }
        let outcome = Outcome::call(child);
        if child > 0 {
            libc::wait(std::ptr::null_mut());
        }
        outcome
    }
}

fn clone_user() -> Outcome {
    clone_with(libc::CLONE_NEWUSER)
}

fn clone_net() -> Outcome {
    clone_with(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)
}

fn clone3() -> Outcome {
    // A plain child: its flags lie in memory, where no filter can look.
    let mut arguments = [0u64; 8];
    arguments[4] = libc::SIGCHLD.unsigned_abs().into();
    // SAFETY: without a stack this is a fork; the child ends at once and is reaped.
    unsafe {
        let child = libc::syscall(libc::SYS_clone3, arguments.as_ptr(), 64usize);
        if child == 0 {
            libc::_exit(0);
        }
        let outcome = Outcome::call(child);
        if child > 0 {
            libc::wait(std::ptr::null_mut());
        }
        outcome
    }
}

fn setns() -> Outcome {
    // SAFETY: a valid path.
    let fd = unsafe { libc::open(c"/proc/self/ns/net".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Outcome::Refused(errno_name(last_errno()));
    }
    call(libc::SYS_setns, [fd.unsigned_abs() as usize, 0, 0, 0, 0, 0])
}

fn mount() -> Outcome {
    let (kind, target) = (c"tmpfs", c"/tmp");
    let (kind, target) = (kind.as_ptr() as usize, target.as_ptr() as usize);
    call(libc::SYS_mount, [kind, target, kind, 0, 0, 0])
}

fn bind() -> Outcome {
    let (from, to) = (c"/tmp", c"/work");
    let bits = usize::try_from(libc::MS_BIND).unwrap_or(0);
    call(libc::SYS_mount, [from.as_ptr() as usize, to.as_ptr() as usize, 0, bits, 0, 0])
}

fn umount() -> Outcome {
    call(libc::SYS_umount2, [c"/proc".as_ptr() as usize, 2, 0, 0, 0, 0])
}

fn fsopen() -> Outcome {
    call(libc::SYS_fsopen, [c"tmpfs".as_ptr() as usize, 0, 0, 0, 0, 0])
}

fn open_tree() -> Outcome {
    // Without OPEN_TREE_CLONE it is an ordinary descriptor, which the kernel gives to anyone.
    call(libc::SYS_open_tree, [usize::MAX, c"/work".as_ptr() as usize, 0, 0, 0, 0])
}

fn mount_setattr() -> Outcome {
    let attributes = [0u64; 4];
    call(
        libc::SYS_mount_setattr,
        [usize::MAX, c"/work".as_ptr() as usize, 0, at(&attributes), 32, 0],
    )
}

fn pivot_root() -> Outcome {
    let place = c"/work".as_ptr() as usize;
    call(libc::SYS_pivot_root, [place, place, 0, 0, 0, 0])
}

fn chroot() -> Outcome {
    call(libc::SYS_chroot, [c"/work".as_ptr() as usize, 0, 0, 0, 0, 0])
}

fn statmount() -> Outcome {
    call(457, [0, 0, 0, 0, 0, 0])
}

fn name_to_handle() -> Outcome {
    let handle = [128u32; 40];
    let mount_id = 0i32;
    call(
        libc::SYS_name_to_handle_at,
        [usize::MAX, c"/work".as_ptr() as usize, at(&handle), at(&mount_id), 0, 0],
    )
}

fn open_by_handle() -> Outcome {
    let handle = [8u32; 40];
    call(libc::SYS_open_by_handle_at, [usize::MAX, at(&handle), 0, 0, 0, 0])
}

fn fanotify() -> Outcome {
    // FAN_REPORT_FID, for everyone since Linux 5.13.
    call(libc::SYS_fanotify_init, [0x200, 0, 0, 0, 0, 0])
}

fn init_module() -> Outcome {
    call(libc::SYS_init_module, [0, 0, c"".as_ptr() as usize, 0, 0, 0])
}

fn kexec() -> Outcome {
    // No segments and an impossible architecture.
    call(libc::SYS_kexec_load, [0, 0, 0, usize::MAX, 0, 0])
}

fn reboot() -> Outcome {
    // Numbers that the kernel refuses from anyone.
    call(libc::SYS_reboot, [0, 0, 0, 0, 0, 0])
}

fn swapon() -> Outcome {
    call(libc::SYS_swapon, [c"/nonexistent/swap".as_ptr() as usize, 0, 0, 0, 0, 0])
}

fn acct() -> Outcome {
    call(libc::SYS_acct, [c"/nonexistent/acct".as_ptr() as usize, 0, 0, 0, 0, 0])
}

fn adjtime() -> Outcome {
    // No mode set: only asks.
    let state = [0u64; 32];
    call(libc::SYS_clock_adjtime, [0, at(&state), 0, 0, 0, 0])
}

fn syslog() -> Outcome {
    // SYSLOG_ACTION_SIZE_BUFFER.
    call(libc::SYS_syslog, [10, 0, 0, 0, 0, 0])
}

fn quotactl() -> Outcome {
    // Q_SYNC of everything, which anyone may ask for.
    call(libc::SYS_quotactl, [0x8000_0100, 0, 0, 0, 0, 0])
}

fn move_pages() -> Outcome {
    call(libc::SYS_move_pages, [0, 0, 0, 0, 0, 0])
}

fn mempolicy() -> Outcome {
    call(libc::SYS_set_mempolicy, [0, 0, 0, 0, 0, 0])
}

#[cfg(target_arch = "x86_64")]
fn modify_ldt() -> Outcome {
    let room = [0u64; 8];
    call(libc::SYS_modify_ldt, [0, at(&room), 64, 0, 0, 0])
}

#[cfg(target_arch = "x86_64")]
fn iopl() -> Outcome {
    call(libc::SYS_iopl, [3, 0, 0, 0, 0, 0])
}

#[cfg(not(target_arch = "x86_64"))]
fn modify_ldt() -> Outcome {
    Outcome::Refused("not on this architecture".to_owned())
}

#[cfg(not(target_arch = "x86_64"))]
fn iopl() -> Outcome {
    Outcome::Refused("not on this architecture".to_owned())
}

fn terminal_ioctl(request: usize) -> Outcome {
    // The kernel takes these only on the caller's own controlling terminal: this process gets one.
    // SAFETY: valid paths and numbers; the descriptors end with this process.
    let fd = unsafe {
        let (mut number, unlock) = (0i32, 0i32);
        libc::setsid();
        let master = libc::open(c"/dev/ptmx".as_ptr(), libc::O_RDWR | libc::O_NOCTTY);
        libc::ioctl(master, libc::TIOCSPTLCK, &raw const unlock);
        libc::ioctl(master, libc::TIOCGPTN, &raw mut number);
        let path = std::ffi::CString::new(format!("/dev/pts/{number}")).unwrap_or_default();
        libc::open(path.as_ptr(), libc::O_RDWR)
    };
    if fd < 0 {
        return Outcome::Through(format!("no terminal to try on: {}", errno_name(last_errno())));
    }
    let byte = 0u8;
    call(libc::SYS_ioctl, [fd.unsigned_abs() as usize, request, at(&byte), 0, 0, 0])
}

fn tiocsti() -> Outcome {
    terminal_ioctl(0x5412)
}

fn tiocsti_upper() -> Outcome {
    // The kernel cuts the request to 32 bits; a filter that does not would let this pass.
    terminal_ioctl(0x7_0000_5412)
}

fn tioclinux() -> Outcome {
    terminal_ioctl(0x541c)
}

fn x32() -> Outcome {
    #[cfg(target_arch = "x86_64")]
    return call(0x4000_0000 | libc::SYS_getpid, [0; 6]);
    #[cfg(not(target_arch = "x86_64"))]
    Outcome::Refused("not on this architecture".to_owned())
}

fn int80() -> Outcome {
    #[cfg(target_arch = "x86_64")]
    {
        let result: i64;
        // SAFETY: io_uring_setup (425 in every table) with a null pointer; rax is all that changes.
        unsafe {
            std::arch::asm!(
                "push rbx", "mov ebx, 1", "int 0x80", "pop rbx",
                inlateout("rax") 425i64 => result, in("rcx") 0i64, in("rdx") 0i64,
            );
        }
        // A 32-bit result in the low half of the register.
        let low = u32::try_from(result & 0xffff_ffff).unwrap_or(0).cast_signed();
        let errno = -i64::from(low);
        i32::try_from(errno).map_or_else(
            |_| Outcome::Through(format!("returned {result}")),
            |errno| Outcome::errno(errno, &[libc::EPERM, libc::ENOSYS]),
        )
    }
    #[cfg(not(target_arch = "x86_64"))]
    Outcome::Refused("not on this architecture".to_owned())
}

fn relax() -> Outcome {
    // A filter that allows everything, on top: the strictest answer still counts.
    let _installed = twins::own_filter();
    call(libc::SYS_kcmp, [1, 1, 2, 0, 0, 0])
}
