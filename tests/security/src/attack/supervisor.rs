//! Against the guest's supervisor, which runs as the same user: its memory, its descriptors, its
//! environment, its life, its ports.

use std::fs::{self, File};

use super::twins;
use crate::outcome::{Outcome, errno_name, errno_of};
use crate::promise::Promise::{P3, P4};
use crate::table::{Attempt, Place};

const fn row(
    name: &'static str,
    attack: fn() -> Outcome,
    twin: fn() -> Result<(), String>,
) -> Attempt {
    Attempt::new(name, "supervisor", P4, attack, twin).at(Place::Product)
}

pub(crate) const TABLE: &[Attempt] = &[
    Attempt::new(
        "supervisor.environment",
        "supervisor",
        P3,
        || open("environ"),
        twins::read_own_proc,
    )
    .at(Place::Product)
    .case("S40"),
    Attempt::new("supervisor.memory", "supervisor", P3, || open("mem"), twins::read_own_proc)
        .at(Place::Product),
    row("supervisor.memory_map", || open("maps"), twins::read_own_proc),
    row("supervisor.descriptors", descriptors, twins::read_own_proc),
    row("supervisor.reopen_output", reopen, twins::write_null),
    row("supervisor.root_directory", root, twins::read_own_proc),
    row("supervisor.kill", || signal(0), twins::signal_own_child),
    row("supervisor.stop", || signal(libc::SIGSTOP), twins::signal_own_child),
    row("supervisor.pidfd_signal", pidfd_signal, twins::signal_own_child),
    row("supervisor.terminate_first", terminate_first, twins::signal_own_child),
    row("supervisor.ptrace_attach", attach, twins::fork_and_wait),
    row("supervisor.steal_descriptor", steal, twins::socket_pair),
    row("supervisor.write_oom_score", oom_score, twins::read_own_proc),
    row("supervisor.take_proxy_port", || bind(3128), twins::loopback),
    row("supervisor.take_model_port", || bind(3129), twins::loopback),
];

/// The supervisor's number; zero when it cannot be found.
fn guest() -> i32 {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .find_map(|entry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            line.starts_with(b"/cofferdam/guest").then_some(())?;
            entry.file_name().to_string_lossy().parse().ok()
        })
        .unwrap_or(0)
}

fn with_guest(attempt: impl FnOnce(i32) -> Outcome) -> Outcome {
    match guest() {
        0 => Outcome::Through("no supervisor found: nothing was tried".to_owned()),
        pid => attempt(pid),
    }
}

const CLOSED: [i32; 4] = [libc::EACCES, libc::EPERM, libc::EROFS, libc::ESRCH];

fn open(file: &str) -> Outcome {
    use std::io::Read as _;
    with_guest(|pid| {
        let read = File::open(format!("/proc/{pid}/{file}")).and_then(|mut f| f.read(&mut [0; 64]));
        match read {
            Ok(0) => Outcome::Refused("empty".to_owned()),
            other => Outcome::of(other, &CLOSED),
        }
    })
}

fn descriptors() -> Outcome {
    with_guest(|pid| Outcome::of(fs::read_dir(format!("/proc/{pid}/fd")), &CLOSED))
}

fn reopen() -> Outcome {
    // Its standard output is the link: whoever writes there speaks for the supervisor.
    with_guest(|pid| {
        Outcome::of(File::options().write(true).open(format!("/proc/{pid}/fd/1")), &CLOSED)
    })
}

fn root() -> Outcome {
    with_guest(|pid| Outcome::of(fs::read_dir(format!("/proc/{pid}/root/")), &CLOSED))
}

fn signal(number: i32) -> Outcome {
    with_guest(|pid| {
        // SAFETY: takes numbers only.
        let outcome = Outcome::call(i64::from(unsafe { libc::kill(pid, number) }));
        if matches!(outcome, Outcome::Through(_)) {
            // SAFETY: as above. The run must go on to report this.
            unsafe { libc::kill(pid, libc::SIGCONT) };
        }
        outcome
    })
}

fn pidfd_signal() -> Outcome {
    with_guest(|pid| {
        // SAFETY: takes numbers and a null pointer.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            Outcome::call(libc::syscall(libc::SYS_pidfd_send_signal, fd, 0, 0usize, 0))
        }
    })
}

fn terminate_first() -> Outcome {
    // SAFETY: takes numbers only. An init that forwards it would end the supervisor; 0 asks only.
    Outcome::call(i64::from(unsafe { libc::kill(1, 0) }))
}

fn attach() -> Outcome {
    with_guest(|pid| {
        // PTRACE_SEIZE, which does not stop it.
        // SAFETY: takes numbers only.
        Outcome::call(unsafe { libc::syscall(libc::SYS_ptrace, 0x4206, pid, 0, 0) })
    })
}

fn steal() -> Outcome {
    with_guest(|pid| {
        // SAFETY: takes numbers only.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            Outcome::call(libc::syscall(libc::SYS_pidfd_getfd, fd, 1, 0))
        }
    })
}

fn oom_score() -> Outcome {
    with_guest(|pid| {
        let path = format!("/proc/{pid}/oom_score_adj");
        Outcome::of(File::options().write(true).open(path), &CLOSED)
    })
}

fn bind(port: u16) -> Outcome {
    match std::net::TcpListener::bind(("127.0.0.1", port)) {
        Ok(_) => Outcome::Through("bound".to_owned()),
        Err(error) if errno_of(&error) == libc::EADDRINUSE => Outcome::Refused("in use".to_owned()),
        Err(error) => Outcome::Through(errno_name(errno_of(&error))),
    }
}
