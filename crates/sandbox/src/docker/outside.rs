//! This host's own look at a container's first process, right after its start.
//!
//! The kernel's answer beside the engine's: an engine that shows a limit and does not apply it is found
//! here. What this host may not read is left out, never taken for fine.

use std::fs;

use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};

use super::flavour::Flavour;
use super::view::HostView;
use crate::spec::Hardening;

/// What shows from outside, layer by layer. Without a view of the container nothing does.
pub(crate) fn look(
    view: Option<&HostView>,
    hardening: &Hardening,
    flavour: &Flavour,
) -> Vec<LayerReport> {
    let Some(view) = view else { return Vec::new() };
    let mut reports = view.limits(&hardening.limits);
    if flavour.host_processes {
        let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", view.pid)).ok();
        if let Some(status) = read("status") {
            reports.extend(of_status(&status, read("uid_map").as_deref(), hardening));
        }
        if let Some(devices) = read("net/dev") {
            reports.push(report(Layer::Network, network(&devices)));
        }
        reports.extend(namespaces(view.pid).map(|status| report(Layer::Namespaces, status)));
    }
    // A layer that was not asked for (in a test that weakens it) says nothing about the engine.
    reports.retain(|report| hardening.asks_for(report.layer));
    reports
}

fn report(layer: Layer, status: LayerStatus) -> LayerReport {
    LayerReport { layer, status }
}

fn absent(reason: String) -> LayerStatus {
    LayerStatus::Absent { reason }
}

fn of_status(text: &str, uid_map: Option<&str>, asked: &Hardening) -> Vec<LayerReport> {
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let is = |name: &str, value: &str, otherwise: &str| match field(name) {
        Some(seen) if seen == value => LayerStatus::Enforced,
        seen => absent(format!("{otherwise} ({name}: {})", seen.unwrap_or("missing"))),
    };
    let held: Vec<&str> = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        .into_iter()
        .filter(|name| field(name).and_then(|t| u64::from_str_radix(t, 16).ok()) != Some(0))
        .collect();
    let capabilities = if held.is_empty() {
        LayerStatus::Enforced
    } else {
        absent(format!("seen from the host, not empty: {}", held.join(", ")))
    };
    let mut reports = vec![
        report(Layer::Capabilities, capabilities),
        report(Layer::NoNewPrivileges, is("NoNewPrivs", "1", "no_new_privs is not set")),
        report(Layer::Seccomp, is("Seccomp", "2", "no filter is active")),
    ];
    if let Some(uid) = uid_map.and_then(|map| on_the_host(map, asked.uid)) {
        let ids = field("Uid").unwrap_or_default();
        let all = ids.split_ascii_whitespace().all(|id| id.parse() == Ok(uid)) && !ids.is_empty();
        let status = if all && uid != 0 {
            LayerStatus::Enforced
        } else {
            absent(format!("its user ids on the host are {ids}"))
        };
        reports.push(report(Layer::User, status));
    }
    reports
}

/// The host's number of a user id inside, by the lines `INSIDE OUTSIDE COUNT` of its map.
fn on_the_host(map: &str, inside: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (first, outside, count) =
            (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let offset = inside.checked_sub(first).filter(|offset| *offset < count)?;
        outside.checked_add(offset)
    })
}

fn network(devices: &str) -> LayerStatus {
    let names: Vec<&str> = devices
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim())
        .collect();
    if names == ["lo"] {
        LayerStatus::Enforced
    } else {
        absent(format!("interfaces are {names:?}"))
    }
}

/// `None` when this host may not look.
fn namespaces(pid: i32) -> Option<LayerStatus> {
    let mut shared = Vec::new();
    // Without one for control groups `/proc` shows their paths, and nothing else; Podman on cgroup
    // version 1 leaves it out although it is asked for.
    for kind in ["mnt", "uts", "ipc", "net", "pid"] {
        let own = fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
        let theirs = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
        if own == theirs {
            shared.push(kind);
        }
    }
    Some(if shared.is_empty() {
        LayerStatus::Enforced
    } else {
        absent(format!("shared with the host: {}", shared.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use cofferdam_run::spec::Resources;

    use super::*;

    const GOOD: &str = "Name:\tx\nUid:\t10001\t10001\t10001\t10001\nCapInh:\t0000000000000000\nCapPrm:\t0\n\
                        CapEff:\t0\nCapBnd:\t0\nCapAmb:\t0\nNoNewPrivs:\t1\nSeccomp:\t2\n";
    const IDENTITY: &str = "         0          0 4294967295\n";

    fn missing(status: &str, map: &str) -> Vec<Layer> {
        of_status(status, Some(map), &Hardening::for_run(&Resources::default()))
            .into_iter()
            .filter(|r| !r.status.is_enforced())
            .map(|r| r.layer)
            .collect()
    }

    #[test]
    fn each_field_is_looked_at() {
        assert_eq!(missing(GOOD, IDENTITY), []);
        for (from, to, layer) in [
            ("CapBnd:\t0", "CapBnd:\t1", Layer::Capabilities),
            ("CapAmb:\t0\n", "", Layer::Capabilities),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0", Layer::NoNewPrivileges),
            ("Seccomp:\t2", "Seccomp:\t0", Layer::Seccomp),
            ("Uid:\t10001\t10001", "Uid:\t0\t10001", Layer::User),
        ] {
            assert_eq!(missing(&GOOD.replace(from, to), IDENTITY), [layer], "{to}");
        }
    }

    #[test]
    fn a_mapped_user_is_followed_to_the_host() {
        let map = "         0       1001          1\n         1     100000      65536\n";
        assert_eq!(on_the_host(map, 10001), Some(110_000));
        assert_eq!(on_the_host(map, 0), Some(1001));
        assert_eq!(on_the_host(map, 70_000), None);
        assert_eq!(missing(&GOOD.replace("10001", "110000"), map), []);
        assert_eq!(missing(GOOD, map), [Layer::User]);
    }

    #[test]
    fn a_process_of_this_host_shares_its_namespaces() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(namespaces(pid), Some(LayerStatus::Absent { .. })));
    }
}
