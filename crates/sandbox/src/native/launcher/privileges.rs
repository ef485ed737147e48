//! Giving up: limits, groups, user, capabilities, files and system calls, in that order.
//!
//! It never leaves a way back: what is dropped here cannot be regained by the guest's program.

use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
    Scope, path_beneath_rules,
};
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::BpfProgram;

use super::{Failure, Stage as _, sys};
use crate::native::handoff::LandlockOutcome;
use crate::spec::{Hardening, Writing};

/// The Landlock version whose rights are asked for. An older kernel gives what it knows, and the
/// report says so.
const LANDLOCK_ABI: ABI = ABI::V7;

/// Sets the process limits and becomes the unprivileged user with no capability. Says whether
/// supplementary groups are gone: in a user namespace of an ordinary user they cannot be dropped.
pub(super) fn drop_user(as_root: bool, hardening: &Hardening) -> Result<bool, Failure> {
    for limit in &hardening.rlimits {
        let resource = match &*limit.name {
            "nofile" => Resource::Nofile,
            "core" => Resource::Core,
            other => {
                return Err(Failure {
                    stage: "set process limits".to_owned(),
                    detail: format!("no limit is named {other}"),
                });
            }
        };
        lower(resource, limit.soft, limit.hard).stage(format!("limit {}", limit.name))?;
    }
    if !as_root {
        // Counted per user namespace since Linux 5.14, so that it bounds this sandbox alone. Before
        // that it counts all processes of the user, and would keep the guest from starting.
        if counts_processes_per_namespace() {
            lower(Resource::Nproc, hardening.limits.pids, hardening.limits.pids)
                .stage("limit nproc")?;
        }
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if as_root {
        rustix::thread::set_thread_groups(&[]).stage("drop groups")?;
    }
    if hardening.drop_all_capabilities {
        sys::drop_bounding_set().stage("empty the bounding set")?;
    }
    rustix::thread::clear_ambient_capability_set().stage("empty the ambient set")?;
    let (uid, gid) = (Uid::from_raw(hardening.uid), Gid::from_raw(hardening.gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).stage("set the group")?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).stage("set the user")?;
    if hardening.drop_all_capabilities {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).stage("drop capabilities")?;
    }
    if hardening.no_new_privileges {
        rustix::thread::set_no_new_privs(true).stage("set no_new_privs")?;
    }
    Ok(rustix::process::getgroups().stage("read groups")?.is_empty())
}

/// True from Linux 5.14 on.
pub(crate) fn counts_processes_per_namespace() -> bool {
    let kernel = rustix::system::uname();
    let release = kernel.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (5, 14),
        _ => false,
    }
}

/// Never raises a limit that the host already has lower.
fn lower(resource: Resource, soft: u64, hard: u64) -> rustix::io::Result<()> {
    let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let (soft, hard) = (soft.min(ceiling), hard.min(ceiling));
    setrlimit(resource, Rlimit { current: Some(soft), maximum: Some(hard) })
}

/// Refuses writing everywhere but in the listed trees, and signals and abstract sockets to the
/// outside.
pub(super) fn restrict_files(hardening: &Hardening) -> Result<LandlockOutcome, Failure> {
    let Some(asked) = &hardening.landlock else {
        return Ok(LandlockOutcome::None);
    };
    let all = AccessFs::from_write(LANDLOCK_ABI);
    let existing = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let of =
        |writing| asked.writable.iter().filter(move |r| r.writing == writing).map(|r| &*r.path);
    let status = Ruleset::default()
        .handle_access(all)
        .and_then(|r| if asked.scoped { r.scope(Scope::from_all(LANDLOCK_ABI)) } else { Ok(r) })
        .and_then(Ruleset::create)
        .and_then(|r| r.add_rules(path_beneath_rules(of(Writing::All), all)))
        .and_then(|r| r.add_rules(path_beneath_rules(of(Writing::Existing), existing)))
        // Set already, by itself and first: see `drop_user`.
        .and_then(|r| r.no_new_privs(false).restrict_self())
        .stage("restrict files with Landlock")?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => LandlockOutcome::Full,
        RulesetStatus::PartiallyEnforced => LandlockOutcome::Partial,
        RulesetStatus::NotEnforced => LandlockOutcome::None,
    })
}

/// The system-call filters, for every process of the sandbox: making them takes longer than all else
/// that the launcher does.
pub(super) fn make_filters(hardening: &Hardening) -> Result<Vec<BpfProgram>, Failure> {
    hardening.seccomp.to_seccompiler().stage("compile the system-call filter")
}

/// Installs them.
pub(super) fn filter_calls(filters: &[BpfProgram]) -> Result<(), Failure> {
    for program in filters {
        sys::install_filter(program).stage("install the system-call filter")?;
    }
    Ok(())
}
