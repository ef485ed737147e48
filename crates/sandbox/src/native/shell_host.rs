//! The host's own view of the second process of a sandbox that keeps the shell apart.
//!
//! It accepts nothing but a process that differs from the first in its network namespace alone.

use std::fs;
use std::io;

use cofferdam_run::posture::LayerReport;

use super::handoff::{LandlockOutcome, LaunchSpec, SecondNet};
use super::outside;

/// Looks at it before its first instruction, `first` being the first process. Gives its layers.
pub(super) fn look(
    first: i32,
    second: &SecondNet,
    launch: &LaunchSpec,
    restricted: &LandlockOutcome,
) -> Result<Vec<LayerReport>, String> {
    let pid = only_child(first).map_err(|e| format!("it cannot be found: {e}"))?;
    let link = |pid: i32, kind: &str| {
        fs::read_link(format!("/proc/{pid}/ns/{kind}"))
            .map_err(|e| format!("its {kind} namespace cannot be read: {e}"))
    };
    for kind in ["mnt", "uts", "ipc", "pid", "cgroup", "user"] {
        if link(first, kind)? != link(pid, kind)? {
            return Err(format!("its {kind} namespace is not the first process's"));
        }
    }
    if !second.shared && link(first, "net")? == link(pid, "net")? {
        return Err("its network namespace is the first process's".to_owned());
    }
    let cgroups = |pid: i32| {
        fs::read(format!("/proc/{pid}/cgroup"))
            .map_err(|e| format!("its cgroups cannot be read: {e}"))
    };
    if cgroups(first)? != cgroups(pid)? {
        return Err("it is not in the first process's cgroups".to_owned());
    }
    outside::look(pid, launch, restricted).map_err(|e| e.to_string())
}

/// Nothing but the launcher has run yet, so that there is exactly one.
fn only_child(parent: i32) -> io::Result<i32> {
    let children = match fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")) {
        // Not every kernel lists them.
        Err(error) if error.kind() == io::ErrorKind::NotFound => by_search(parent)?,
        read => read?.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
    };
    match children.as_slice() {
        [only] => Ok(*only),
        others => Err(io::Error::other(format!("there are {} processes", others.len()))),
    }
}

fn by_search(parent: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that has ended meanwhile is not it.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let its = stat.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2)?.parse().ok());
        if its == Some(parent) {
            found.push(pid);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a child to be found")]
    fn both_ways_find_the_same_children() {
        let me = std::process::id().cast_signed();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let found = by_search(me).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&pid), "{found:?} without {pid}");
    }
}
