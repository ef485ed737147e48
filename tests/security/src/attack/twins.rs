//! Legal neighbours that several attempts share: what a toolchain does every day.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use crate::outcome::{Twin, works};

fn io<T>(result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

pub(super) fn fork_and_wait() -> Twin {
    // SAFETY: one thread; the child ends at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(7);
        }
        let mut status = 0;
        works(i64::from(libc::waitpid(child, &raw mut status, 0)))?;
        if libc::WEXITSTATUS(status) == 7 { Ok(()) } else { Err(format!("status {status}")) }
    }
}

pub(super) fn epoll() -> Twin {
    // SAFETY: takes a flag only.
    works(i64::from(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }))
}

pub(super) fn inotify() -> Twin {
    // SAFETY: takes a flag only.
    works(i64::from(unsafe { libc::inotify_init1(libc::IN_CLOEXEC) }))
}

pub(super) fn memory() -> Twin {
    // SAFETY: a fresh private mapping, touched within its size.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            1 << 20,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if at == libc::MAP_FAILED {
            return Err("mmap".to_owned());
        }
        *at.cast::<u8>() = 1;
    }
    Ok(())
}

pub(super) fn own_filter() -> Twin {
    // A program may restrict itself further: one instruction that allows everything.
    let step = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let mut steps = [step];
    let program = libc::sock_fprog { len: 1, filter: steps.as_mut_ptr() };
    // SAFETY: the program outlives the call.
    works(i64::from(unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    }))
}

pub(super) fn memfd() -> Twin {
    // SAFETY: a valid name.
    works(i64::from(unsafe { libc::memfd_create(c"twin".as_ptr(), libc::MFD_CLOEXEC) }))
}

pub(super) fn socket_pair() -> Twin {
    let (mut a, mut b) = io(UnixStream::pair())?;
    io(a.write_all(b"x"))?;
    io(b.read_exact(&mut [0]))
}

pub(super) fn loopback() -> Twin {
    let server = io(std::net::TcpListener::bind("127.0.0.1:0"))?;
    let address = io(server.local_addr())?;
    io(std::net::TcpStream::connect(address)).map(drop)
}

pub(super) fn udp_loopback() -> Twin {
    let one = io(std::net::UdpSocket::bind("127.0.0.1:0"))?;
    let to = io(one.local_addr())?;
    io(one.send_to(b"x", to)).map(drop)
}

pub(super) fn route_netlink() -> Twin {
    // SAFETY: takes numbers only.
    works(i64::from(unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
    }))
}

/// Creates, changes, renames and removes a file in each place where that is allowed.
pub(super) fn write_where_allowed() -> Twin {
    for place in ["/work", "/tmp", "/dev/shm"] {
        let (one, two) = (format!("{place}/.twin"), format!("{place}/.twin2"));
        io(fs::write(&one, b"x")).map_err(|error| format!("{place}: {error}"))?;
        io(fs::rename(&one, &two))?;
        io(fs::remove_file(&two))?;
    }
    Ok(())
}

pub(super) fn write_null() -> Twin {
    io(fs::write("/dev/null", b"x"))
}

pub(super) fn read_own_proc() -> Twin {
    for file in ["/proc/self/status", "/proc/cpuinfo", "/proc/meminfo", "/proc/self/environ"] {
        io(fs::read(file)).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(())
}

pub(super) fn fifo() -> Twin {
    let _old = fs::remove_file("/tmp/.twin-fifo");
    // SAFETY: a valid path.
    works(i64::from(unsafe { libc::mkfifo(c"/tmp/.twin-fifo".as_ptr(), 0o600) }))
}

/// A program that was copied to `/tmp` starts.
pub(super) fn exec_from_tmp() -> Twin {
    io(fs::copy("/proc/self/exe", "/tmp/.twin-exe"))?;
    let out = io(std::process::Command::new("/tmp/.twin-exe").arg("whoami").output())?;
    let _gone = fs::remove_file("/tmp/.twin-exe");
    if out.stdout.starts_with(b"euid ") { Ok(()) } else { Err(format!("{:?}", out.status)) }
}

/// A program in memory alone starts: some toolchains do that.
pub(super) fn exec_from_memory() -> Twin {
    use std::os::fd::FromRawFd as _;
    // SAFETY: a valid name; the descriptor goes to the file.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"twin".as_ptr(), 0);
        works(i64::from(fd))?;
        fs::File::from_raw_fd(fd)
    };
    io(file.write_all(&io(fs::read("/proc/self/exe"))?))?;
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let out = io(std::process::Command::new(path).arg("whoami").output())?;
    if out.stdout.starts_with(b"euid ") { Ok(()) } else { Err(format!("{:?}", out.status)) }
}

pub(super) fn signal_own_child() -> Twin {
    // SAFETY: the child only waits; it is killed and reaped.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::pause();
            libc::_exit(0);
        }
        works(i64::from(libc::kill(child, libc::SIGKILL)))?;
        works(i64::from(libc::waitpid(child, std::ptr::null_mut(), 0)))
    }
}

pub(super) fn lower_own_limit() -> Twin {
    // SAFETY: valid structures for reading and writing.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        works(i64::from(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit)))?;
        limit.rlim_cur = limit.rlim_cur.min(64);
        works(i64::from(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)))
    }
}

pub(super) fn be_nice() -> Twin {
    // SAFETY: takes numbers only.
    works(i64::from(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }))
}

/// As `renice` does it: a process named by its number.
pub(super) fn be_nice_by_number() -> Twin {
    // SAFETY: takes numbers only.
    works(i64::from(unsafe {
        libc::setpriority(libc::PRIO_PROCESS, libc::getpid().unsigned_abs(), 19)
    }))
}

/// Policy, processors and I/O class of this very thread, named by number as libraries do it, and of a
/// child.
pub(super) fn schedule_self() -> Twin {
    // SAFETY: valid structures; the child only waits, is killed and reaped.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::pause();
            libc::_exit(0);
        }
        let parameter = 0i32;
        let mut all = Ok(());
        for who in [libc::syscall(libc::SYS_gettid), i64::from(child), 0] {
            let mut mask = [0u64; 16];
            libc::syscall(libc::SYS_sched_getaffinity, who, 128, mask.as_mut_ptr());
            let (batch, class) = (libc::SCHED_BATCH, 2 << 13 | 7);
            all = all
                .and(works(libc::syscall(libc::SYS_sched_setaffinity, who, 128, mask.as_ptr())))
                .and(works(libc::syscall(
                    libc::SYS_sched_setscheduler,
                    who,
                    batch,
                    &raw const parameter,
                )))
                .and(works(libc::syscall(libc::SYS_ioprio_set, 1, who, class)));
        }
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        all
    }
}

pub(super) fn same_user() -> Twin {
    // SAFETY: takes numbers only.
    works(i64::from(unsafe { libc::setresuid(libc::getuid(), libc::geteuid(), libc::getuid()) }))
}

/// A pseudo terminal opens and carries bytes.
pub(super) fn terminal() -> Twin {
    let mut master = io(fs::File::options().read(true).write(true).open("/dev/ptmx"))?;
    io(master.write_all(b"x"))
}
