//! What the supervisor does to itself before anything else runs.
//!
//! Must never weaken anything: each step only takes something away, and one that the kernel does
//! not know is reported by the probe instead of being assumed.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, set_child_subreaper, set_dumpable_behavior};

use crate::limits::AGENT_OOM_SCORE;
use crate::log;

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
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        log::line(&format!("still dumpable: {error}"));
    }
    // Whoever loses its parent becomes a child of this process, so that nothing of the agent can
    // get out of reach.
    if let Err(error) = set_child_subreaper(Some(rustix::process::getpid())) {
        log::line(&format!("not the parent of orphans: {error}"));
    }
    match restrict_files(writable) {
        Ok(abi) => abi,
        Err(error) => {
            log::line(&format!("no Landlock: {error}"));
            None
        }
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
/// the supervisor although both have one uid (where the kernel knows how).
#[expect(unsafe_code, reason = "must happen in the child, before its program runs")]
pub(crate) fn agent(command: &mut tokio::process::Command) {
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
    // allocate nor lock: it makes two system calls on an open ruleset and closes it.
    unsafe {
        command.pre_exec(move || {
            if let Some(scope) = scope.take() {
                // Best effort, as said above; the supervisor's own restriction stays either way.
                let _ = scope.restrict_self();
            }
            Ok(())
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
