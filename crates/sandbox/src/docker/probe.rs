//! What an engine says of itself.
//!
//! It must never report a limit as given that the engine's own information denies.

use bollard::models::SystemInfo;
use cofferdam_run::engine::EngineKind;
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};

use super::address::Contact;
use super::call::{self, CALL_TIMEOUT, Client};
use super::flavour::Flavour;
use super::readback;
use crate::engine::{EngineReport, Problem};
use crate::error::SandboxError;
use crate::posture;

/// Longest version text, characters; the rest is cut.
const MAX_VERSION: usize = 200;
/// Most warnings of an engine that are passed on; the rest is dropped.
pub const MAX_WARNINGS: usize = 32;

/// What matters of an engine, read once when it is connected to.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The engine.
    pub(crate) flavour: Flavour,
    /// For people.
    pub(crate) version: String,
    /// Runtime of containers that ask for none.
    pub(crate) default_runtime: Option<String>,
    /// The runtime that is asked for is one that the engine knows.
    runtime_known: bool,
    /// It filters system calls.
    pub(crate) seccomp: bool,
    memory: Option<String>,
    swap: Option<String>,
    pids: Option<String>,
    cpu: Option<String>,
    rlimits: Option<String>,
    rootless: bool,
    version_1: bool,
    is_linux: bool,
    warnings: Vec<String>,
}

impl Facts {
    /// Asks the engine.
    pub(crate) async fn read(
        client: &Client,
        contact: &Contact,
        flavour: &Flavour,
    ) -> Result<Self, SandboxError> {
        let info = client
            .ask(CALL_TIMEOUT, client.docker.info())
            .await
            .map_err(|error| error.during("read the engine's information"))?;
        let mut facts = Self::from_info(&info, contact.api, flavour);
        // Podman's answer to this question does not say it: the socket of a rootless one is its user's.
        if flavour.is_podman() && contact.owner.is_some_and(|uid| uid != 0) {
            facts.is_rootless();
        }
        Ok(facts)
    }

    fn is_rootless(&mut self) {
        self.rootless = true;
        self.version.push_str(", rootless");
        if self.version_1 {
            // It says otherwise, and then ignores every limit without an error.
            let reason =
                || Some("a rootless engine enforces no limits on cgroup version 1".to_owned());
            (self.memory, self.pids, self.cpu) = (reason(), reason(), reason());
            self.rlimits = Some("it leaves out the limits per process, too".to_owned());
        }
    }

    pub(super) fn from_info(info: &SystemInfo, api: (usize, usize), flavour: &Flavour) -> Self {
        let text = |value: Option<String>| {
            value.filter(|v| !v.is_empty()).unwrap_or_else(|| "unknown".to_owned())
        };
        let driver = text(info.cgroup_driver.map(|d| d.to_string()));
        let hierarchy = text(info.cgroup_version.map(|v| v.to_string()));
        let storage = text(info.driver.clone());
        let options = info.security_options.clone().unwrap_or_default();
        let has = |name: &str| {
            options.iter().any(|o| o.split(',').any(|part| part == format!("name={name}")))
        };
        let rootless = has("rootless");
        let version: String = format!(
            "{flavour} {} (API {}.{}, cgroup v{hierarchy} by {driver}, storage {storage}{})",
            text(info.server_version.clone()),
            api.0,
            api.1,
            if rootless { ", rootless" } else { "" },
        )
        .chars()
        .take(MAX_VERSION)
        .collect();
        // An engine without a cgroup driver limits nothing, whatever else it says.
        let lacking = |given: Option<bool>, what: &str| match given {
            _ if driver == "none" => {
                Some("the engine uses no cgroups, so it enforces no limits".to_owned())
            }
            Some(true) => None,
            Some(false) => Some(format!("the engine says that it has no {what}")),
            None => Some(format!("the engine does not say whether it has a {what}")),
        };
        let runtime_known = flavour.runtime.as_ref().is_none_or(|name| {
            info.runtimes.as_ref().is_some_and(|known| known.contains_key(name))
        });
        Self {
            flavour: flavour.clone(),
            version,
            default_runtime: info.default_runtime.clone().filter(|name| !name.is_empty()),
            runtime_known,
            version_1: hierarchy == "1",
            seccomp: has("seccomp"),
            memory: lacking(info.memory_limit, "memory limit"),
            swap: lacking(info.swap_limit, "swap limit"),
            pids: lacking(info.pids_limit, "process limit"),
            cpu: lacking(info.cpu_cfs_quota, "processor limit"),
            rlimits: None,
            rootless,
            is_linux: info.os_type.as_deref().is_none_or(|os| os == "linux"),
            warnings: info
                .warnings
                .iter()
                .flatten()
                .take(MAX_WARNINGS)
                .map(|w| call::cut(w))
                .collect(),
        }
    }

    /// How far a limit can hold on this engine at all; enforced for layers that it always gives.
    pub(crate) fn limit(&self, layer: Layer) -> LayerStatus {
        let missing = match layer {
            Layer::MemoryLimit => self.memory.as_ref(),
            Layer::PidsLimit => self.pids.as_ref(),
            Layer::CpuLimit => self.cpu.as_ref(),
            Layer::User => self.rlimits.as_ref(),
            Layer::Capabilities
            | Layer::NoNewPrivileges
            | Layer::Seccomp
            | Layer::Landlock
            | Layer::ReadOnlyRoot
            | Layer::Network
            | Layer::Namespaces
            | Layer::Mounts => None,
        };
        if let Some(reason) = missing {
            return LayerStatus::Absent { reason: reason.clone() };
        }
        match (&self.swap, layer) {
            (Some(reason), Layer::MemoryLimit) => LayerStatus::Degraded { reason: reason.clone() },
            _ => LayerStatus::Enforced,
        }
    }

    /// Refuses an engine that lacks the runtime, before anything is created on it.
    pub(crate) fn require_runtime(&self) -> Result<(), SandboxError> {
        match &self.flavour.runtime {
            Some(name) if !self.runtime_known => Err(SandboxError::Unavailable {
                engine: self.flavour.kind,
                reason: format!("the Docker engine knows no runtime {name:?}"),
                fix: runtime_fix(name),
            }),
            _ => Ok(()),
        }
    }

    /// The report for `doctor`.
    pub(crate) fn report(&self) -> EngineReport {
        let layers: Vec<LayerReport> = Layer::ALL
            .into_iter()
            // The guest applies Landlock itself and reports it when it starts.
            .filter(|layer| *layer != Layer::Landlock)
            .map(|layer| LayerReport {
                layer,
                status: if layer == Layer::Seccomp && !self.seccomp {
                    LayerStatus::Absent { reason: "the engine lists no seccomp support".to_owned() }
                } else {
                    self.limit(layer)
                },
            })
            .collect();
        let mut problems = Vec::new();
        if self.flavour.own_kernel() {
            problems.push(Problem {
                what: format!("landlock: {}", posture::GVISOR_LANDLOCK),
                fix: posture::fix(self.flavour.kind, Layer::Landlock),
            });
        }
        for report in &layers {
            if let LayerStatus::Absent { reason } | LayerStatus::Degraded { reason } =
                &report.status
            {
                problems.push(Problem {
                    what: format!("{}: {reason}", report.layer.as_str()),
                    fix: self.fix(report.layer),
                });
            }
        }
        if let Err(error) = self.require_runtime() {
            problems.push(Problem { what: error.to_string(), fix: error.hint() });
        }
        if !self.is_linux {
            problems.push(Problem {
                what: "the engine runs containers of another system than Linux".to_owned(),
                fix: "switch it to Linux containers".to_owned(),
            });
        }
        for warning in &self.warnings {
            let told = layers
                .iter()
                .any(|l| !l.status.is_enforced() && readback::concerns(l.layer, warning));
            if concerns_a_limit(warning) && !told {
                problems.push(Problem {
                    what: warning.clone(),
                    fix: "see the engine's own documentation of this warning".to_owned(),
                });
            }
        }
        EngineReport {
            kind: self.flavour.kind,
            version: self.version.clone(),
            usable: self.is_linux && self.runtime_known,
            layers,
            problems,
        }
    }

    fn fix(&self, layer: Layer) -> String {
        if layer == Layer::Seccomp {
            return "use a Docker build with seccomp, as every distribution's is".to_owned();
        }
        if self.rootless {
            if self.flavour.is_podman() && self.version_1 {
                return "use the rootful socket (`sudo systemctl enable --now podman.socket`, podman.host = \
                        \"unix:///run/podman/podman.sock\"), or boot with `systemd.unified_cgroup_hierarchy=1`"
                    .to_owned();
            }
            return "rootless engines limit resources only under cgroup v2 with systemd: boot with \
                    `systemd.unified_cgroup_hierarchy=1` and delegate with \
                    `sudo systemctl edit user@.service` (Delegate=cpu cpuset io memory pids)"
                .to_owned();
        }
        "add `cgroup_enable=memory swapaccount=1` to the kernel's command line (or use cgroup v2) and reboot".to_owned()
    }
}

fn concerns_a_limit(warning: &str) -> bool {
    [Layer::MemoryLimit, Layer::PidsLimit, Layer::CpuLimit, Layer::Seccomp]
        .into_iter()
        .any(|layer| readback::concerns(layer, warning))
}

/// What has to be in the configuration of the Docker daemon. `--oci-seccomp` makes gVisor's kernel apply
/// the profile, which it ignores otherwise.
fn runtime_fix(name: &str) -> String {
    format!(
        "install runsc and put {{\"runtimes\": {{\"{name}\": {{\"path\": \"/usr/bin/runsc\", \"runtimeArgs\": \
         [\"--network=none\", \"--oci-seccomp\"]}}}}}} into /etc/docker/daemon.json (the path is what `command -v runsc` \
         prints), then `sudo systemctl reload docker`"
    )
}

/// The report when there is no engine to ask.
pub(crate) fn unusable(error: &SandboxError, kind: EngineKind) -> EngineReport {
    EngineReport {
        kind,
        version: "none".to_owned(),
        usable: false,
        layers: Vec::new(),
        problems: vec![Problem { what: error.to_string(), fix: error.hint() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker::flavour::Behind;

    fn docker() -> Flavour {
        Flavour::of(&Behind::Docker)
    }

    fn good() -> SystemInfo {
        SystemInfo {
            server_version: Some("20.10".to_owned()),
            memory_limit: Some(true),
            swap_limit: Some(true),
            pids_limit: Some(true),
            cpu_cfs_quota: Some(true),
            security_options: Some(vec!["name=seccomp,profile=default".to_owned()]),
            os_type: Some("linux".to_owned()),
            ..SystemInfo::default()
        }
    }

    fn absent(info: &SystemInfo) -> Vec<Layer> {
        let report = Facts::from_info(info, (1, 41), &docker()).report();
        report.layers.iter().filter(|l| !l.status.is_enforced()).map(|l| l.layer).collect()
    }

    #[test]
    fn a_full_engine_lacks_nothing() {
        assert_eq!(absent(&good()), []);
    }

    #[test]
    fn a_limit_that_the_engine_denies_or_does_not_mention_is_not_given() {
        assert_eq!(absent(&SystemInfo { pids_limit: Some(false), ..good() }), [Layer::PidsLimit]);
        assert_eq!(absent(&SystemInfo { pids_limit: None, ..good() }), [Layer::PidsLimit]);
        assert_eq!(
            absent(&SystemInfo { memory_limit: Some(false), ..good() }),
            [Layer::MemoryLimit]
        );
        assert_eq!(absent(&SystemInfo { swap_limit: Some(false), ..good() }), [Layer::MemoryLimit]);
        assert_eq!(absent(&SystemInfo { cpu_cfs_quota: Some(false), ..good() }), [Layer::CpuLimit]);
        assert_eq!(absent(&SystemInfo { security_options: None, ..good() }), [Layer::Seccomp]);
    }

    #[test]
    fn an_engine_without_cgroups_gives_no_limit_at_all() {
        let info = SystemInfo {
            cgroup_driver: Some(bollard::models::SystemInfoCgroupDriverEnum::NONE),
            security_options: Some(vec![
                "name=seccomp,profile=default".to_owned(),
                "name=rootless".to_owned(),
            ]),
            ..good()
        };
        assert_eq!(absent(&info), [Layer::MemoryLimit, Layer::PidsLimit, Layer::CpuLimit]);
        let report = Facts::from_info(&info, (1, 41), &docker()).report();
        assert!(
            report.problems.iter().all(|p| p.fix.contains("rootless")),
            "{:?}",
            report.problems
        );
    }

    #[test]
    fn a_runtime_that_the_daemon_does_not_know_is_refused_with_the_lines_to_add() {
        let gvisor = Flavour::of(&Behind::Gvisor { runtime: "runsc".to_owned() });
        let facts = Facts::from_info(&good(), (1, 41), &gvisor);
        let error = facts.require_runtime().unwrap_err();
        assert_eq!(error.code(), "SANDBOX-001");
        let fix = error.hint();
        let json = &fix[fix.find('{').unwrap()..=fix.rfind('}').unwrap()];
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(value["runtimes"]["runsc"]["runtimeArgs"][1], "--oci-seccomp");
        assert!(!facts.report().usable);
        let runtimes = [("runsc".to_owned(), bollard::models::Runtime::default())].into();
        let facts =
            Facts::from_info(&SystemInfo { runtimes: Some(runtimes), ..good() }, (1, 41), &gvisor);
        assert!(facts.require_runtime().is_ok() && facts.report().usable);
    }

    #[test]
    fn a_rootless_podman_on_cgroup_version_1_gives_no_limit_whatever_it_says() {
        let info = SystemInfo {
            cgroup_version: Some(bollard::models::SystemInfoCgroupVersionEnum::_1),
            ..good()
        };
        let mut facts = Facts::from_info(&info, (1, 41), &Flavour::of(&Behind::Podman));
        assert!(facts.limit(Layer::MemoryLimit).is_enforced());
        facts.is_rootless();
        for layer in [Layer::MemoryLimit, Layer::PidsLimit, Layer::CpuLimit] {
            assert!(!facts.limit(layer).is_enforced(), "{layer:?}");
        }
        assert!(facts.report().problems.iter().any(|p| p.fix.contains("rootful socket")));
    }
}
