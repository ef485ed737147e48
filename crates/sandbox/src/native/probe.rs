//! What this machine gives: found by making a sandbox, looking at it and removing it.

use std::fs;
use std::io::Read as _;

use cofferdam_run::engine::EngineKind;
use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};
use cofferdam_run::spec::Resources;

use super::{NativeEngine, prepare};
use crate::engine::{Engine as _, EngineReport, Problem, RootSource, SandboxSpec};
use crate::error::SandboxError;
use crate::spec::Hardening;

/// Makes a sandbox that runs nothing to speak of, and reports layer by layer.
pub(super) async fn probe(engine: &NativeEngine) -> EngineReport {
    let mut report = EngineReport {
        kind: EngineKind::Native,
        version: prepare::version(),
        usable: false,
        layers: Vec::new(),
        problems: Vec::new(),
    };
    match attempt(engine).await {
        Ok(layers) => {
            report.usable = true;
            report.problems = layers.iter().filter_map(problem).collect();
            report.layers = layers;
        }
        Err(error) => report.problems.push(failure(&error)),
    }
    report.layers.sort_by_key(|r| r.layer);
    report
}

async fn attempt(engine: &NativeEngine) -> Result<Vec<LayerReport>, SandboxError> {
    let (instance, run) = ids()?;
    let spec = SandboxSpec {
        run_dir: engine.config.runs_root.join(run.as_str()),
        run,
        instance,
        expires_at: TimestampMs(0),
        hardening: Hardening::for_run(&Resources::default()),
        guest_binary: engine.launcher()?,
        root: RootSource::HostUserland,
        shell_host: false,
    };
    let trial = engine.clone().with_command(&["/usr/bin/true"]);
    let prepared = trial.prepare(&spec).await?;
    let mut layers = prepared.evidence().read_back.clone();
    let mut running = prepared.start().await?;
    layers.append(&mut running.outside);
    let exit = running.control.wait().await;
    let outcome = running.control.teardown().await;
    if let cofferdam_run::fact::TeardownOutcome::Failed { detail } = outcome {
        return Err(SandboxError::Launch { stage: "remove the trial sandbox".to_owned(), detail });
    }
    if exit.code != Some(0) {
        return Err(SandboxError::Launch {
            stage: "run /usr/bin/true inside".to_owned(),
            detail: format!("{exit:?}"),
        });
    }
    Ok(layers)
}

/// Ids that no other trial has.
fn ids() -> Result<(InstanceId, RunId), SandboxError> {
    let path = std::path::Path::new("/dev/urandom");
    let mut bytes = [0u8; 15];
    fs::File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(super::io_error("read", path))?;
    let (mut instance, mut run) = ([0; 10], [0; 5]);
    instance.copy_from_slice(&bytes[..10]);
    run.copy_from_slice(&bytes[10..]);
    Ok((InstanceId::from_entropy(instance), RunId::from_entropy(run)))
}

/// What to do about a layer that is not there.
fn problem(report: &LayerReport) -> Option<Problem> {
    let (LayerStatus::Absent { reason } | LayerStatus::Degraded { reason }) = &report.status else {
        return None;
    };
    let fix = match report.layer {
        Layer::MemoryLimit | Layer::PidsLimit | Layer::CpuLimit => {
            "run as root, or give cofferdam its own cgroup: \
             systemd-run --user --scope -p Delegate=yes -- cofferdam run …"
        }
        Layer::Landlock => {
            "boot a kernel 6.2 or newer with landlock in its `lsm=` list, or accept the layer by name"
        }
        Layer::User => "run as root, or from an account without supplementary groups",
        _ => "report this together with the output of `uname -a`",
    };
    Some(Problem { what: format!("{}: {reason}", report.layer.as_str()), fix: fix.to_owned() })
}

/// What to do when no sandbox can be made at all.
fn failure(error: &SandboxError) -> Problem {
    let mut what = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        what = format!("{what}: {source}");
    }
    let fix = match error {
        // Where the kernel says no depends on the switch that is off; the way out does not.
        SandboxError::Launch { .. } => user_namespace_fix(),
        other => other.hint(),
    };
    Problem { what, fix }
}

/// Which of the usual switches keeps an ordinary user from making namespaces. Root lacks the right
/// only inside another container.
fn user_namespace_fix() -> String {
    let reads =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    if rustix::process::geteuid().is_root() {
        "run on the machine itself, not inside a container, or use the docker engine".to_owned()
    } else if reads("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "sudo sysctl -w kernel.unprivileged_userns_clone=1".to_owned()
    } else if reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0".to_owned()
    } else if reads("/proc/sys/user/max_user_namespaces", "0") {
        "sudo sysctl -w user.max_user_namespaces=15000".to_owned()
    } else {
        "run as root, or use the docker engine".to_owned()
    }
}
