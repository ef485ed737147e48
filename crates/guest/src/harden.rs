//! What the supervisor does to itself before anything else runs.
//!
//! Must never weaken anything: each step only takes something away, and one that the kernel does
//! not know is reported by the probe instead of being assumed.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;

use cofferdam_wire::layout;
use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, set_child_subreaper, set_dumpable_behavior};

use crate::limits::AGENT_OOM_SCORE;
use crate::log;
use crate::untouchable::Untouchable;

/// Newest Landlock version whose rights are known here; older kernels give fewer.
const ABI_KNOWN: ABI = ABI::V5;

/// Makes the process unreadable for others of its uid, the parent of every orphan, and unable (with
/// all its children) to write outside `writable`. Returns the Landlock version in force.
///
/// Must be called while the process has one thread: the restriction is per thread and inherited.
pub(crate) fn myself(writable: &[PathBuf]) -> Option<i32> {
    if let Err(error) = open_oom_score() {
        log::line(&format!("memory may run out for the supervisor first: {error}"));
    }
    hide();
    // Whoever loses its parent becomes a child of this process, so that nothing of the agent can
    // get out of reach.
    if let Err(error) = set_child_subreaper(Some(rustix::process::getpid())) {
        log::line(&format!("not the parent of orphans: {error}"));
    }
    let abi = match restrict_files(writable) {
        Ok(abi) => abi,
        Err(error) => {
            log::line(&format!("no Landlock: {error}"));
            None
        }
    };
    if let Err(error) = refuse_unknown_calls(layout::LAST_KNOWN_CALL) {
        log::line(&format!("system calls newer than the profile are let through: {error}"));
    }
    abi
}

/// Refuses, with `ENOSYS`, every system call past `last_known`, the x32 range, and `clone3`, whose flags no
/// filter can read: for this thread and all that it starts, for good. The native launcher has done so
/// before; a profile that other engines take can only speak of calls by name, and gVisor answers
/// it with another error, on which no program falls back to `clone`.
#[expect(unsafe_code, reason = "no safe wrapper installs a filter")]
fn refuse_unknown_calls(last_known: u32) -> std::io::Result<()> {
    // Classic BPF: `LD|W|ABS`, `JMP|JGT|K` and `RET|K` of <linux/bpf_common.h>.
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_GREATER: u16 = 0x25;
    const CLONE3: u32 = 435;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        // Offset 0 of `struct seccomp_data` is the call's number.
        step(LOAD, 0, 0, 0),
        step(JUMP_EQUAL, 1, 0, CLONE3),
        step(JUMP_GREATER, 0, 1, last_known),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs()),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 5, filter: program.as_mut_ptr() };
    // SAFETY: the program has five steps and outlives the call, which copies it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Makes the process unreadable for others of its uid: memory, environment, descriptors.
pub(crate) fn hide() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        log::line(&format!("still dumpable: {error}"));
    }
}

/// The same as [`myself`] and [`agent`] together for the shell host, whose commands are the agent's:
/// they cannot signal or trace anything but one another, and go first when memory runs out. Orphans
/// stay the supervisor's. What else is not theirs to touch comes with the supervisor's word.
pub(crate) fn shell_host(writable: &[PathBuf]) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", AGENT_OOM_SCORE) {
        log::line(&format!("memory may run out for the supervisor first: {error}"));
    }
    hide();
    if let Err(error) = restrict_files(writable) {
        log::line(&format!("no Landlock: {error}"));
    }
    let scope = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::Signal)
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self);
    if let Err(error) = scope {
        log::line(&format!("commands can signal the agent: {error}"));
    }
}

/// Gives the agent's process the descriptor `channel` as number [`layout::SHELL_FD`], which must be
/// taken in this process by something that is not needed in the agent's.
#[expect(unsafe_code, reason = "must happen in the child, before its program runs")]
pub(crate) fn give_channel(command: &mut tokio::process::Command, channel: OwnedFd) {
    // SAFETY: runs between fork and exec in a process that had several threads, so it may neither
    // allocate nor lock: it makes one system call on a descriptor that the closure owns.
    unsafe {
        command.pre_exec(move || {
            // Never equal, as said above, so that the new one stays open across the exec.
            match libc::dup2(channel.as_raw_fd(), layout::SHELL_FD) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            }
        });
    }
}

fn restrict_files(writable: &[PathBuf]) -> Result<Option<i32>, landlock::RulesetError> {
    let all = AccessFs::from_all(ABI_KNOWN);
    let read = AccessFs::from_read(ABI_KNOWN);
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .create()?
        .add_rules(path_beneath_rules(["/"], read))?
        .add_rules(path_beneath_rules(writable, all))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => kernel_abi(),
        RulesetStatus::NotEnforced => None,
    })
}

/// What every process of the agent gets on top, between fork and exec: it cannot signal or trace
/// the supervisor although both have one uid (where the kernel knows how), nor touch the limits and
/// the scheduling of `others`.
#[expect(unsafe_code, reason = "must happen in the child, before its program runs")]
pub(crate) fn agent(command: &mut tokio::process::Command, others: &Untouchable) {
    let mut filter = others.filter();
    let scope = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::Signal)
        .and_then(Ruleset::create);
    let mut scope = match scope {
        Ok(scope) => Some(scope),
        Err(error) => {
            log::line(&format!("the agent can signal the supervisor: {error}"));
            None
        }
    };
    // SAFETY: runs between fork and exec in a process that had several threads, so it may neither
    // allocate nor lock: it makes two system calls on an open ruleset and closes it, and two more with
    // a filter that is ready.
    unsafe {
        command.pre_exec(move || {
            if let Some(scope) = scope.take() {
                // Best effort, as said above; the supervisor's own restriction stays either way.
                let _ = scope.restrict_self();
            }
            // No agent without it.
            filter.install()
        });
    }
}

/// This process's own score, opened while the kernel still lets it, with the value at the start.
static OOM_SCORE: OnceLock<(File, String)> = OnceLock::new();

fn open_oom_score() -> std::io::Result<()> {
    let path = "/proc/self/oom_score_adj";
    let at_start = std::fs::read_to_string(path)?;
    let file = File::options().write(true).open(path)?;
    // Set once, before anything else runs; a second call changes nothing.
    let _ = OOM_SCORE.set((file, at_start));
    Ok(())
}

/// Starts a process that, with all that it starts itself, is the first to go when memory runs out:
/// the supervisor must live on to save the work. It inherits the score, so that there is no moment
/// in which it has another.
pub(crate) fn first_to_go<T>(start: impl FnOnce() -> T) -> T {
    let write = |value: &str| match OOM_SCORE.get() {
        Some((file, _)) => {
            let mut file: &File = file;
            if let Err(error) = file.write_all(value.as_bytes()) {
                log::line(&format!("memory may run out for the supervisor first: {error}"));
            }
        }
        None => log::line("memory may run out for the supervisor first: no score"),
    };
    write(AGENT_OOM_SCORE);
    let started = start();
    write(OOM_SCORE.get().map_or("0", |(_, at_start)| at_start.trim()));
    started
}

/// The version that the kernel says it has.
#[expect(unsafe_code, reason = "no safe wrapper tells the version")]
fn kernel_abi() -> Option<i32> {
    const CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with the version flag the kernel takes a null attribute of size zero, reads no
    // memory, and creates nothing.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    i32::try_from(version).ok().filter(|v| *v > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(unsafe_code, reason = "the call itself is what is tested")]
    fn landlock_version() -> (i64, i32) {
        // SAFETY: with the version flag the kernel reads no memory and creates nothing.
        let got = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0usize, 0usize, 1u32) };
        (got, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    #[test]
    fn a_call_past_the_last_known_one_is_refused_and_those_before_it_work() {
        // A filter is its thread's own: the rest of the tests go on without.
        let inside = std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            let number = u32::try_from(libc::SYS_landlock_create_ruleset).unwrap();
            refuse_unknown_calls(number).unwrap();
            let (_, still) = landlock_version();
            refuse_unknown_calls(number - 1).unwrap();
            (still, landlock_version())
        });
        let (still, (got, errno)) = inside.join().unwrap();
        assert_ne!(still, libc::ENOSYS, "this kernel has no call to test with");
        assert_eq!((got, errno), (-1, libc::ENOSYS));
    }
}
