//! Against the guest's supervisor, which runs as the same user: its memory, its descriptors, its
//! environment, its life, its limits, its share of the processor, its ports.

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
    row("supervisor.limit_of_processor_time", || limit(libc::RLIMIT_CPU), twins::lower_own_limit),
    row("supervisor.limit_of_file_size", || limit(libc::RLIMIT_FSIZE), twins::lower_own_limit),
    row("supervisor.limit_of_files", || limit(libc::RLIMIT_NOFILE), twins::lower_own_limit),
    row("supervisor.limit_of_a_thread", limit_by_thread, twins::lower_own_limit),
    row("supervisor.limit_of_first", limit_of_first, twins::lower_own_limit),
    row("supervisor.priority", priority, twins::be_nice),
    row("supervisor.priority_of_threads", priority_of_threads, twins::be_nice_by_number),
    row("supervisor.priority_of_group", priority_of_group, twins::be_nice),
    row("supervisor.priority_of_user", priority_of_user, twins::be_nice),
    row("supervisor.scheduler", scheduler, twins::schedule_self),
    row("supervisor.scheduler_attributes", scheduler_attributes, twins::schedule_self),
    row("supervisor.affinity", affinity, twins::schedule_self),
    row("supervisor.io_class", io_class, twins::schedule_self),
    row("supervisor.io_class_of_user", io_class_of_user, twins::schedule_self),
    row("supervisor.timer_slack", || write("timerslack_ns", "1"), twins::read_own_proc),
    row("supervisor.name", || write("comm", "x"), twins::read_own_proc),
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

fn write(file: &str, value: &str) -> Outcome {
    with_guest(|pid| Outcome::of(fs::write(format!("/proc/{pid}/{file}"), value), &CLOSED))
}

/// Sets the limit to what it is: through or not, the run goes on.
fn limit_of(pid: i32, resource: u32) -> Outcome {
    let mut limit = [0u64; 2];
    // SAFETY: a structure of two numbers, for reading and for writing.
    unsafe {
        libc::syscall(libc::SYS_prlimit64, pid, resource, 0usize, limit.as_mut_ptr());
        Outcome::call(libc::syscall(libc::SYS_prlimit64, pid, resource, limit.as_ptr(), 0usize))
    }
}

fn limit(resource: u32) -> Outcome {
    with_guest(|pid| limit_of(pid, resource))
}

/// The numbers of the supervisor's threads.
fn threads(pid: i32) -> Vec<i32> {
    fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .collect()
}

/// The first that gets through, or the last refusal.
fn each_thread(attempt: impl Fn(i32) -> Outcome) -> Outcome {
    with_guest(|pid| {
        let all = threads(pid);
        // One that knows of none has tried nothing.
        let mut last = Outcome::Through("no threads found: nothing was tried".to_owned());
        for thread in all {
            last = attempt(thread);
            if matches!(last, Outcome::Through(_)) {
                break;
            }
        }
        last
    })
}

fn limit_by_thread() -> Outcome {
    each_thread(|thread| limit_of(thread, libc::RLIMIT_CPU))
}

fn limit_of_first() -> Outcome {
    // An init that is ended takes the sandbox with it.
    limit_of(1, libc::RLIMIT_CPU)
}

/// The value that it has, so that nothing changes: the kernel's own answer is 20 minus it.
fn priority_of(which: i32, who: i32) -> Outcome {
    // SAFETY: takes numbers only.
    unsafe {
        let now = 20 - libc::syscall(libc::SYS_getpriority, which, who);
        Outcome::call(libc::syscall(libc::SYS_setpriority, which, who, now))
    }
}

fn priority() -> Outcome {
    with_guest(|pid| priority_of(0, pid))
}

fn priority_of_threads() -> Outcome {
    each_thread(|thread| priority_of(0, thread))
}

fn priority_of_group() -> Outcome {
    // The group can be joined where the session is one, and then it is the caller's own.
    with_guest(|pid| {
        // SAFETY: takes numbers only.
        unsafe { libc::setpgid(0, libc::getpgid(pid)) };
        priority_of(1, 0)
    })
}

fn priority_of_user() -> Outcome {
    priority_of(2, 0)
}

fn scheduler() -> Outcome {
    let parameter = 0i32;
    each_thread(|thread| {
        // SAFETY: a valid parameter; SCHED_OTHER is what it has.
        Outcome::call(unsafe {
            libc::syscall(
                libc::SYS_sched_setscheduler,
                thread,
                libc::SCHED_OTHER,
                &raw const parameter,
            )
        })
    })
}

fn scheduler_attributes() -> Outcome {
    each_thread(|thread| {
        let mut attributes = [0u32; 12];
        // SAFETY: 48 bytes, as said in the call and in the first number; they are set to what they are.
        Outcome::call(unsafe {
            libc::syscall(libc::SYS_sched_getattr, thread, attributes.as_mut_ptr(), 48, 0);
            attributes[0] = 48;
            libc::syscall(libc::SYS_sched_setattr, thread, attributes.as_ptr(), 0)
        })
    })
}

fn affinity() -> Outcome {
    each_thread(|thread| {
        let mut mask = [0u64; 16];
        // SAFETY: a mask of 128 bytes, which is set to what it is.
        Outcome::call(unsafe {
            libc::syscall(libc::SYS_sched_getaffinity, thread, 128, mask.as_mut_ptr());
            libc::syscall(libc::SYS_sched_setaffinity, thread, 128, mask.as_ptr())
        })
    })
}

fn io_class_of(which: i32, who: i32) -> Outcome {
    // SAFETY: takes numbers only.
    Outcome::call(unsafe { libc::syscall(libc::SYS_ioprio_set, which, who, 0) })
}

fn io_class() -> Outcome {
    each_thread(|thread| io_class_of(1, thread))
}

fn io_class_of_user() -> Outcome {
    // SAFETY: takes no arguments.
    io_class_of(3, unsafe { libc::getuid() }.cast_signed())
}

fn bind(port: u16) -> Outcome {
    match std::net::TcpListener::bind(("127.0.0.1", port)) {
        Ok(_) => Outcome::Through("bound".to_owned()),
        Err(error) if errno_of(&error) == libc::EADDRINUSE => Outcome::Refused("in use".to_owned()),
        Err(error) => Outcome::Through(errno_name(errno_of(&error))),
    }
}
