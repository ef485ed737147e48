//! The half that becomes the guest: from the fork to the `execve`.
//!
//! Order matters and is fixed here: limits before anything that costs, namespaces, the new root,
//! then privileges, then the filters; the host looks at the result; only then the guest's program.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;
use seccompiler::BpfProgram;

use super::second_net::{self, ShellHost};
use super::{Failure, Stage as _, privileges, report, root, sys};
use crate::native::handoff::{EXIT_EXEC, EXIT_NO_WORD, EXIT_SETUP, GO, LaunchReport, LaunchSpec};

/// The guest's environment: enough for a supervisor to find its tools. It gives the agent its own.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", cofferdam_wire::layout::HOME),
    ("TMPDIR", cofferdam_wire::layout::TMP),
    ("LANG", "C.UTF-8"),
    ("USER", "agent"),
];

/// Never returns to the parent's code.
pub(super) fn run(spec: &LaunchSpec, parent: OwnedFd) -> ! {
    let (ready, shell_host) = match prepare(spec, parent) {
        Ok(ready) => ready,
        Err(Failure { stage, detail }) => {
            report(&LaunchReport::Failed { stage, detail });
            sys::exit_now(EXIT_SETUP)
        }
    };
    report(&ready);
    if !told_to_go() {
        sys::exit_now(EXIT_NO_WORD);
    }
    if let Some(Err(Failure { stage, detail })) = shell_host.map(ShellHost::release) {
        let text = format!("cofferdam-launch: {stage}: {detail}\n");
        let _unread = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
        sys::exit_now(EXIT_SETUP)
    }
    let error = execute(&spec.command);
    let text = format!("cofferdam-launch: cannot execute {:?}: {error}\n", spec.command.first());
    let _unread = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
    sys::exit_now(EXIT_EXEC)
}

fn prepare(
    spec: &LaunchSpec,
    parent: OwnedFd,
) -> Result<(LaunchReport, Option<ShellHost>), Failure> {
    let hardening = &spec.hardening;
    await_release(&parent)?;
    rustix::process::setsid().stage("start a session")?;
    for directory in &spec.cgroups {
        // Zero names the writer itself.
        fs::write(directory.join("cgroup.procs"), "0")
            .stage(format!("join cgroup {}", directory.display()))?;
    }
    let own = hardening.namespaces;
    let mut namespaces = UnshareFlags::NEWNS;
    namespaces.set(UnshareFlags::NEWUTS, own.uts);
    namespaces.set(UnshareFlags::NEWIPC, own.ipc);
    namespaces.set(UnshareFlags::NEWNET, own.network);
    namespaces.set(UnshareFlags::NEWCGROUP, own.cgroup);
    sys::unshare(namespaces).stage("make namespaces")?;
    if own.uts {
        rustix::system::sethostname(hardening.hostname.as_bytes()).stage("set the host name")?;
    }
    if own.network {
        sys::loopback_up().stage("bring loopback up")?;
    }
    root::enter(spec, hardening)?;
    // Before there are two processes, so that both are in one domain, and while there are rights: the
    // kernel takes restrictions from whoever can gain nothing by them.
    let landlock = privileges::restrict_files(hardening)?;
    let filters = privileges::make_filters(hardening)?;
    let shell_host = spec
        .second_net
        .as_ref()
        .map(|second| second_net::fork(spec, second, &filters))
        .transpose()?;
    let groups_dropped = give_up(spec, &filters, Some(&parent))?;
    if let Some(shell_host) = &shell_host {
        shell_host.await_ready()?;
    }
    let seccomp_filters = filters.len();
    Ok((LaunchReport::Ready { landlock, seccomp_filters, groups_dropped }, shell_host))
}

/// Drops the user and its rights, then filters system calls. Says whether supplementary groups are
/// gone. With `parent` the process does not outlive it.
pub(super) fn give_up(
    spec: &LaunchSpec,
    filters: &[BpfProgram],
    parent: Option<&OwnedFd>,
) -> Result<bool, Failure> {
    let hardening = &spec.hardening;
    // As for Landlock: with `no_new_privs`, as in every run, or while there are still rights.
    if !hardening.no_new_privileges {
        filter(filters)?;
    }
    let groups_dropped = privileges::drop_user(spec.user_map.is_none(), hardening)?;
    if let Some(parent) = parent {
        // Only now: a change of credentials clears it. The pipe tells whether the parent died before.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
            .stage("ask for the parent's death")?;
        if parent_is_gone(parent) {
            sys::exit_now(EXIT_NO_WORD);
        }
    }
    if hardening.no_new_privileges {
        filter(filters)?;
    }
    Ok(groups_dropped)
}

/// The filters come last: nothing may be refused that still has to be done.
fn filter(filters: &[BpfProgram]) -> Result<(), Failure> {
    sys::close_all_on_exec().stage("close descriptors")?;
    sys::reset_signals();
    privileges::filter_calls(filters)
}

fn await_release(parent: &OwnedFd) -> Result<(), Failure> {
    let mut byte = [0u8; 1];
    loop {
        match rustix::io::read(parent, &mut byte) {
            Ok(1) => return Ok(()),
            Err(Errno::INTR) => {}
            // The parent failed and says so itself.
            _ => sys::exit_now(EXIT_NO_WORD),
        }
    }
}

fn parent_is_gone(parent: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(parent, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Takes exactly one byte: the next one is the guest's.
fn told_to_go() -> bool {
    let mut byte = [0u8; 1];
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut byte) {
            Ok(1) => return byte[0] == GO,
            Err(Errno::INTR) => {}
            _ => return false,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the launcher is the place that executes the guest")]
pub(super) fn execute(command: &[String]) -> std::io::Error {
    let Some((program, arguments)) = command.split_first() else {
        return std::io::Error::new(std::io::ErrorKind::InvalidInput, "an empty command");
    };
    let mut process = std::process::Command::new(Path::new(program));
    process.args(arguments).env_clear().envs(ENVIRONMENT).current_dir("/");
    process.exec()
}
