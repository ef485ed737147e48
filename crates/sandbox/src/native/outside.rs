//! The host's own view of the sandbox's first process, from `/proc`, before its first instruction.
//!
//! It believes nothing that the launcher says about what can be read here.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};

use super::handoff::{LandlockOutcome, LaunchSpec};
use crate::posture::writable_beyond_design;

fn absent(reason: impl Into<String>) -> LayerStatus {
    LayerStatus::Absent { reason: reason.into() }
}

/// Reads process `pid` and reports the layers that show from outside. Landlock alone does not: there
/// it is what the launcher saw.
pub(super) fn look(
    pid: i32,
    launch: &LaunchSpec,
    restricted: &LandlockOutcome,
) -> io::Result<Vec<LayerReport>> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
    let status = Status(read("status")?);
    let mounts = read("mountinfo")?;
    let devices = read("net/dev")?;
    let report = |layer, status| LayerReport { layer, status };
    Ok(vec![
        report(Layer::User, user(&status, launch)),
        report(Layer::Capabilities, capabilities(&status)),
        report(Layer::NoNewPrivileges, status.expect("NoNewPrivs", "1", "no_new_privs is not set")),
        report(Layer::Seccomp, status.expect("Seccomp", "2", "no filter is active")),
        report(Layer::Landlock, landlock(restricted)),
        report(Layer::ReadOnlyRoot, root(&mounts)),
        report(Layer::Network, network(&devices)),
        report(Layer::Namespaces, namespaces(pid)),
        report(Layer::Mounts, writable(&mounts)),
    ])
}

struct Status(String);

impl Status {
    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    fn expect(&self, name: &str, value: &str, otherwise: &str) -> LayerStatus {
        match self.field(name) {
            Some(seen) if seen == value => LayerStatus::Enforced,
            seen => absent(format!("{otherwise} ({name}: {})", seen.unwrap_or("missing"))),
        }
    }
}

fn user(status: &Status, launch: &LaunchSpec) -> LayerStatus {
    let asked = (launch.hardening.uid, launch.hardening.gid);
    let (uid, gid) = launch.user_map.map_or(asked, |map| (map.uid, map.gid));
    let all = |name: &str, wanted: u32| {
        status.field(name).is_some_and(|text| {
            let ids: Vec<&str> = text.split_ascii_whitespace().collect();
            ids.len() == 4 && ids.iter().all(|id| id.parse() == Ok(wanted))
        })
    };
    if uid == 0 || !all("Uid", uid) || !all("Gid", gid) {
        return absent(format!(
            "host ids are {} and {}",
            status.field("Uid").unwrap_or("missing"),
            status.field("Gid").unwrap_or("missing")
        ));
    }
    match status.field("Groups") {
        Some("") => LayerStatus::Enforced,
        Some(groups) if groups.split_ascii_whitespace().all(|g| g.parse() == Ok(gid)) => {
            LayerStatus::Enforced
        }
        groups => LayerStatus::Degraded {
            reason: format!(
                "keeps supplementary groups {}; an ordinary user cannot drop them",
                groups.unwrap_or("that cannot be read")
            ),
        },
    }
}

fn capabilities(status: &Status) -> LayerStatus {
    let held: Vec<&str> = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        .into_iter()
        .filter(|name| {
            status.field(name).and_then(|text| u64::from_str_radix(text, 16).ok()) != Some(0)
        })
        .collect();
    if held.is_empty() { LayerStatus::Enforced } else { absent(format!("not empty: {held:?}")) }
}

fn landlock(outcome: &LandlockOutcome) -> LayerStatus {
    match outcome {
        LandlockOutcome::Full => LayerStatus::Enforced,
        LandlockOutcome::Partial => LayerStatus::Degraded {
            reason: "this kernel knows only some of the rights that are restricted".to_owned(),
        },
        LandlockOutcome::None => absent("this kernel does not enforce Landlock"),
    }
}

/// Mount point and per-mount options of a line of `mountinfo`.
fn mount(line: &str) -> Option<(&str, &str)> {
    let mut fields = line.split(' ').skip(4);
    Some((fields.next()?, fields.next()?))
}

fn is_read_only(options: &str) -> bool {
    options.split(',').any(|option| option == "ro")
}

fn root(mounts: &str) -> LayerStatus {
    match mounts.lines().filter_map(mount).find(|(point, _)| *point == "/") {
        Some((_, options)) if is_read_only(options) => LayerStatus::Enforced,
        Some(_) => absent("the root mount is writable"),
        None => absent("no root mount is shown"),
    }
}

fn writable(mounts: &str) -> LayerStatus {
    let points = mounts
        .lines()
        .filter_map(mount)
        .filter(|(_, options)| !is_read_only(options))
        .map(|(point, _)| point);
    let foreign = writable_beyond_design(points);
    if foreign.is_empty() {
        LayerStatus::Enforced
    } else {
        absent(format!("writable: {}", foreign.join(", ")))
    }
}

fn network(devices: &str) -> LayerStatus {
    let names: Vec<&str> = devices
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim())
        .collect();
    // An interface that is down is there to be brought up by whoever has the right; count it.
    if names == ["lo"] {
        LayerStatus::Enforced
    } else {
        absent(format!("interfaces are {names:?}"))
    }
}

fn namespaces(pid: i32) -> LayerStatus {
    let mut shared = BTreeSet::new();
    for kind in ["mnt", "uts", "ipc", "net", "pid", "cgroup"] {
        let own = fs::read_link(format!("/proc/self/ns/{kind}"));
        let theirs = fs::read_link(format!("/proc/{pid}/ns/{kind}"));
        match (own, theirs) {
            (Ok(own), Ok(theirs)) if own != theirs => {}
            _ => {
                shared.insert(kind);
            }
        }
    }
    if shared.is_empty() {
        LayerStatus::Enforced
    } else {
        absent(format!("shared with the host or unreadable: {shared:?}"))
    }
}
