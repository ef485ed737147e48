//! The half that stays outside: makes the process-id namespace, lets its first process go, waits
//! for it, and ends it when the host has gone.
//!
//! It never reads what the guest writes.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use rustix::thread::UnshareFlags;

use super::sys::{self, Forked};
use super::{Failure, Stage as _, child};
use crate::native::handoff::{EXIT_SETUP, LaunchSpec, UserMap, files};
use crate::native::process::ProcessId;

pub(super) fn run(spec: &LaunchSpec) -> Result<ExitCode, Failure> {
    // Out of the host's session: a Ctrl-C at its terminal is for the host to handle. Fails only for
    // a group leader, which this is not when the engine starts it.
    let _leader = rustix::process::setsid();
    let host = spec.host.open().stage_none("find the host process")?;
    if let Some(map) = spec.user_map {
        enter_user_namespace(map)?;
    }
    if spec.hardening.namespaces.pid {
        sys::unshare(UnshareFlags::NEWPID).stage("make a process-id namespace")?;
    }
    // One byte lets the child go; its end tells that this process is gone.
    let (waiting, release) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).stage("make a pipe")?;
    match sys::fork().stage("fork")? {
        Forked::Child => {
            drop(release);
            child::run(spec, waiting)
        }
        Forked::Parent { child } => {
            drop(waiting);
            watch(spec, child, &host, release)
        }
    }
}

trait StageNone<T> {
    fn stage_none(self, stage: &str) -> Result<T, Failure>;
}

impl<T> StageNone<T> for Option<T> {
    fn stage_none(self, stage: &str) -> Result<T, Failure> {
        self.ok_or_else(|| Failure { stage: stage.to_owned(), detail: "it has gone".to_owned() })
    }
}

/// Maps the guest's uid and gid to the caller's own, and nothing else.
fn enter_user_namespace(map: UserMap) -> Result<(), Failure> {
    use cofferdam_wire::layout::UID;
    sys::unshare(UnshareFlags::NEWUSER).stage("make a user namespace")?;
    // Without this the kernel refuses a gid map from an ordinary user.
    fs::write("/proc/self/setgroups", "deny").stage("write setgroups")?;
    fs::write("/proc/self/uid_map", format!("{UID} {} 1", map.uid)).stage("write uid_map")?;
    fs::write("/proc/self/gid_map", format!("{UID} {} 1", map.gid)).stage("write gid_map")
}

fn watch(
    spec: &LaunchSpec,
    child: i32,
    host: &OwnedFd,
    // Open until the child is reaped: the child reads its end as this process's death.
    release: OwnedFd,
) -> Result<ExitCode, Failure> {
    let pid = Pid::from_raw(child).stage_none("name the child")?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).stage("open a handle on the child")?;
    let outcome = (|| {
        record(spec, child).stage("record the child")?;
        let null = File::options().write(true).open("/dev/null").stage("open /dev/null")?;
        // The guest's standard output must end when the guest does.
        rustix::stdio::dup2_stdout(&null).stage("let go of standard output")?;
        rustix::io::write(&release, &[1]).stage("let the child go")?;
        Ok(())
    })();
    if let Err(failure) = outcome {
        kill(&handle);
        reap(&handle);
        return Err(failure);
    }
    wait(spec.grace_ms, &handle, host);
    Ok(reap(&handle))
}

fn record(spec: &LaunchSpec, child: i32) -> io::Result<()> {
    let identity = ProcessId::of(child)?;
    let partial = spec.run_dir.join("child.json.part");
    let mut file = File::create(&partial)?;
    file.write_all(&serde_json::to_vec(&identity)?)?;
    fs::rename(partial, spec.run_dir.join(files::CHILD))
}

/// Returns when the child has ended, having killed it when the host had gone for `grace_ms`.
///
/// The host has gone when its process has ended, or when it holds neither end of standard input and
/// standard error any more.
fn wait(grace_ms: u64, child: &OwnedFd, host: &OwnedFd) {
    let (stdin, stderr) = (rustix::stdio::stdin(), rustix::stdio::stderr());
    let (mut input_gone, mut error_gone, mut host_gone) = (false, false, false);
    loop {
        let lost = host_gone || (input_gone && error_gone);
        let timeout = lost.then(|| Timespec {
            tv_sec: (grace_ms / 1000).try_into().unwrap_or(i64::MAX),
            tv_nsec: ((grace_ms % 1000) * 1_000_000).try_into().unwrap_or(0),
        });
        // A hung-up end would be reported again and again: each is watched until it is seen once,
        // and none of them once the grace runs.
        let mut watched = vec![(Watched::Child, PollFd::new(child, PollFlags::IN))];
        if !lost {
            watched.push((Watched::Host, PollFd::new(host, PollFlags::IN)));
            if !input_gone {
                watched.push((Watched::Input, PollFd::from_borrowed_fd(stdin, PollFlags::empty())));
            }
            if !error_gone {
                watched
                    .push((Watched::Error, PollFd::from_borrowed_fd(stderr, PollFlags::empty())));
            }
        }
        let (names, mut fds): (Vec<Watched>, Vec<PollFd<'_>>) = watched.into_iter().unzip();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return kill(child),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // Cannot happen with valid descriptors; without a watch the sandbox must not go on.
            Err(_) => return kill(child),
        }
        for (name, fd) in names.into_iter().zip(&fds) {
            if fd.revents().is_empty() {
                continue;
            }
            match name {
                Watched::Child => return,
                Watched::Host => host_gone = true,
                Watched::Input => input_gone = true,
                Watched::Error => error_gone = true,
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Watched {
    Child,
    Host,
    Input,
    Error,
}

/// Killing the first process of a process-id namespace kills all of it.
fn kill(child: &OwnedFd) {
    let _gone = pidfd_send_signal(child, Signal::KILL);
}

fn reap(child: &OwnedFd) -> ExitCode {
    loop {
        match waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => {
                if let Some(signal) = status.terminating_signal() {
                    sys::die_by(signal);
                }
                // Exit codes are eight bits wide.
                let code = status.exit_status().unwrap_or(0) & 0xff;
                return ExitCode::from(u8::try_from(code).unwrap_or(EXIT_SETUP));
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => return ExitCode::from(EXIT_SETUP),
        }
    }
}
