//! Each layer of a posture, sound and broken.

use super::*;
use cofferdam_run::posture::{MountSeen, NamespaceSeen, RlimitSeen, Tried};

fn sound() -> Probe {
    Probe {
        uid: 10001,
        gid: 10001,
        groups: vec![],
        capabilities: std::array::from_fn(|_| "0000000000000000".to_owned()),
        no_new_privs: true,
        seccomp_mode: 2,
        seccomp_admitted: vec![],
        seccomp_denied: vec!["keyctl".to_owned()],
        landlock_abi: Some(7),
        root_read_only: true,
        interfaces_up: vec!["lo".to_owned()],
        writable_mounts: vec!["/work".into(), "/tmp".into(), "/dev/shm".into(), "/proc".into()],
        memory_limit: Some(4 << 30),
        pids_limit: Some(512),
        cpu_millis: Some(2000),
        pid: 1,
        extra_descriptors: vec![],
        uids: Some([10001; 4]),
        gids: Some([10001; 4]),
        seccomp_filters: Some(4),
        writes: vec![
            tried("/", Attempt::ReadOnly),
            tried("/etc", Attempt::ReadOnly),
            tried("/work", Attempt::Done),
            tried(layout::TRIPWIRE, Attempt::Refused),
        ],
        masks: vec![tried("/proc/kcore", Attempt::Empty), tried("/sys/firmware", Attempt::Missing)],
        mounts: vec![MountSeen {
            point: "/".into(),
            kind: "tmpfs".into(),
            options: "ro,nosuid".into(),
        }],
        interfaces: vec!["lo".into(), "sit0".into()],
        addresses: vec!["127.0.0.1".into(), "::1".into()],
        routes: vec![],
        rlimits: [("nofile", 4096), ("core", 1)]
            .map(|(name, n)| RlimitSeen { name: name.into(), soft: Some(n), hard: Some(n) })
            .into(),
        namespaces: ["mnt", "uts", "ipc", "net", "pid", "cgroup"]
            .map(|kind| NamespaceSeen { kind: kind.into(), id: 7 })
            .into(),
    }
}

fn tried(what: &str, result: Attempt) -> Tried {
    Tried { what: what.into(), result }
}

fn own(kind: &str) -> u64 {
    std::fs::metadata(format!("/proc/self/ns/{kind}")).unwrap().ino()
}

fn failing(probe: &Probe) -> Vec<Layer> {
    evaluate(EngineKind::Native, &Resources::default(), probe)
        .into_iter()
        .filter(|r| !r.status.is_enforced())
        .map(|r| r.layer)
        .collect()
}

#[test]
fn sound_probe_is_enforced_in_every_layer() {
    let reports = evaluate(EngineKind::Native, &Resources::default(), &sound());
    assert_eq!(reports.len(), Layer::ALL.len());
    assert_eq!(failing(&sound()), vec![]);
}

#[test]
fn empty_probe_is_enforced_in_no_layer_but_the_ones_that_saw_nothing_bad() {
    // No interface was seen; all that must be shown positively is absent.
    let failing = failing(&Probe::default());
    for layer in Layer::ALL {
        let shown_by_absence = layer == Layer::Network;
        assert_eq!(failing.contains(&layer), !shown_by_absence, "{layer:?}");
    }
}

#[test]
fn each_broken_observation_breaks_its_own_layer_only() {
    type Break = fn(&mut Probe);
    let cases: [(Layer, Break); 35] = [
        (Layer::User, |p| p.uid = 0),
        (Layer::User, |p| p.gid = 0),
        (Layer::User, |p| p.groups = vec![27]),
        (Layer::Capabilities, |p| p.capabilities[3] = "00000000a80425fb".into()),
        (Layer::Capabilities, |p| p.capabilities[4] = String::new()),
        (Layer::NoNewPrivileges, |p| p.no_new_privs = false),
        (Layer::Seccomp, |p| p.seccomp_mode = 0),
        (Layer::Seccomp, |p| p.seccomp_admitted = vec!["io_uring_setup".into()]),
        (Layer::Seccomp, |p| p.seccomp_denied.clear()),
        (Layer::Landlock, |p| p.landlock_abi = None),
        (Layer::ReadOnlyRoot, |p| p.root_read_only = false),
        (Layer::Network, |p| p.interfaces_up.push("eth0".into())),
        (Layer::Namespaces, |p| p.pid = 4711),
        (Layer::Namespaces, |p| p.extra_descriptors = vec!["7 -> /etc/shadow".into()]),
        (Layer::MemoryLimit, |p| p.memory_limit = Some((4 << 30) + 1)),
        (Layer::PidsLimit, |p| p.pids_limit = None),
        (Layer::CpuLimit, |p| p.cpu_millis = Some(2001)),
        (Layer::Mounts, |p| p.writable_mounts.push("/workshop".into())),
        (Layer::User, |p| p.uids = Some([10001, 10001, 0, 10001])),
        (Layer::User, |p| p.gids = None),
        (Layer::User, |p| p.rlimits[0].hard = None),
        (Layer::User, |p| p.rlimits[1].hard = Some(2)),
        (Layer::Landlock, |p| p.writes[3].result = Attempt::Done),
        (Layer::Landlock, |p| p.writes[3].result = Attempt::Missing),
        (Layer::ReadOnlyRoot, |p| p.writes[0].result = Attempt::Refused),
        (Layer::Network, |p| p.interfaces.push("eth0".into())),
        (Layer::Network, |p| p.addresses.push("10.0.0.2".into())),
        (Layer::Network, |p| p.routes.push("eth0 00000000".into())),
        (Layer::Namespaces, |p| p.namespaces[3].id = own("net")),
        (Layer::Namespaces, |p| p.namespaces[5].id = own("cgroup")),
        (Layer::Namespaces, |p| p.namespaces.truncate(2)),
        (Layer::Mounts, |p| p.writes[1].result = Attempt::Done),
        (Layer::Mounts, |p| p.masks[0].result = Attempt::Done),
        (Layer::Mounts, |p| p.mounts[0].options = "ro".into()),
        (Layer::Mounts, |p| p.masks.clear()),
    ];
    for (layer, spoil) in cases {
        let mut probe = sound();
        spoil(&mut probe);
        assert_eq!(failing(&probe), vec![layer], "{probe:?}");
    }
}

#[test]
fn lower_limit_than_asked_is_enforced() {
    let probe = Probe { memory_limit: Some(1 << 20), pids_limit: Some(3), ..sound() };
    assert_eq!(failing(&probe), vec![]);
}
