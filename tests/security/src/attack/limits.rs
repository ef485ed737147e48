//! Exhaustion, in a sandbox whose limits are so tight that a small attempt meets them. Each attempt has
//! a bound of its own far below what would trouble the machine: past it, it counts as through.

use std::fs::{self, File};
use std::io::Write as _;

use super::twins;
use crate::outcome::{Outcome, Twin, errno_of, last_errno};
use crate::promise::Promise::P5;
use crate::table::{Attempt, Place};

const fn row(
    name: &'static str,
    layer: &'static str,
    attack: fn() -> Outcome,
    twin: fn() -> Twin,
) -> Attempt {
    Attempt::new(name, layer, P5, attack, twin).at(Place::Tight)
}

pub(crate) const TABLE: &[Attempt] = &[
    row("exhaust.processes", "pids_limit", processes, twins::fork_and_wait).case("S82"),
    row("exhaust.threads", "pids_limit", threads, one_thread).case("S82"),
    row("exhaust.zombies", "pids_limit", zombies, twins::fork_and_wait),
    row("exhaust.memory", "memory_limit", memory, twins::memory).case("S83"),
    row("exhaust.memory_in_memfd", "memory_limit", memory_in_memfd, twins::memfd).case("S83"),
    row("exhaust.shared_memory", "memory_limit", sysv, twins::memory),
    row("exhaust.tmp_bytes", "tmpfs", || fill("/tmp", 32 << 20), twins::write_where_allowed)
        .case("S80"),
    row("exhaust.tmp_files", "tmpfs", files, twins::write_where_allowed).case("S80"),
    row("exhaust.shm_bytes", "tmpfs", || fill("/dev/shm", 32 << 20), twins::write_where_allowed)
        .case("S80"),
    row("exhaust.open_files", "rlimits", open_files, twins::epoll),
    row("exhaust.dev_bytes", "read_only_root", || fill("/dev", 1 << 20), twins::write_null)
        .case("S80"),
];

/// More than any tight limit, less than any machine minds.
const MANY: usize = 300;

fn is_wall(errno: i32) -> Outcome {
    Outcome::errno(errno, &[libc::EAGAIN, libc::ENOMEM])
}

/// Forks children that wait, or end and are not reaped.
fn fork_many(child_waits: bool) -> Outcome {
    let mut children = Vec::new();
    let mut outcome = Outcome::Through(format!("{MANY} processes"));
    for _ in 0..MANY {
        // SAFETY: one thread; a child waits or ends at once, and all are killed and reaped below.
        let child = unsafe { libc::fork() };
        match child {
            0 => {
                // SAFETY: the child's own end.
                unsafe {
                    if child_waits {
                        libc::pause();
                    }
                    libc::_exit(0)
                }
            }
            -1 => {
                outcome = is_wall(last_errno());
                break;
            }
            child => children.push(child),
        }
    }
    for child in children {
        // SAFETY: own children, not reaped yet.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
    outcome
}

fn processes() -> Outcome {
    fork_many(true)
}

fn zombies() -> Outcome {
    fork_many(false)
}

fn threads() -> Outcome {
    for _ in 0..MANY {
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(|| {
            std::thread::sleep(std::time::Duration::from_secs(60));
        });
        if let Err(error) = thread {
            return is_wall(errno_of(&error));
        }
    }
    Outcome::Through(format!("{MANY} threads"))
}

fn one_thread() -> Twin {
    std::thread::spawn(|| ()).join().map_err(|_| "thread".to_owned())
}

/// Runs `take` in a process of its own and sees whether it lives to the end of it.
fn until_killed(take: impl FnOnce()) -> Outcome {
    // SAFETY: one thread; the child ends at once after its work and is reaped.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            // It goes first, so that the one who tells of it stays.
            let _first = fs::write("/proc/self/oom_score_adj", "1000");
            take();
            libc::_exit(0);
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL {
            Outcome::Refused("killed for memory".to_owned())
        } else if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
            Outcome::Through("lived".to_owned())
        } else {
            Outcome::Refused(format!("status {status}"))
        }
    }
}

/// Four times the tight limit.
const MEMORY: usize = 256 << 20;

/// Touches every page.
fn touch(place: *mut u8) {
    for offset in (0..MEMORY).step_by(4096) {
        // SAFETY: within the mapping of `MEMORY` bytes.
        unsafe { place.add(offset).write_volatile(1) };
    }
}

fn memory() -> Outcome {
    until_killed(|| {
        // SAFETY: a fresh private mapping.
        let place = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                MEMORY,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if place == libc::MAP_FAILED {
            // SAFETY: ends this child with a word of its own.
            unsafe { libc::_exit(3) };
        }
        touch(place.cast());
    })
}

fn memory_in_memfd() -> Outcome {
    until_killed(|| {
        use std::os::fd::FromRawFd as _;
        // SAFETY: a valid name; the descriptor goes to the file.
        let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"fill".as_ptr(), 0)) };
        let block = vec![1; 1 << 20];
        for _ in 0..MEMORY >> 20 {
            if file.write_all(&block).is_err() {
                // SAFETY: ends this child with a word of its own.
                unsafe { libc::_exit(3) };
            }
        }
    })
}

fn sysv() -> Outcome {
    until_killed(|| {
        // SAFETY: a fresh segment, removed as soon as nobody has it.
        unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, MEMORY, libc::IPC_CREAT | 0o600);
            let place = libc::shmat(id, std::ptr::null(), 0);
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            if id < 0 || place as isize == -1 {
                libc::_exit(3);
            }
            touch(place.cast());
        }
    })
}

fn fill(directory: &str, most: usize) -> Outcome {
    let path = format!("{directory}/.fill");
    let fill = || -> std::io::Result<()> {
        let mut file = File::create(&path)?;
        let block = vec![1; 64 << 10];
        for _ in 0..most / block.len() {
            file.write_all(&block)?;
        }
        Ok(())
    };
    let filled = fill();
    let _gone = fs::remove_file(&path);
    Outcome::of(filled, &[libc::ENOSPC, libc::EROFS, libc::EACCES, libc::EPERM])
}

fn files() -> Outcome {
    const MOST: usize = 4000;
    let _made = fs::create_dir("/tmp/.many");
    let made = (0..MOST).try_for_each(|n| File::create(format!("/tmp/.many/{n}")).map(drop));
    let _gone = fs::remove_dir_all("/tmp/.many");
    Outcome::of(made, &[libc::ENOSPC])
}

fn open_files() -> Outcome {
    const MOST: usize = 3000;
    let opened: std::io::Result<Vec<File>> = (0..MOST).map(|_| File::open("/dev/null")).collect();
    Outcome::of(opened, &[libc::EMFILE])
}
