//! From the hardening specification to what the engine is asked for.
//!
//! Everything is asked for explicitly, defaults included, so that read-back can compare field by
//! field. It must never leave a limit to the engine's configuration.

use std::collections::HashMap;
use std::path::PathBuf;

use bollard::models::{
    ContainerCreateBody, DeviceMapping, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum,
    HostConfigLogConfig, Mount, MountType, MountVolumeOptions, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use cofferdam_wire::layout;
use rustix::process::{Resource, getrlimit};

use super::flavour::{Flavour, Masking, SeccompForm};
use super::image::Image;
use super::labels;
use super::words::MASK;
use crate::engine::SandboxSpec;
use crate::spec::{CPU_PERIOD_US, DEVICES, Hardening};

/// What is asked for, kept for the comparison afterwards.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// The container.
    pub(crate) body: ContainerCreateBody,
    /// Name of the volume at `/work`.
    pub(crate) volume: String,
    /// Variables of the image, which are all that the first process gets.
    pub(crate) environment: Vec<String>,
    /// The file with the profile, where the engine takes a path.
    pub(crate) profile: Option<ProfileFile>,
}

/// A file with the system-call profile.
#[derive(Debug, Clone)]
pub(crate) struct ProfileFile {
    /// Absolute path.
    pub(crate) place: PathBuf,
    /// What it holds.
    pub(crate) content: String,
}

impl Asked {
    /// Where the volume is mounted.
    pub(crate) fn target(&self) -> &str {
        let mounts = self.body.host_config.as_ref().and_then(|host| host.mounts.as_deref());
        mounts.and_then(|all| all.first()?.target.as_deref()).unwrap_or(layout::WORK)
    }
}

/// Builds the request.
pub(crate) fn request(
    spec: &SandboxSpec,
    image: &Image,
    entrypoint: &[String],
    flavour: &Flavour,
    profile: Option<ProfileFile>,
) -> Asked {
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
        security_opt: Some(security_options(hardening, flavour, profile.as_ref())),
        ipc_mode: Some(hosts(own.ipc).unwrap_or_else(|| flavour.ipc.to_owned())),
        runtime: flavour.runtime.clone(),
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
        ulimits: Some(ulimits(hardening, flavour)),
        tmpfs: Some(tmpfs(hardening, flavour)),
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
        image: Some(image.id.clone()),
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
        // Podman makes a timer even of none; an image of ours has no check in any case.
        healthcheck: (!flavour.is_podman()).then(|| HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        labels: Some(labels::for_spec(spec)),
        host_config: Some(host_config),
        ..ContainerCreateBody::default()
    };
    Asked { body, volume, environment: image.environment.clone(), profile }
}

/// `no-new-privileges`, the profile, and the paths to hide where lists of them are not taken.
fn security_options(
    hardening: &Hardening,
    flavour: &Flavour,
    profile: Option<&ProfileFile>,
) -> Vec<String> {
    let mut options = Vec::new();
    if hardening.no_new_privileges {
        options.push("no-new-privileges".to_owned());
    }
    options.push(match (flavour.seccomp, profile) {
        (SeccompForm::File, Some(file)) => format!("seccomp={}", file.place.display()),
        (SeccompForm::File | SeccompForm::Text, _) => {
            format!("seccomp={}", flavour.profile(&hardening.seccomp))
        }
    });
    if flavour.masking == Masking::Options {
        let paths: Vec<&str> = hardening.masked_paths.iter().map(AsRef::as_ref).collect();
        options.push(format!("{MASK}{}", paths.join(":")));
    }
    options
}

fn ulimits(hardening: &Hardening, flavour: &Flavour) -> Vec<ResourcesUlimits> {
    let limit = |name: &str, soft: u64, hard: u64| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(signed(soft)),
        hard: Some(signed(hard)),
    };
    let mut all: Vec<ResourcesUlimits> =
        hardening.rlimits.iter().map(|l| limit(&l.name, l.soft, l.hard)).collect();
    if flavour.nproc {
        // No more than this process may have itself: raising it takes a right that the engine may
        // lack. It counts per user over all runs, so it is no limit of ours, only not raised.
        let may = getrlimit(Resource::Nproc).maximum.unwrap_or(MOST_PROCESSES).min(MOST_PROCESSES);
        all.push(limit("nproc", may, may));
    }
    all
}

/// Process limit per user that an engine is asked for at most: Podman's service lowers its own to this.
/// It is no bound of a run, which has its own.
const MOST_PROCESSES: u64 = 1 << 15;

fn tmpfs(hardening: &Hardening, flavour: &Flavour) -> HashMap<String, String> {
    let mut all: HashMap<String, String> = hardening
        .tmpfs
        .iter()
        .map(|fs| (fs.path.to_string(), fs.docker_options(flavour.tmpfs_inodes)))
        .collect();
    for place in flavour.covered {
        // Read-only and of one page: it only keeps the engine's own away.
        all.entry((*place).to_owned())
            .or_insert_with(|| "ro,nosuid,nodev,noexec,size=4096,mode=555".to_owned());
    }
    all
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
