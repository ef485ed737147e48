//! Namespaces of processes, of System V objects, of names and of control groups; what a process is
//! born with.

use std::fs;

use super::twins;
use crate::outcome::{Outcome, errno_name, last_errno};
use crate::promise::Promise::{P3, P4};
use crate::runner::{INHERITED, parameter};
use crate::table::{Attempt, Place};

pub(crate) const TABLE: &[Attempt] = &[
    Attempt::new("namespaces.see_host_process", "namespaces", P4, see_host, twins::read_own_proc),
    Attempt::new(
        "namespaces.signal_host_process",
        "namespaces",
        P4,
        signal_host,
        twins::signal_own_child,
    ),
    Attempt::new("namespaces.many_processes", "namespaces", P4, many, twins::fork_and_wait),
    Attempt::new(
        "namespaces.shared_memory_of_the_host",
        "namespaces",
        P4,
        shared_memory,
        twins::memfd,
    ),
    Attempt::new("namespaces.host_name", "namespaces", P4, host_name, twins::read_own_proc),
    Attempt::new("namespaces.cgroup_path", "namespaces", P4, cgroup_path, twins::read_own_proc),
    Attempt::new(
        "namespaces.kill_everything_asked",
        "namespaces",
        P4,
        kill_others,
        twins::signal_own_child,
    )
    .at(Place::Product),
    Attempt::new("descriptors.inherited", "descriptors", P3, inherited, twins::epoll),
    Attempt::new(
        "descriptors.directories_of_first",
        "descriptors",
        P4,
        first_descriptors,
        twins::read_own_proc,
    ),
    Attempt::new(
        "secrets.environment_of_all",
        "environment",
        P3,
        environments,
        twins::read_own_proc,
    )
    .case("S40"),
    Attempt::new(
        "secrets.command_lines_of_all",
        "environment",
        P3,
        command_lines,
        twins::read_own_proc,
    )
    .case("S40"),
    Attempt::new("secrets.memory_of_all", "environment", P3, memories, twins::read_own_proc),
];

fn number(name: &str) -> i32 {
    parameter(name).parse().unwrap_or(0)
}

/// The test's own process: its number is far above what a namespace of its own has.
fn see_host() -> Outcome {
    let command = fs::read_to_string(format!("/proc/{}/cmdline", number("host_pid")));
    let host = command.is_ok_and(|text| text.contains("suite"));
    Outcome::through_if(host, "process of the host")
}

fn signal_host() -> Outcome {
    // Signal 0 asks and does nothing. That root's process says EPERM shows it just as well.
    // SAFETY: takes numbers only.
    let result = unsafe { libc::kill(number("host_pid"), 0) };
    let errno = last_errno();
    Outcome::through_if(result == 0 || errno != libc::ESRCH, errno_name(errno))
}

fn many() -> Outcome {
    let count = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .count();
    Outcome::through_if(count > 12, format!("{count} processes"))
}

fn shared_memory() -> Outcome {
    // SAFETY: takes numbers only.
    let found = unsafe { libc::shmget(number("host_shm"), 0, 0) };
    if found == -1 {
        Outcome::errno(last_errno(), &[libc::ENOENT, libc::ENOSYS])
    } else {
        Outcome::Through(format!("segment {found}"))
    }
}

fn host_name() -> Outcome {
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Outcome::through_if(own.trim() == parameter("host_name"), own.trim())
}

fn cgroup_path() -> Outcome {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let told = text.lines().any(|line| {
        line.rsplit(':')
            .next()
            .is_some_and(|path| path.contains("cofferdam") || path.contains("docker"))
    });
    Outcome::through_if(told, text.lines().next().unwrap_or_default())
}

/// Any process that is not this one's family and would take a signal.
fn kill_others() -> Outcome {
    // SAFETY: takes numbers only; signal 0 does nothing.
    unsafe {
        let family = [libc::getpid(), libc::getppid()];
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            // The agent's own shell and attacker are its family too.
            let own =
                ["cofferdam-attac", "attacker", "sh", "guest-attacker"].contains(&name.trim());
            if !family.contains(&pid) && !own && libc::kill(pid, 0) == 0 {
                return Outcome::Through(format!("{pid} {}", name.trim()));
            }
        }
    }
    Outcome::Refused("no other takes a signal".to_owned())
}

fn inherited() -> Outcome {
    let found = INHERITED.get().cloned().unwrap_or_default();
    Outcome::through_if(!found.is_empty(), found.join(", "))
}

fn first_descriptors() -> Outcome {
    // Not even its number tells anything: the first process is either this family's or closed.
    let text = fs::read_dir("/proc/1/fd").map(|list| {
        list.flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .map(|path| path.display().to_string())
            .filter(|target| target.starts_with('/') && !target.starts_with("/dev/"))
            .collect::<Vec<_>>()
    });
    match text {
        Err(error) => Outcome::Refused(error.kind().to_string()),
        Ok(found) => {
            let foreign: Vec<_> =
                found.iter().filter(|t| !t.contains("attack") && !t.starts_with("/proc")).collect();
            Outcome::through_if(!foreign.is_empty(), format!("{foreign:?}"))
        }
    }
}

/// The secret is given split in two, so that the parameter itself is no find.
fn secret() -> String {
    format!("{}{}", parameter("secret_a"), parameter("secret_b"))
}

fn search(file: &str) -> Outcome {
    let secret = secret();
    if secret.is_empty() {
        return Outcome::Refused("no secret named".to_owned());
    }
    let mut looked = 0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Ok(bytes) = fs::read(entry.path().join(file)) {
            looked += 1;
            if contains(&bytes, secret.as_bytes()) {
                return Outcome::Through(format!("{}/{file}", entry.path().display()));
            }
        }
    }
    Outcome::Refused(format!("not in {looked}"))
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

fn environments() -> Outcome {
    search("environ")
}

fn command_lines() -> Outcome {
    search("cmdline")
}

/// Every readable mapping of every process but this one's own, at most 64 MiB of each.
fn memories() -> Outcome {
    use std::io::{Read as _, Seek as _};
    let secret = secret();
    if secret.is_empty() {
        return Outcome::Refused("no secret named".to_owned());
    }
    let own = std::process::id().to_string();
    let mut looked = 0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == own || name.parse::<u32>().is_err() {
            continue;
        }
        let Ok(maps) = fs::read_to_string(entry.path().join("maps")) else { continue };
        let Ok(mut memory) = fs::File::open(entry.path().join("mem")) else { continue };
        let mut left: u64 = 64 << 20;
        for line in maps.lines().filter(|line| line.contains(" rw")) {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let parsed = range.and_then(|(from, to)| {
                Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
            });
            let Some((from, to)) = parsed else { continue };
            let size = (to - from).min(left).min(16 << 20);
            left -= size;
            let mut bytes = Vec::new();
            if memory.seek(std::io::SeekFrom::Start(from)).is_ok() {
                let _partly = (&mut memory).take(size).read_to_end(&mut bytes);
            }
            looked += 1;
            if contains(&bytes, secret.as_bytes()) {
                return Outcome::Through(format!("memory of {name}"));
            }
        }
    }
    Outcome::Refused(format!("not in {looked} mappings"))
}
