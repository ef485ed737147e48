//! Compares what the engine says it configured with what it was asked for, in full.
//!
//! A difference is a layer that does not hold, with what was seen; a setting that belongs to no layer and
//! differs, or that nobody asked for ([`beyond`]), keeps the container from being started at all. It must
//! never count a field that the engine left out as agreement: a layer that it does not show enough of is
//! left out of the answer. Landlock is never in it: the guest applies it, and its probe reports it.

use std::collections::BTreeSet;

use bollard::models::{
    ContainerInspectResponse, HostConfig, HostConfigCgroupnsModeEnum, MountType,
};
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};

use super::beyond;
use super::create::Asked;
use super::probe::Facts;
use super::profile;
use super::words::{MASK, Shown};

/// What came of the comparison.
#[derive(Debug)]
pub(crate) struct ReadBack {
    /// Layer by layer.
    pub(crate) layers: Vec<LayerReport>,
    /// Differences that belong to no layer; the container must not be started with any of them.
    pub(crate) other: Vec<String>,
}

/// Differences found for one layer.
#[derive(Default)]
pub(super) struct Differences(pub(super) Vec<String>);

impl Differences {
    pub(super) fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, asked: T, seen: T) {
        if asked != seen {
            self.0.push(format!("{what} is {seen:?}, asked for was {asked:?}"));
        }
    }

    pub(super) fn empty<T: std::fmt::Debug>(&mut self, what: &str, seen: Option<&Vec<T>>) {
        if let Some(list) = seen
            && !list.is_empty()
        {
            self.0.push(format!("{what} is {list:?}, asked for was none"));
        }
    }

    fn into_status(self) -> LayerStatus {
        if self.0.is_empty() {
            LayerStatus::Enforced
        } else {
            LayerStatus::Absent { reason: super::call::cut(&self.0.join("; ")) }
        }
    }
}

/// Compares. `warnings` are the engine's own words at creation.
pub(crate) fn compare(
    asked: &Asked,
    shown: &Shown,
    warnings: &[String],
    facts: &Facts,
) -> ReadBack {
    let seen = &shown.container;
    let none = HostConfig::default();
    let want = asked.body.host_config.as_ref().unwrap_or(&none);
    let have = seen.host_config.as_ref().unwrap_or(&none);
    let layers = [
        (Layer::User, user(asked, seen, want, have)),
        (Layer::Capabilities, capabilities(want, have)),
        (Layer::NoNewPrivileges, no_new_privileges(have)),
        (Layer::Seccomp, seccomp(asked, want, have, facts)),
        (Layer::ReadOnlyRoot, read_only_root(have)),
        (Layer::Network, network(want, seen, have)),
        (Layer::Namespaces, namespaces(want, have)),
        (Layer::MemoryLimit, memory(want, have)),
        (Layer::PidsLimit, pids(want, have)),
        (Layer::CpuLimit, cpu(want, have)),
        (Layer::Mounts, mounts(asked, seen, want, have)),
    ]
    .into_iter()
    .map(|(layer, differences)| {
        let status = differences.into_status();
        let status = weakened(layer, status, warnings, facts);
        LayerReport { layer, status: without_swap(layer, status, want, have) }
    })
    .filter(|report| !(report.status.is_enforced() && shown.untold.contains(&report.layer)))
    .collect();
    ReadBack { layers, other: other(asked, shown, want, have, facts) }
}

/// What the engine said about limits that it cannot give, now or in general, beats what it shows.
fn weakened(layer: Layer, status: LayerStatus, warnings: &[String], facts: &Facts) -> LayerStatus {
    if !status.is_enforced() {
        return status;
    }
    // The engine's words for "in force, but swap comes on top"; told by the next step.
    let only_swap = |text: &str| text.to_lowercase().contains("memory limited without swap");
    let mut warnings = warnings.iter().filter(|text| !only_swap(text));
    if let Some(warning) = warnings.find(|text| concerns(layer, text)) {
        return LayerStatus::Absent { reason: super::call::cut(warning) };
    }
    facts.limit(layer)
}

/// A memory limit that does not cover swap holds in part.
fn without_swap(
    layer: Layer,
    status: LayerStatus,
    want: &HostConfig,
    have: &HostConfig,
) -> LayerStatus {
    if layer != Layer::MemoryLimit || !status.is_enforced() || want.memory_swap == have.memory_swap
    {
        return status;
    }
    let seen = have.memory_swap.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
    LayerStatus::Degraded { reason: format!("the limit on memory and swap together is {seen}") }
}

/// Whether a warning speaks of a layer's limit. Engines word these differently; a warning that names
/// no limit but says that limits are ignored concerns all three.
pub(crate) fn concerns(layer: Layer, warning: &str) -> bool {
    let text = warning.to_lowercase();
    let all = text.contains("resource limits");
    match layer {
        Layer::MemoryLimit => all || text.contains("memory") || text.contains("swap"),
        Layer::PidsLimit => all || text.contains("pids"),
        Layer::CpuLimit => all || text.contains("cpu"),
        Layer::Seccomp => text.contains("seccomp"),
        Layer::User
        | Layer::Capabilities
        | Layer::NoNewPrivileges
        | Layer::Landlock
        | Layer::ReadOnlyRoot
        | Layer::Network
        | Layer::Namespaces
        | Layer::Mounts => false,
    }
}

fn user(
    asked: &Asked,
    seen: &ContainerInspectResponse,
    want: &HostConfig,
    have: &HostConfig,
) -> Differences {
    let mut found = Differences::default();
    let config = seen.config.as_ref();
    found.same("user", asked.body.user.as_ref(), config.and_then(|c| c.user.as_ref()));
    found.empty("supplementary groups", have.group_add.as_ref());
    let limits = |config: &HostConfig| -> BTreeSet<(Option<String>, Option<i64>, Option<i64>)> {
        config.ulimits.iter().flatten().map(|l| (l.name.clone(), l.soft, l.hard)).collect()
    };
    found.same("per-process limits", limits(want), limits(have));
    found
}

fn capabilities(want: &HostConfig, have: &HostConfig) -> Differences {
    let mut found = Differences::default();
    // Podman answers with the list that `ALL` stands for; a list can miss one, so it does not do.
    found.same("dropped capabilities", want.cap_drop.as_ref(), have.cap_drop.as_ref());
    found.empty("added capabilities", have.cap_add.as_ref());
    found.same("privileged", Some(false), have.privileged);
    found
}

fn options(config: &HostConfig) -> &[String] {
    config.security_opt.as_deref().unwrap_or_default()
}

fn no_new_privileges(have: &HostConfig) -> Differences {
    let mut found = Differences::default();
    let on = |text: &String| {
        text == "no-new-privileges"
            || text == "no-new-privileges:true"
            || text == "no-new-privileges=true"
    };
    if !options(have).iter().any(on) {
        found.0.push("no-new-privileges is not among the security options".to_owned());
    }
    found
}

fn seccomp(asked: &Asked, want: &HostConfig, have: &HostConfig, facts: &Facts) -> Differences {
    let mut found = Differences::default();
    let profiles = |config: &HostConfig| -> Vec<serde_json::Value> {
        options(config)
            .iter()
            .filter_map(|text| {
                text.strip_prefix("seccomp=").or_else(|| text.strip_prefix("seccomp:"))
            })
            .map(|text| {
                serde_json::from_str(text)
                    .unwrap_or_else(|_| serde_json::Value::String(text.to_owned()))
            })
            .collect()
    };
    if profiles(want) != profiles(have) {
        found.0.push("the profile is not the one that was asked for".to_owned());
    }
    if let Some(file) = &asked.profile
        && !profile::holds(&file.place, &file.content)
    {
        found.0.push(format!("{} was changed while the engine read it", file.place.display()));
    }
    if !facts.seccomp {
        found.0.push("the engine does not list seccomp among its security options".to_owned());
    }
    found
}

fn read_only_root(have: &HostConfig) -> Differences {
    let mut found = Differences::default();
    found.same("read-only root", Some(true), have.readonly_rootfs);
    found
}

fn network(want: &HostConfig, seen: &ContainerInspectResponse, have: &HostConfig) -> Differences {
    let mut found = Differences::default();
    found.same("network mode", Some("none"), have.network_mode.as_deref());
    found.same("name servers", want.dns.as_ref(), have.dns.as_ref());
    found.same("search domains", want.dns_search.as_ref(), have.dns_search.as_ref());
    found.empty("resolver options", have.dns_options.as_ref());
    let networks = seen.network_settings.as_ref().and_then(|n| n.networks.as_ref());
    let joined: Vec<&String> =
        networks.into_iter().flatten().map(|(name, _)| name).filter(|n| *n != "none").collect();
    found.empty("joined networks", Some(&joined));
    if have.port_bindings.as_ref().is_some_and(|ports| !ports.is_empty())
        || have.publish_all_ports == Some(true)
    {
        found.0.push("ports are published".to_owned());
    }
    found.empty("extra hosts", have.extra_hosts.as_ref());
    found.empty("links", have.links.as_ref());
    found
}

fn namespaces(want: &HostConfig, have: &HostConfig) -> Differences {
    let mut found = Differences::default();
    let own = |mode: Option<&String>| mode.is_none_or(|m| m.is_empty() || m == "private");
    for (what, mode) in
        [("pid", &have.pid_mode), ("uts", &have.uts_mode), ("user", &have.userns_mode)]
    {
        if !own(mode.as_ref()) {
            found.0.push(format!("the {what} namespace is {mode:?}"));
        }
    }
    // `none` and `private` are both a namespace of its own; which one is asked for differs by engine.
    let ipc = want.ipc_mode.as_deref().filter(|mode| matches!(*mode, "none" | "private"));
    found.same("ipc mode", ipc.or(Some("none")), have.ipc_mode.as_deref());
    found.same("cgroup parent", "", have.cgroup_parent.as_deref().unwrap_or_default());
    found.same("cgroup namespace", Some(HostConfigCgroupnsModeEnum::PRIVATE), have.cgroupns_mode);
    found
}

fn memory(want: &HostConfig, have: &HostConfig) -> Differences {
    let mut found = Differences::default();
    found.same("memory", want.memory, have.memory);
    if have.oom_kill_disable == Some(true) {
        found.0.push("the out-of-memory killer is off".to_owned());
    }
    found
}

fn pids(want: &HostConfig, have: &HostConfig) -> Differences {
    let mut found = Differences::default();
    found.same("process limit", want.pids_limit, have.pids_limit);
    found
}

fn cpu(want: &HostConfig, have: &HostConfig) -> Differences {
    let mut found = Differences::default();
    found.same("processor quota", want.cpu_quota, have.cpu_quota);
    found.same("processor period", want.cpu_period, have.cpu_period);
    if let Some(nano @ 1..) = have.nano_cpus {
        found.0.push(format!("a second processor limit is set: {nano}"));
    }
    found
}

fn mounts(
    asked: &Asked,
    seen: &ContainerInspectResponse,
    want: &HostConfig,
    have: &HostConfig,
) -> Differences {
    let mut found = Differences::default();
    let mut work = 0;
    for mount in seen.mounts.iter().flatten() {
        let at = mount.destination.as_deref().unwrap_or_default();
        let is_work = at == asked.target()
            && mount.typ.as_deref() == Some("volume")
            && mount.name.as_deref() == Some(asked.volume.as_str());
        // Newer engines list the tmpfs mounts here as well; the map below is what is compared.
        let is_tmpfs = mount.typ.as_deref() == Some("tmpfs")
            && want.tmpfs.as_ref().is_some_and(|all| all.contains_key(at));
        if is_work {
            work += 1;
            found.same("writable /work", Some(true), mount.rw);
        } else if !is_tmpfs {
            found.0.push(format!("{at:?} is mounted ({:?})", mount.typ));
        }
    }
    found.same("mounts of the run's volume", 1, work);
    found.same("tmpfs", want.tmpfs.as_ref(), have.tmpfs.as_ref());
    let kinds: Vec<_> =
        have.mounts.iter().flatten().filter(|m| m.typ != Some(MountType::VOLUME)).collect();
    found.empty("mounts of another kind", Some(&kinds));
    found.empty("binds", have.binds.as_ref());
    found.empty("volumes of other containers", have.volumes_from.as_ref());
    found.empty("devices", have.devices.as_ref());
    found.empty("device rules", have.device_cgroup_rules.as_ref());
    found.empty("device requests", have.device_requests.as_ref());
    let set = |list: Option<&Vec<String>>| -> BTreeSet<String> {
        list.into_iter().flatten().cloned().collect()
    };
    found.same("masked paths", set(want.masked_paths.as_ref()), set(have.masked_paths.as_ref()));
    found.same(
        "read-only paths",
        set(want.readonly_paths.as_ref()),
        set(have.readonly_paths.as_ref()),
    );
    found
}

/// What has no layer of its own, but was asked for and must be so.
fn other(
    asked: &Asked,
    shown: &Shown,
    want: &HostConfig,
    have: &HostConfig,
    facts: &Facts,
) -> Vec<String> {
    let mut found = Differences::default();
    let seen = &shown.container;
    let body = &asked.body;
    let Some(config) = &seen.config else {
        return vec!["the engine shows no configuration".to_owned()];
    };
    found.same("entrypoint", body.entrypoint.as_ref(), config.entrypoint.as_ref());
    found.empty("arguments", config.cmd.as_ref());
    if body.hostname.is_some() {
        found.same("host name", body.hostname.as_ref(), config.hostname.as_ref());
    }
    found.same("working directory", body.working_dir.as_ref(), config.working_dir.as_ref());
    found.same("terminal", body.tty, config.tty);
    found.same("open input", body.open_stdin, config.open_stdin);
    if shown.tells_input {
        found.same("input of one client", body.stdin_once, config.stdin_once);
    }
    found.same("image", body.image.as_deref(), seen.image.as_deref());
    let is_added = |variable: &&String| {
        let name = variable.split('=').next().unwrap_or_default();
        shown.added_variables.contains(&name)
    };
    let variables: BTreeSet<&String> =
        config.env.iter().flatten().filter(|variable| !is_added(variable)).collect();
    found.same("environment", asked.environment.iter().collect(), variables);
    if config
        .healthcheck
        .as_ref()
        .and_then(|c| c.test.as_deref())
        .is_some_and(|test| test.first().is_some_and(|first| first != "NONE"))
    {
        found.0.push("the engine would run a health check inside".to_owned());
    }
    found.empty("volumes of the image", config.volumes.as_ref());
    found.empty("build steps", config.on_build.as_ref());
    let expected: BTreeSet<&str> = options(want).iter().map(|text| kind_of(text)).collect();
    let others: Vec<&String> =
        options(have).iter().filter(|text| !expected.contains(kind_of(text))).collect();
    found.empty("more security options", Some(&others));
    let runtime = want.runtime.as_ref().or(facts.default_runtime.as_ref());
    if have.runtime.is_some() || want.runtime.is_some() {
        found.same("runtime", runtime, have.runtime.as_ref());
    }
    beyond::look(have, &mut found);
    for (label, value) in body.labels.iter().flatten() {
        let there = config.labels.as_ref().and_then(|all| all.get(label));
        found.same(label, Some(value), there);
    }
    found.same("init", want.init, have.init);
    let log = |config: &HostConfig| config.log_config.as_ref().and_then(|log| log.typ.clone());
    found.same("log driver", log(want), log(have));
    let restart =
        |config: &HostConfig| config.restart_policy.as_ref().and_then(|policy| policy.name);
    found.same("restart policy", restart(want), restart(have));
    found.same("removal by the engine", want.auto_remove, have.auto_remove);
    found.0
}

/// A security option without its value.
fn kind_of(option: &str) -> &str {
    if option.starts_with(MASK) {
        return MASK;
    }
    option.split(['=', ':']).next().unwrap_or(option)
}

#[cfg(test)]
#[path = "readback_tests.rs"]
mod tests;
