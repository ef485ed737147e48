//! The few system calls that no safe wrapper offers. All `unsafe` of the launcher is here.
#![expect(unsafe_code, reason = "raw system calls of a process with one thread")]

use std::ffi::CString;
use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::thread::UnshareFlags;

/// Which side of a fork this is.
pub(super) enum Forked {
    Child,
    Parent { child: i32 },
}

/// Forks.
pub(super) fn fork() -> io::Result<Forked> {
    // SAFETY: the launcher has one thread, so the child may go on as any process does.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        child => Ok(Forked::Parent { child }),
    }
}

/// Leaves namespaces of the parent.
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: descriptors are not unshared (no `FILES` flag is used), and there is one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Sets attributes (`MOUNT_ATTR_*`) on the mount at `path`, and below it when `recursive`. Other
/// attributes stay, so that what the host had locked remains locked. Needs Linux 5.12.
pub(super) fn set_mount_attributes(
    path: &Path,
    attributes: u64,
    recursive: bool,
) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let request =
        libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: path and request outlive the call; the size given is that of the request.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const request,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Brings the loopback interface of the current network namespace up.
pub(super) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: an all-zero `ifreq` is valid: a name of no characters and empty unions.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed() as libc::c_char;
    }
    // `IFF_UP | IFF_RUNNING`; the constants of libc are wider than the field.
    request.ifr_ifru.ifru_flags = 0x1 | 0x40;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the request is a valid `ifreq` that outlives the call.
    if unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const request) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Empties the capability bounding set. Past the last capability the kernel says `EINVAL`.
pub(super) fn drop_bounding_set() -> io::Result<()> {
    for capability in 0..64 as libc::c_ulong {
        // SAFETY: takes numbers only.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) };
        }
    }
    Ok(())
}

/// Installs a system-call filter on the calling thread, and sets nothing else: the kernel refuses it
/// without `no_new_privs` or the right to do without.
pub(super) fn install_filter(program: &[seccompiler::sock_filter]) -> io::Result<()> {
    let length = program.len().try_into().map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: both crates' `sock_filter` is the kernel's structure; the kernel copies the program,
    // which outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Marks every descriptor above 2 to be closed by the next `execve`.
pub(super) fn close_all_on_exec() -> io::Result<()> {
    // SAFETY: nothing is closed now; no descriptor above 2 is meant to outlive the execve.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves `fd` to `number`, open across the next `execve`. What is open there is closed: nothing may
/// own it any more.
pub(super) fn give(fd: OwnedFd, number: RawFd) -> io::Result<()> {
    let from = fd.into_raw_fd();
    let result = if from == number {
        // SAFETY: sets a flag of a descriptor that was ours until here.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) }
    } else {
        // SAFETY: `from` is open and ours; nothing owns `number`, as said above. The original is
        // closed by the execve.
        unsafe { libc::dup2(from, number) }
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes every descriptor above 2. For the very beginning, when the process has opened none itself.
pub(super) fn close_all_but_standard() -> io::Result<()> {
    // SAFETY: nothing in this process refers to a descriptor above 2 yet.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Default action for every signal, and none blocked.
pub(super) fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: sets the default action; numbers that cannot be set are refused by the kernel.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an initialised empty set is passed and outlives the call.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Ends the calling process by `signal`, as its child ended.
pub(super) fn die_by(signal: i32) {
    reset_signals();
    // SAFETY: takes a number only.
    unsafe { libc::raise(signal) };
}

/// Ends the calling process at once, running no exit handler of the process it was forked from.
pub(super) fn exit_now(code: u8) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(i32::from(code)) }
}
