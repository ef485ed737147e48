//! Each field that the engine could quietly change is changed here, one at a time.

use bollard::models::{
    ContainerConfig, DeviceMapping, EndpointSettings, Mount, MountPoint, NetworkSettings,
    SystemInfo,
};
use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use cofferdam_run::spec::Resources;
use cofferdam_wire::layout;

use super::*;
use crate::docker::create::{self, ProfileFile};
use crate::docker::flavour::{Behind, Flavour};
use crate::docker::image::Image;
use crate::docker::words;
use crate::engine::{RootSource, SandboxSpec};
use crate::spec::Hardening;

fn asked() -> Asked {
    asked_of(&Behind::Docker, None)
}

fn asked_of(behind: &Behind, profile: Option<ProfileFile>) -> Asked {
    let spec = SandboxSpec {
        run: RunId::from_entropy([7; 5]),
        instance: InstanceId::from_entropy([8; 10]),
        expires_at: TimestampMs(1),
        hardening: Hardening::for_run(&Resources::default()),
        guest_binary: "/guest".into(),
        run_dir: "/run".into(),
        root: RootSource::HostUserland,
        shell_host: false,
    };
    let entrypoint = vec![layout::GUEST_BIN.to_owned()];
    let image = Image {
        id: "sha256:0".to_owned(),
        guest: cofferdam_run::ids::Digest::of(b"guest"),
        environment: vec!["PATH=/bin".to_owned()],
    };
    create::request(&spec, &image, &entrypoint, &Flavour::of(behind), profile)
}

/// What an engine that did as it was told would answer.
fn obedient(asked: &Asked) -> ContainerInspectResponse {
    let body = asked.body.clone();
    ContainerInspectResponse {
        image: body.image,
        host_config: body.host_config,
        mounts: Some(vec![MountPoint {
            typ: Some("volume".to_owned()),
            name: Some(asked.volume.clone()),
            destination: Some(layout::WORK.to_owned()),
            rw: Some(true),
            ..MountPoint::default()
        }]),
        network_settings: Some(NetworkSettings {
            networks: Some([("none".to_owned(), EndpointSettings::default())].into()),
            ..NetworkSettings::default()
        }),
        config: Some(ContainerConfig {
            hostname: body.hostname,
            user: body.user,
            entrypoint: body.entrypoint,
            working_dir: body.working_dir,
            tty: body.tty,
            open_stdin: body.open_stdin,
            stdin_once: body.stdin_once,
            labels: body.labels,
            env: Some(asked.environment.clone()),
            ..ContainerConfig::default()
        }),
        ..ContainerInspectResponse::default()
    }
}

fn full() -> Facts {
    Facts::from_info(
        &SystemInfo {
            memory_limit: Some(true),
            swap_limit: Some(true),
            pids_limit: Some(true),
            cpu_cfs_quota: Some(true),
            security_options: Some(vec!["name=seccomp,profile=default".to_owned()]),
            ..SystemInfo::default()
        },
        (1, 41),
        &Flavour::of(&Behind::Docker),
    )
}

/// Compares a container of Docker.
fn compare(
    asked: &Asked,
    seen: &ContainerInspectResponse,
    warnings: &[String],
    facts: &Facts,
) -> ReadBack {
    super::compare(asked, &words::docker(seen.clone()), warnings, facts)
}

fn missing(back: &ReadBack) -> Vec<Layer> {
    back.layers.iter().filter(|l| !l.status.is_enforced()).map(|l| l.layer).collect()
}

type Change = (Layer, &'static str, fn(&mut ContainerInspectResponse, &mut HostConfig));
type OtherChange = (&'static str, fn(&mut ContainerInspectResponse));

#[test]
fn an_obedient_engine_holds_every_layer() {
    let asked = asked();
    let back = compare(&asked, &obedient(&asked), &[], &full());
    assert_eq!(missing(&back), []);
    assert_eq!(back.other, Vec::<String>::new());
}

#[test]
fn each_quiet_change_of_the_engine_takes_its_layer_away() {
    let changes: Vec<Change> = vec![
        (Layer::User, "root", |seen, _| config(seen).user = Some("0:0".to_owned())),
        (Layer::User, "not shown", |seen, _| seen.config = None),
        (Layer::User, "a group", |_, host| host.group_add = Some(vec!["docker".to_owned()])),
        (Layer::User, "limits", |_, host| host.ulimits = None),
        (Layer::Capabilities, "kept", |_, host| host.cap_drop = None),
        (Layer::Capabilities, "added", |_, host| host.cap_add = Some(vec!["SYS_ADMIN".to_owned()])),
        (Layer::Capabilities, "privileged", |_, host| host.privileged = Some(true)),
        (Layer::NoNewPrivileges, "lost", |_, host| {
            host.security_opt.as_mut().unwrap().retain(|o| !o.starts_with("no-new"));
        }),
        (Layer::Seccomp, "lost", |_, host| {
            host.security_opt.as_mut().unwrap().retain(|o| !o.starts_with("seccomp"));
        }),
        (Layer::Seccomp, "unconfined beside it", |_, host| {
            host.security_opt.as_mut().unwrap().push("seccomp=unconfined".to_owned());
        }),
        (Layer::ReadOnlyRoot, "writable", |_, host| host.readonly_rootfs = Some(false)),
        (Layer::ReadOnlyRoot, "not shown", |_, host| host.readonly_rootfs = None),
        (Layer::Network, "bridge", |_, host| host.network_mode = Some("bridge".to_owned())),
        (Layer::Network, "joined", |seen, _| {
            let networks = seen.network_settings.as_mut().unwrap().networks.as_mut().unwrap();
            networks.insert("bridge".to_owned(), EndpointSettings::default());
        }),
        (Layer::Network, "other name servers", |_, host| host.dns = None),
        (Layer::Network, "search domains", |_, host| host.dns_search = Some(Vec::new())),
        (Layer::Network, "resolver options", |_, host| {
            host.dns_options = Some(vec!["use-vc".to_owned()]);
        }),
        (Layer::Network, "a name of the host", |_, host| {
            host.extra_hosts = Some(vec!["host.docker.internal:host-gateway".to_owned()]);
        }),
        (Layer::Namespaces, "ipc of another", |_, host| {
            host.ipc_mode = Some("container:x".to_owned());
        }),
        (Layer::Namespaces, "user of the host", |_, host| {
            host.userns_mode = Some("host".to_owned());
        }),
        (Layer::Namespaces, "cgroup of the host", |_, host| {
            host.cgroupns_mode = Some(HostConfigCgroupnsModeEnum::HOST);
        }),
        (Layer::Namespaces, "below another cgroup", |_, host| {
            host.cgroup_parent = Some("/free".to_owned());
        }),
        (Layer::CpuLimit, "other period", |_, host| host.cpu_period = Some(1000)),
        (Layer::Network, "published", |_, host| host.publish_all_ports = Some(true)),
        (Layer::Namespaces, "pid of the host", |_, host| host.pid_mode = Some("host".to_owned())),
        (Layer::Namespaces, "uts of the host", |_, host| host.uts_mode = Some("host".to_owned())),
        (Layer::Namespaces, "ipc of the host", |_, host| host.ipc_mode = Some("host".to_owned())),
        (Layer::MemoryLimit, "none", |_, host| host.memory = Some(0)),
        (Layer::MemoryLimit, "swap", |_, host| host.memory_swap = Some(-1)),
        (Layer::MemoryLimit, "no killer", |_, host| host.oom_kill_disable = Some(true)),
        (Layer::PidsLimit, "not shown", |_, host| host.pids_limit = None),
        (Layer::CpuLimit, "other", |_, host| host.cpu_quota = Some(-1)),
        (Layer::Mounts, "a bind", |_, host| host.binds = Some(vec!["/:/host".to_owned()])),
        (Layer::Mounts, "a mount", |seen, _| {
            seen.mounts.as_mut().unwrap().push(MountPoint {
                typ: Some("volume".to_owned()),
                name: Some("0123".to_owned()),
                destination: Some("/data".to_owned()),
                ..MountPoint::default()
            });
        }),
        (Layer::Mounts, "another volume at /work", |seen, _| {
            seen.mounts.as_mut().unwrap()[0].name = Some("other".to_owned());
        }),
        (Layer::Mounts, "no volume", |seen, _| seen.mounts = None),
        (Layer::Mounts, "a mount request", |_, host| {
            host.mounts
                .as_mut()
                .unwrap()
                .push(Mount { typ: Some(MountType::BIND), ..Mount::default() });
        }),
        (Layer::Mounts, "tmpfs without a size", |_, host| {
            host.tmpfs.as_mut().unwrap().insert("/tmp".to_owned(), String::new());
        }),
        (Layer::Mounts, "a device", |_, host| {
            host.devices = Some(vec![DeviceMapping::default()]);
        }),
        (Layer::Mounts, "unmasked", |_, host| host.masked_paths = Some(Vec::new())),
        (Layer::Mounts, "proc writable", |_, host| host.readonly_paths = None),
    ];
    let asked = asked();
    for (layer, what, change) in changes {
        let mut seen = obedient(&asked);
        let mut host = seen.host_config.take().unwrap();
        change(&mut seen, &mut host);
        seen.host_config = Some(host);
        let back = compare(&asked, &seen, &[], &full());
        assert_eq!(missing(&back), [layer], "{what}");
    }
}

#[test]
fn what_belongs_to_no_layer_stops_the_start() {
    let asked = asked();
    let changes: Vec<OtherChange> = vec![
        ("entrypoint", |seen| config(seen).entrypoint = Some(vec!["/bin/sh".to_owned()])),
        ("arguments", |seen| config(seen).cmd = Some(vec!["x".to_owned()])),
        ("terminal", |seen| config(seen).tty = Some(true)),
        ("a label", |seen| config(seen).labels = None),
        ("log driver", |seen| seen.host_config.as_mut().unwrap().log_config = None),
        ("init", |seen| seen.host_config.as_mut().unwrap().init = None),
        ("restart", |seen| seen.host_config.as_mut().unwrap().restart_policy = None),
        ("another image", |seen| seen.image = Some("sha256:1".to_owned())),
        ("a variable", |seen| {
            config(seen).env.as_mut().unwrap().push("LD_PRELOAD=/x".to_owned());
        }),
        ("no variables", |seen| config(seen).env = None),
        ("a health check", |seen| {
            config(seen).healthcheck = Some(bollard::models::HealthConfig {
                test: Some(vec!["CMD".to_owned()]),
                ..bollard::models::HealthConfig::default()
            });
        }),
        ("a volume of the image", |seen| config(seen).volumes = Some(vec!["/data".to_owned()])),
        ("another security option", |seen| {
            let host = seen.host_config.as_mut().unwrap();
            host.security_opt.as_mut().unwrap().push("systempaths=unconfined".to_owned());
        }),
        ("another runtime", |seen| {
            seen.host_config.as_mut().unwrap().runtime = Some("kata".to_owned());
        }),
        ("a setting of the kernel", |seen| {
            seen.host_config.as_mut().unwrap().sysctls =
                Some([("net.ipv4.ip_forward".to_owned(), "1".to_owned())].into());
        }),
        ("everything", |seen| seen.config = None),
    ];
    for (what, change) in changes {
        let mut seen = obedient(&asked);
        change(&mut seen);
        assert_ne!(compare(&asked, &seen, &[], &full()).other, Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_warning_about_a_limit_takes_it_away_although_inspect_shows_it() {
    let asked = asked();
    for (warning, expected) in [
        (
            "Your kernel does not support memory limit capabilities or the cgroup is not mounted. Limitation discarded.",
            vec![Layer::MemoryLimit],
        ),
        (
            "Your kernel does not support PIDs limit capabilities or the cgroup is not mounted. PIDs limit discarded.",
            vec![Layer::PidsLimit],
        ),
        (
            "Your kernel does not support CPU CFS scheduler. CPU period/quota discarded.",
            vec![Layer::CpuLimit],
        ),
        (
            "Resource limits are not supported and ignored on cgroups V1 rootless systems",
            vec![Layer::MemoryLimit, Layer::PidsLimit, Layer::CpuLimit],
        ),
        ("Published ports are discarded when using host network mode", vec![]),
    ] {
        let back = compare(&asked, &obedient(&asked), &[warning.to_owned()], &full());
        assert_eq!(missing(&back), expected, "{warning}");
    }
}

#[test]
fn a_memory_limit_that_leaves_swap_out_holds_in_part() {
    let asked = asked();
    let mut seen = obedient(&asked);
    seen.host_config.as_mut().unwrap().memory_swap = Some(-1);
    let warning = "Your kernel does not support swap limit capabilities or the cgroup is not mounted. Memory limited without swap.";
    let back = compare(&asked, &seen, &[warning.to_owned()], &full());
    let memory = back.layers.iter().find(|l| l.layer == Layer::MemoryLimit).unwrap();
    assert!(matches!(memory.status, LayerStatus::Degraded { .. }), "{memory:?}");
}

#[test]
fn an_engine_that_says_it_has_no_limits_gives_none_although_inspect_shows_them() {
    let asked = asked();
    let facts = Facts::from_info(&SystemInfo::default(), (1, 41), &Flavour::of(&Behind::Docker));
    let back = compare(&asked, &obedient(&asked), &[], &facts);
    let none = [Layer::Seccomp, Layer::MemoryLimit, Layer::PidsLimit, Layer::CpuLimit];
    assert_eq!(missing(&back), none);
}

fn config(seen: &mut ContainerInspectResponse) -> &mut ContainerConfig {
    seen.config.as_mut().unwrap()
}

/// What Podman 4.3.1 answered, with what was asked for put into the places where it shows it.
fn podman(asked: &Asked) -> ContainerInspectResponse {
    let mut seen = obedient(asked);
    seen.network_settings.as_mut().unwrap().networks = Some([].into());
    let environment = config(&mut seen).env.as_mut().unwrap();
    environment.extend(["TERM=xterm", "container=podman", "HOSTNAME=cofferdam"].map(str::to_owned));
    config(&mut seen).stdin_once = Some(false);
    let host = seen.host_config.as_mut().unwrap();
    host.mounts = None;
    host.binds = Some(vec![format!("{}:/work:rw,rprivate,nosuid,nodev,rbind", asked.volume)]);
    host.cap_drop = Some(vec!["CHOWN".to_owned(), "SETUID".to_owned()]);
    host.cgroupns_mode = Some(HostConfigCgroupnsModeEnum::EMPTY);
    host.ipc_mode = Some("shareable".to_owned());
    host.pid_mode = Some("private".to_owned());
    host.uts_mode = Some("private".to_owned());
    host.runtime = Some("oci".to_owned());
    host.nano_cpus = Some(2_000_000_000);
    (host.masked_paths, host.readonly_paths) = (None, None);
    host.security_opt.as_mut().unwrap().retain(|option| !option.starts_with("mask="));
    for options in host.tmpfs.as_mut().unwrap().values_mut() {
        options.push_str(",rprivate,tmpcopyup");
    }
    for limit in host.ulimits.as_mut().unwrap() {
        limit.name = limit.name.take().map(|name| format!("RLIMIT_{}", name.to_uppercase()));
    }
    seen
}

fn with_profile() -> (tempfile::TempDir, Asked) {
    let dir = tempfile::tempdir().unwrap();
    let content = "{}".to_owned();
    let place = profile::write(dir.path(), &content).unwrap();
    let asked = asked_of(&Behind::Podman, Some(ProfileFile { place, content }));
    (dir, asked)
}

fn compare_podman(asked: &Asked, seen: ContainerInspectResponse) -> ReadBack {
    super::compare(asked, &words::podman(asked, seen), &[], &full())
}

#[test]
fn podmans_words_are_understood_and_what_it_does_not_show_is_left_out() {
    let (_dir, asked) = with_profile();
    let back = compare_podman(&asked, podman(&asked));
    assert_eq!(back.other, Vec::<String>::new());
    assert_eq!(missing(&back), []);
    let told: Vec<Layer> = back.layers.iter().map(|report| report.layer).collect();
    let untold = [Layer::Capabilities, Layer::Namespaces, Layer::Mounts, Layer::Landlock];
    let expected: Vec<Layer> = Layer::ALL.into_iter().filter(|l| !untold.contains(l)).collect();
    assert_eq!(told, expected);
}

#[test]
fn what_podman_shows_to_be_different_is_found_also_in_layers_that_it_tells_in_part() {
    let (dir, asked) = with_profile();
    let changes: Vec<Change> = vec![
        (Layer::Capabilities, "privileged", |_, host| host.privileged = Some(true)),
        (Layer::Capabilities, "added", |_, host| host.cap_add = Some(vec!["SYS_ADMIN".to_owned()])),
        (Layer::Capabilities, "none dropped", |_, host| host.cap_drop = Some(Vec::new())),
        (Layer::Namespaces, "pid of the host", |_, host| host.pid_mode = Some("host".to_owned())),
        (Layer::Namespaces, "cgroup of the host", |_, host| {
            host.cgroupns_mode = Some(HostConfigCgroupnsModeEnum::HOST);
        }),
        (Layer::Mounts, "a bind", |_, host| host.binds.as_mut().unwrap().push("/:/h".to_owned())),
        (Layer::Mounts, "the volume with devices", |_, host| {
            host.binds.as_mut().unwrap()[0] =
                host.binds.as_ref().unwrap()[0].replace("nodev", "dev");
        }),
        (Layer::Mounts, "its own writable /run", |_, host| {
            host.tmpfs.as_mut().unwrap().insert("/run".to_owned(), "rw,rprivate".to_owned());
        }),
        (Layer::Mounts, "nothing masked", |_, host| {
            (host.masked_paths, host.readonly_paths) = (Some(Vec::new()), Some(Vec::new()));
        }),
        (Layer::MemoryLimit, "ignored", |_, host| host.memory = Some(0)),
        (Layer::PidsLimit, "ignored", |_, host| host.pids_limit = Some(0)),
        (Layer::CpuLimit, "ignored", |_, host| host.cpu_quota = Some(0)),
        (Layer::CpuLimit, "another quota beside it", |_, host| host.nano_cpus = Some(9)),
        (Layer::Seccomp, "another file", |_, host| {
            host.security_opt = Some(vec!["no-new-privileges".to_owned(), "seccomp=/x".to_owned()]);
        }),
    ];
    for (layer, what, change) in changes {
        let mut seen = podman(&asked);
        let mut host = seen.host_config.take().unwrap();
        change(&mut seen, &mut host);
        seen.host_config = Some(host);
        assert_eq!(missing(&compare_podman(&asked, seen)), [layer], "{what}");
    }
    // The file was exchanged while the engine read it.
    std::fs::write(&asked.profile.as_ref().unwrap().place, "{\"defaultAction\":1}").unwrap();
    assert_eq!(missing(&compare_podman(&asked, podman(&asked))), [Layer::Seccomp]);
    drop(dir);
}
