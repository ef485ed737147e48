//! Each field that the engine could quietly change is changed here, one at a time.

use bollard::models::{
    ContainerConfig, DeviceMapping, EndpointSettings, Mount, MountPoint, NetworkSettings,
    SystemInfo,
};
use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use cofferdam_run::spec::Resources;

use super::*;
use crate::docker::create;
use crate::engine::{RootSource, SandboxSpec};
use crate::spec::Hardening;

fn asked() -> Asked {
    let spec = SandboxSpec {
        run: RunId::from_entropy([7; 5]),
        instance: InstanceId::from_entropy([8; 10]),
        expires_at: TimestampMs(1),
        hardening: Hardening::for_run(&Resources::default()),
        guest_binary: "/guest".into(),
        run_dir: "/run".into(),
        root: RootSource::HostUserland,
    };
    let entrypoint = vec![layout::GUEST_BIN.to_owned()];
    create::request(&spec, "sha256:0", &entrypoint)
}

/// What an engine that did as it was told would answer.
fn obedient(asked: &Asked) -> ContainerInspectResponse {
    let body = asked.body.clone();
    ContainerInspectResponse {
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
    )
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
        ("limits", |seen| seen.host_config.as_mut().unwrap().ulimits = None),
        ("log driver", |seen| seen.host_config.as_mut().unwrap().log_config = None),
        ("init", |seen| seen.host_config.as_mut().unwrap().init = None),
        ("restart", |seen| seen.host_config.as_mut().unwrap().restart_policy = None),
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
    let facts = Facts::from_info(&SystemInfo::default(), (1, 41));
    let back = compare(&asked, &obedient(&asked), &[], &facts);
    let none = [Layer::Seccomp, Layer::MemoryLimit, Layer::PidsLimit, Layer::CpuLimit];
    assert_eq!(missing(&back), none);
}

fn config(seen: &mut ContainerInspectResponse) -> &mut ContainerConfig {
    seen.config.as_mut().unwrap()
}
