//! From what the guest saw of itself to a report per layer.
//!
//! It never accepts a missing layer: that is the caller's decision, by name. A value that the guest
//! could not read counts as absent, not as fine.

use cofferdam_run::engine::EngineKind;
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus, Probe};
use cofferdam_run::spec::Resources;
use cofferdam_wire::layout;

/// Evaluates a probe, one report per layer in the order of [`Layer::ALL`].
#[must_use]
pub fn evaluate(engine: EngineKind, resources: &Resources, probe: &Probe) -> Vec<LayerReport> {
    Layer::ALL
        .into_iter()
        .map(|layer| LayerReport { layer, status: one(layer, engine, resources, probe) })
        .collect()
}

/// Why there is no Landlock under gVisor.
pub const GVISOR_LANDLOCK: &str = "gVisor's kernel has no Landlock; what it can reach of the host is the mounts that its gofer serves";

/// What a person can do about a layer that does not hold, one sentence.
#[must_use]
pub fn fix(engine: EngineKind, layer: Layer) -> String {
    let by_name = format!("accept it by name: `--accept-degraded {}`", layer.as_str());
    match (layer, engine) {
        (Layer::Landlock, EngineKind::Gvisor) => {
            format!("{by_name} (docs/engines.md says what stands in its place)")
        }
        (Layer::Landlock, _) => {
            format!("boot a kernel from 5.13 on with Landlock among its `lsm=`, or {by_name}")
        }
        (Layer::Seccomp, EngineKind::Gvisor) => {
            "add \"--oci-seccomp\" to the runtimeArgs of runsc in /etc/docker/daemon.json, then `sudo systemctl \
             reload docker`"
                .to_owned()
        }
        (Layer::Seccomp, EngineKind::Docker | EngineKind::Podman) => {
            "use a build of the engine with seccomp, as every distribution's is".to_owned()
        }
        (Layer::MemoryLimit | Layer::PidsLimit | Layer::CpuLimit, EngineKind::Native) => format!(
            "run it as root or under a delegated cgroup (`systemd-run --user --scope -p Delegate=yes cofferdam …`), \
             or {by_name}"
        ),
        (Layer::MemoryLimit | Layer::PidsLimit | Layer::CpuLimit, EngineKind::Podman) => {
            "use Podman's rootful socket (`sudo systemctl enable --now podman.socket`, podman.host = \
             \"unix:///run/podman/podman.sock\"), or boot with cgroup version 2 and delegate with \
             `sudo systemctl edit user@.service` (Delegate=cpu cpuset io memory pids)"
                .to_owned()
        }
        (
            Layer::MemoryLimit | Layer::PidsLimit | Layer::CpuLimit,
            EngineKind::Docker | EngineKind::Gvisor,
        ) => "add `cgroup_enable=memory swapaccount=1` to the kernel's command line (or use cgroup version 2) and \
              reboot; a rootless engine needs cgroup version 2 with delegation"
            .to_owned(),
        (
            Layer::User
            | Layer::Capabilities
            | Layer::NoNewPrivileges
            | Layer::Seccomp
            | Layer::ReadOnlyRoot
            | Layer::Network
            | Layer::Namespaces
            | Layer::Mounts,
            _,
        ) => format!("`cofferdam doctor` shows what the {engine} engine gives; use another engine, or {by_name}"),
    }
}

fn absent(reason: impl Into<String>) -> LayerStatus {
    LayerStatus::Absent { reason: reason.into() }
}

fn degraded(reason: impl Into<String>) -> LayerStatus {
    LayerStatus::Degraded { reason: reason.into() }
}

fn one(layer: Layer, engine: EngineKind, resources: &Resources, probe: &Probe) -> LayerStatus {
    match layer {
        Layer::User => user(probe),
        Layer::Capabilities => capabilities(probe),
        Layer::NoNewPrivileges if probe.no_new_privs => LayerStatus::Enforced,
        Layer::NoNewPrivileges => absent("no_new_privs is not set"),
        Layer::Seccomp => seccomp(probe),
        Layer::Landlock => landlock(engine, probe),
        Layer::ReadOnlyRoot if probe.root_read_only => LayerStatus::Enforced,
        Layer::ReadOnlyRoot => absent("the root mount is writable"),
        Layer::Network => network(probe),
        Layer::Namespaces => namespaces(engine, probe),
        Layer::MemoryLimit => limit("memory", probe.memory_limit, resources.memory_bytes, " bytes"),
        Layer::PidsLimit => limit("process", probe.pids_limit, resources.pids, ""),
        Layer::CpuLimit => {
            limit("processor", probe.cpu_millis, resources.cpu_millis, " thousandths of a core")
        }
        Layer::Mounts => mounts(probe),
    }
}

fn user(probe: &Probe) -> LayerStatus {
    if probe.uid != layout::UID || probe.gid != layout::UID {
        return absent(format!("runs as {}:{}", probe.uid, probe.gid));
    }
    // In a user namespace the host's groups cannot be dropped; they show as the overflow id.
    let foreign: Vec<u32> = probe.groups.iter().copied().filter(|g| *g != layout::UID).collect();
    if foreign.is_empty() {
        LayerStatus::Enforced
    } else {
        degraded(format!("has supplementary groups {foreign:?}"))
    }
}

fn capabilities(probe: &Probe) -> LayerStatus {
    const SETS: [&str; 5] = ["inheritable", "permitted", "effective", "bounding", "ambient"];
    let is_zero = |text: &str| u64::from_str_radix(text.trim(), 16) == Ok(0);
    let held: Vec<&str> = SETS
        .into_iter()
        .zip(&probe.capabilities)
        .filter(|(_, text)| !is_zero(text))
        .map(|(name, _)| name)
        .collect();
    if held.is_empty() {
        LayerStatus::Enforced
    } else {
        absent(format!("not empty or not readable: {}", held.join(", ")))
    }
}

fn seccomp(probe: &Probe) -> LayerStatus {
    if probe.seccomp_mode != 2 {
        return absent(format!("no filter is active (mode {})", probe.seccomp_mode));
    }
    if !probe.seccomp_admitted.is_empty() {
        return degraded(format!("the filter admits {}", probe.seccomp_admitted.join(", ")));
    }
    if probe.seccomp_denied.is_empty() {
        return degraded("a filter is active, but none of its denials was tried");
    }
    LayerStatus::Enforced
}

fn landlock(engine: EngineKind, probe: &Probe) -> LayerStatus {
    match (probe.landlock_abi, engine) {
        (Some(abi), _) if abi >= 1 => LayerStatus::Enforced,
        (_, EngineKind::Native) => absent("the kernel does not enforce Landlock here"),
        (_, EngineKind::Gvisor) => absent(GVISOR_LANDLOCK),
        (_, EngineKind::Docker | EngineKind::Podman) => {
            absent("the guest could not restrict itself with Landlock")
        }
    }
}

fn network(probe: &Probe) -> LayerStatus {
    let others: Vec<&str> =
        probe.interfaces_up.iter().map(String::as_str).filter(|name| *name != "lo").collect();
    if others.is_empty() {
        LayerStatus::Enforced
    } else {
        absent(format!("interfaces are up: {}", others.join(", ")))
    }
}

fn namespaces(engine: EngineKind, probe: &Probe) -> LayerStatus {
    // Native makes the guest the first process of its namespace; Docker puts an init before it, so
    // there a small number is what can be told from inside.
    let most = match engine {
        EngineKind::Native => 1,
        EngineKind::Docker | EngineKind::Podman | EngineKind::Gvisor => 64,
    };
    if probe.pid == 0 || probe.pid > most {
        return absent(format!("has process id {}", probe.pid));
    }
    if probe.extra_descriptors.is_empty() {
        LayerStatus::Enforced
    } else {
        degraded(format!("open descriptors leaked in: {}", probe.extra_descriptors.join(", ")))
    }
}

fn limit(what: &str, seen: Option<u64>, asked: u64, unit: &str) -> LayerStatus {
    match seen {
        None => absent(format!("no {what} limit can be seen")),
        Some(value) if value <= asked => LayerStatus::Enforced,
        Some(value) => {
            absent(format!("the {what} limit is {value}{unit}, asked for was {asked}{unit}"))
        }
    }
}

/// Mount points that are the sandbox's own and writable by design.
const WRITABLE_BY_DESIGN: [&str; 4] = [layout::WORK, layout::TMP, "/dev", "/proc"];

fn mounts(probe: &Probe) -> LayerStatus {
    let foreign = writable_beyond_design(probe.writable_mounts.iter().map(String::as_str));
    if foreign.is_empty() {
        LayerStatus::Enforced
    } else {
        absent(format!("writable: {}", foreign.join(", ")))
    }
}

/// Those of the writable mount points that no sandbox should have.
pub(crate) fn writable_beyond_design<'a>(points: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let is_own = |point: &str| {
        WRITABLE_BY_DESIGN.iter().any(|own| {
            point == *own || point.strip_prefix(own).is_some_and(|rest| rest.starts_with('/'))
        })
    };
    points.filter(|point| !is_own(point)).collect()
}

#[cfg(test)]
#[path = "posture_tests.rs"]
mod tests;
