//! From the hardening specification to what the engine is asked for.
//!
//! Everything is asked for explicitly, defaults included, so that read-back can compare field by
//! field. It must never leave a limit to the engine's configuration.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, DeviceMapping, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum,
    HostConfigLogConfig, Mount, MountType, MountVolumeOptions, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use cofferdam_wire::layout;

use super::labels;
use crate::engine::SandboxSpec;
use crate::spec::{CPU_PERIOD_US, DEVICES, Hardening};

/// What is asked for, kept for the comparison afterwards.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// The container.
    pub(crate) body: ContainerCreateBody,
    /// Name of the volume at `/work`.
    pub(crate) volume: String,
}

/// Builds the request.
pub(crate) fn request(spec: &SandboxSpec, image: &str, entrypoint: &[String]) -> Asked {
    let hardening = &spec.hardening;
    let own = hardening.namespaces;
    let hosts = |own: bool| (!own).then(|| "host".to_owned());
    let volume = labels::volume_name(&spec.run);
    let memory = signed(hardening.limits.memory_bytes);
    let host_config = HostConfig {
        network_mode: Some(hosts(own.network).unwrap_or_else(|| "none".to_owned())),
        pid_mode: hosts(own.pid),
        uts_mode: hosts(own.uts),
        // The engine writes resolv.conf from the host's own otherwise, search domains included.
        dns: Some(vec!["127.0.0.1".to_owned()]),
        dns_search: Some(vec![".".to_owned()]),
        readonly_rootfs: Some(hardening.read_only_root),
        privileged: Some(false),
        cap_drop: hardening.drop_all_capabilities.then(|| vec!["ALL".to_owned()]),
        security_opt: Some(security_options(hardening)),
        // Its own namespace and no shared-memory mount of the engine's: ours is in `tmpfs`.
        ipc_mode: Some(hosts(own.ipc).unwrap_or_else(|| "none".to_owned())),
        cgroupns_mode: Some(if own.cgroup {
            HostConfigCgroupnsModeEnum::PRIVATE
        } else {
            HostConfigCgroupnsModeEnum::HOST
        }),
        memory: Some(memory),
        memory_swap: Some(memory),
        pids_limit: Some(signed(hardening.limits.pids)),
        // Period and quota rather than `NanoCpus`: engines refuse the latter above the machine's count.
        cpu_period: Some(signed(CPU_PERIOD_US)),
        cpu_quota: Some(signed(hardening.limits.cpu_quota_us())),
        ulimits: Some(
            hardening
                .rlimits
                .iter()
                .map(|limit| ResourcesUlimits {
                    name: Some(limit.name.to_string()),
                    soft: Some(signed(limit.soft)),
                    hard: Some(signed(limit.hard)),
                })
                .collect(),
        ),
        tmpfs: Some(
            hardening
                .tmpfs
                .iter()
                .map(|fs| (fs.path.to_string(), fs.docker_options()))
                .collect::<HashMap<_, _>>(),
        ),
        mounts: Some(vec![Mount {
            target: Some(hardening.work.path.to_string()),
            source: Some(volume.clone()),
            typ: Some(MountType::VOLUME),
            read_only: Some(false),
            // An empty volume takes owner and mode of the image's own `/work`.
            volume_options: Some(MountVolumeOptions {
                no_copy: Some(false),
                ..MountVolumeOptions::default()
            }),
            ..Mount::default()
        }]),
        masked_paths: Some(hardening.masked_paths.iter().map(ToString::to_string).collect()),
        readonly_paths: Some(hardening.read_only_paths.iter().map(ToString::to_string).collect()),
        devices: devices(hardening),
        init: Some(true),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        auto_remove: Some(false),
        ..HostConfig::default()
    };
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        // The engine refuses a name for a namespace that is not the container's.
        hostname: own.uts.then(|| hardening.hostname.to_string()),
        user: Some(format!("{}:{}", hardening.uid, hardening.gid)),
        entrypoint: Some(entrypoint.to_vec()),
        cmd: Some(Vec::new()),
        working_dir: Some(layout::WORK.to_owned()),
        tty: Some(false),
        open_stdin: Some(true),
        // The guest sees the end of its input when the host goes away.
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        labels: Some(labels::for_spec(spec)),
        host_config: Some(host_config),
        ..ContainerCreateBody::default()
    };
    Asked { body, volume }
}

/// `no-new-privileges` and the profile itself; the API takes it as text, not as a path.
fn security_options(hardening: &Hardening) -> Vec<String> {
    let mut options = Vec::new();
    if hardening.no_new_privileges {
        options.push("no-new-privileges".to_owned());
    }
    options.push(format!("seccomp={}", hardening.seccomp.to_docker_json()));
    options
}

/// Nodes beyond those that the runtime gives in any case: none, but in a test.
fn devices(hardening: &Hardening) -> Option<Vec<DeviceMapping>> {
    let more: Vec<DeviceMapping> = hardening
        .devices
        .iter()
        .filter(|name| !DEVICES.contains(&&***name))
        .map(|name| DeviceMapping {
            path_on_host: Some(format!("/dev/{name}")),
            path_in_container: Some(format!("/dev/{name}")),
            cgroup_permissions: Some("rw".to_owned()),
        })
        .collect();
    (!more.is_empty()).then_some(more)
}

/// The API's integers are signed; a larger value means the largest.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
