//! From what the guest saw of itself to a report per layer.
//!
//! It never accepts a missing layer: that is the caller's decision, by name. A value that the guest
//! could not read counts as absent, not as fine.

use cofferdam_run::engine::EngineKind;
use std::os::unix::fs::MetadataExt as _;

use cofferdam_run::posture::{Attempt, Layer, LayerReport, LayerStatus, Probe};
use cofferdam_run::spec::Resources;
use cofferdam_wire::layout;

/// What the posture of a sandbox is, all observers together: the probe from inside, the engine's
/// read-back, and this host's look from outside.
///
/// A limit that cannot be seen from inside holds when the host saw it; whatever this host sees not to
/// hold does not, whatever the guest says.
#[must_use]
pub fn judge(
    engine: EngineKind,
    resources: &Resources,
    probe: &Probe,
    read_back: &[LayerReport],
    outside: &[LayerReport],
) -> Vec<LayerReport> {
    let mut layers = evaluate(engine, resources, probe);
    for report in &mut layers {
        let unseen = match report.layer {
            Layer::MemoryLimit => probe.memory_limit.is_none(),
            Layer::PidsLimit => probe.pids_limit.is_none(),
            Layer::CpuLimit => probe.cpu_millis.is_none(),
            _ => false,
        };
        let here = |seen: &&LayerReport| seen.layer == report.layer;
        let by_host =
            read_back.iter().chain(outside).filter(here).any(|seen| seen.status.is_enforced());
        if unseen && by_host {
            report.status = LayerStatus::Enforced;
        }
        if report.status.is_enforced()
            && let Some(seen) = outside.iter().filter(here).find(|seen| !seen.status.is_enforced())
        {
            report.status = seen.status.clone();
        }
    }
    layers
}

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
        (
            Layer::User | Layer::MemoryLimit | Layer::PidsLimit | Layer::CpuLimit,
            EngineKind::Podman,
        ) => {
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
        Layer::User => user(resources, probe),
        Layer::Capabilities => capabilities(engine, probe),
        Layer::NoNewPrivileges if probe.no_new_privs => LayerStatus::Enforced,
        Layer::NoNewPrivileges => absent("no_new_privs is not set"),
        Layer::Seccomp => seccomp(probe),
        Layer::Landlock => landlock(engine, probe),
        Layer::ReadOnlyRoot => read_only_root(engine, probe),
        Layer::Network => network(probe),
        Layer::Namespaces => namespaces(engine, probe),
        Layer::MemoryLimit => limit("memory", probe.memory_limit, resources.memory_bytes, " bytes"),
        Layer::PidsLimit => limit("process", probe.pids_limit, resources.pids, ""),
        Layer::CpuLimit => {
            limit("processor", probe.cpu_millis, resources.cpu_millis, " thousandths of a core")
        }
        Layer::Mounts => mounts(engine, probe),
    }
}

fn user(resources: &Resources, probe: &Probe) -> LayerStatus {
    if probe.uid != layout::UID || probe.gid != layout::UID {
        return absent(format!("runs as {}:{}", probe.uid, probe.gid));
    }
    // An id that is kept aside can be taken again.
    if [probe.uids, probe.gids] != [Some([layout::UID; 4]); 2] {
        return absent(format!("keeps other ids: {:?} and {:?}", probe.uids, probe.gids));
    }
    for (name, most) in [("nofile", resources.open_files), ("core", 1)] {
        let seen = probe.rlimits.iter().find(|limit| limit.name == name);
        if seen.is_none_or(|limit| limit.hard.is_none_or(|hard| hard > most)) {
            let seen = seen.map(|limit| limit.hard);
            return degraded(format!("its limit {name} is {seen:?}, asked for was {most}"));
        }
    }
    // In a user namespace the host's groups cannot be dropped; they show as the overflow id.
    let foreign: Vec<u32> = probe.groups.iter().copied().filter(|g| *g != layout::UID).collect();
    if foreign.is_empty() {
        LayerStatus::Enforced
    } else {
        degraded(format!("has supplementary groups {foreign:?}"))
    }
}

fn capabilities(engine: EngineKind, probe: &Probe) -> LayerStatus {
    const SETS: [&str; 5] = ["inheritable", "permitted", "effective", "bounding", "ambient"];
    let is_zero = |text: &str| u64::from_str_radix(text.trim(), 16) == Ok(0);
    // gVisor's kernel shows no ambient set: it has none, or one within these two. From any other kernel
    // a set that cannot be read counts as held.
    let [inheritable, permitted, ..] = &probe.capabilities;
    let no_room = |text: &str| {
        engine == EngineKind::Gvisor
            && text.is_empty()
            && is_zero(inheritable)
            && is_zero(permitted)
    };
    let held: Vec<&str> = SETS
        .into_iter()
        .zip(&probe.capabilities)
        .filter(|(name, text)| !(is_zero(text) || *name == "ambient" && no_room(text)))
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
        (Some(abi), _) if abi >= 1 => match write_at(probe, layout::TRIPWIRE) {
            Some(Attempt::Refused) => LayerStatus::Enforced,
            Some(Attempt::Done) => absent("a file was made where only Landlock refuses it"),
            tried => absent(format!("a write that only Landlock refuses was not tried: {tried:?}")),
        },
        (_, EngineKind::Native) => absent("the kernel does not enforce Landlock here"),
        (_, EngineKind::Gvisor) => absent(GVISOR_LANDLOCK),
        (_, EngineKind::Docker | EngineKind::Podman) => {
            absent("the guest could not restrict itself with Landlock")
        }
    }
}

/// What trying to make a file there, or opening it for writing, gave.
fn write_at(probe: &Probe, place: &str) -> Option<Attempt> {
    probe.writes.iter().find(|tried| tried.what == place).map(|tried| tried.result)
}

fn read_only_root(engine: EngineKind, probe: &Probe) -> LayerStatus {
    if !probe.root_read_only {
        return absent("the root mount is writable");
    }
    match (write_at(probe, "/"), engine) {
        // gVisor's kernel looks at the mode first.
        (Some(Attempt::ReadOnly), _) | (Some(Attempt::Refused), EngineKind::Gvisor) => {
            LayerStatus::Enforced
        }
        (Some(tried), _) => {
            absent(format!("making a file in / was not refused as read-only: {tried:?}"))
        }
        (None, _) => absent("nobody tried to write to it"),
    }
}

fn network(probe: &Probe) -> LayerStatus {
    let others: Vec<&str> =
        probe.interfaces_up.iter().map(String::as_str).filter(|name| *name != "lo").collect();
    if !others.is_empty() {
        return absent(format!("interfaces are up: {}", others.join(", ")));
    }
    let own: Vec<&str> =
        probe.addresses.iter().map(String::as_str).filter(|a| !is_loopback(a)).collect();
    if !own.is_empty() {
        return absent(format!("has addresses beyond loopback: {}", own.join(", ")));
    }
    if !probe.routes.is_empty() {
        return absent(format!("has routes to elsewhere: {}", probe.routes.join(", ")));
    }
    // The kernel makes some of its own in every namespace; whoever could bring one up could be up to
    // more. Named, so that nobody wonders.
    let down: Vec<&str> = probe
        .interfaces
        .iter()
        .map(String::as_str)
        .filter(|name| *name != "lo" && !OF_THE_KERNEL.contains(name))
        .collect();
    if down.is_empty() {
        LayerStatus::Enforced
    } else {
        degraded(format!("interfaces are there, and down: {}", down.join(", ")))
    }
}

/// Tunnels that modules of the kernel make in each new namespace, down and without a far end.
const OF_THE_KERNEL: [&str; 9] =
    ["erspan0", "gre0", "gretap0", "ip6_vti0", "ip6gre0", "ip6tnl0", "ip_vti0", "sit0", "tunl0"];

fn is_loopback(address: &str) -> bool {
    address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
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
    if let Some(reason) = shared_namespaces(engine, probe) {
        return absent(reason);
    }
    if probe.extra_descriptors.is_empty() {
        LayerStatus::Enforced
    } else {
        degraded(format!("open descriptors leaked in: {}", probe.extra_descriptors.join(", ")))
    }
}

/// Compares the guest's namespaces with this process's own. gVisor's are numbers of its own kernel.
fn shared_namespaces(engine: EngineKind, probe: &Probe) -> Option<String> {
    let kinds: &[&str] = match engine {
        EngineKind::Native => &["mnt", "uts", "ipc", "net", "pid", "cgroup"],
        // Where the engine leaves that of control groups out, `/proc` shows paths and nothing else.
        EngineKind::Docker | EngineKind::Podman => &["mnt", "uts", "ipc", "net", "pid"],
        EngineKind::Gvisor => &[],
    };
    for &kind in kinds {
        let Some(theirs) = probe.namespaces.iter().find(|ns| ns.kind == kind) else {
            return Some(format!("its {kind} namespace is not known"));
        };
        let own = std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|meta| meta.ino());
        if own.is_ok_and(|own| own == theirs.id) {
            return Some(format!("its {kind} namespace is the host's"));
        }
    }
    None
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
const WRITABLE_BY_DESIGN: [&str; 5] =
    [layout::WORK, layout::TMP, layout::TRIPWIRE, "/dev", "/proc"];

/// Where a file may be made.
const MADE_BY_DESIGN: [&str; 3] = [layout::WORK, layout::TMP, "/dev/shm"];

fn mounts(engine: EngineKind, probe: &Probe) -> LayerStatus {
    let done = |tried: &&cofferdam_run::posture::Tried| tried.result == Attempt::Done;
    if probe.writes.is_empty() || probe.masks.is_empty() || probe.mounts.is_empty() {
        return absent("nobody tried what is writable and what is hidden");
    }
    // The tripwire is Landlock's to tell about.
    let allowed = |place: &str| MADE_BY_DESIGN.contains(&place) || place == layout::TRIPWIRE;
    let written: Vec<&str> = probe
        .writes
        .iter()
        .filter(done)
        .map(|tried| tried.what.as_str())
        .filter(|place| !allowed(place))
        .collect();
    if !written.is_empty() {
        return absent(format!("could be written to: {}", written.join(", ")));
    }
    // gVisor has no `/proc` of the host's to hide.
    let shown: Vec<&str> =
        probe.masks.iter().filter(done).map(|tried| tried.what.as_str()).collect();
    if !shown.is_empty() && engine != EngineKind::Gvisor {
        return degraded(format!("shows of the machine: {}", shown.join(", ")));
    }
    // Everywhere else `no_new_privs` stands alone.
    let with_set_id: Vec<&str> = probe
        .mounts
        .iter()
        .filter(|mount| !mount.options.split(',').any(|option| option == "nosuid"))
        .map(|mount| mount.point.as_str())
        .collect();
    if !with_set_id.is_empty() && engine == EngineKind::Native {
        return degraded(format!("mounts honour set-user-id: {}", with_set_id.join(", ")));
    }
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
