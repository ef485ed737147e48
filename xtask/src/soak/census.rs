//! Counting what is left, kind by kind. Only what a record retains may be.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::{World, walk};
use crate::sh;

/// Looks, half a second apart, until the last processes are gone: git calls of a killed host end by
/// themselves.
const LOOKS: u32 = 40;

/// Everything that is left and should not be.
pub(super) fn left(world: &World) -> anyhow::Result<Vec<String>> {
    let ids = run_ids(world)?;
    let mut found = processes(world);
    for _ in 0..LOOKS {
        if found.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
        found = processes(world);
    }
    let count = |what: &str, more: Vec<String>, found: &mut Vec<String>| {
        sh::say(&format!("   {:12} {}", what, more.len()));
        found.extend(more.into_iter().map(|m| format!("{what}: {m}")));
    };
    let gone = std::mem::take(&mut found);
    count("processes", gone, &mut found);
    count("mounts", lines("/proc/self/mountinfo", &world.place), &mut found);
    count("sockets", sockets(world), &mut found);
    count("cgroups", cgroups(&ids), &mut found);
    count("containers", objects(world, &ids, "container")?, &mut found);
    count("volumes", objects(world, &ids, "volume")?, &mut found);
    count("directories", directories(world, &ids)?, &mut found);
    count("temporary", temporary(world), &mut found);
    count("refs", refs(world)?, &mut found);
    count("git", repository(world), &mut found);
    Ok(found)
}

fn run_ids(world: &World) -> anyhow::Result<BTreeSet<String>> {
    let listed = world.json(&["ps", "--json", "-n", "10000"])?;
    let runs = listed["runs"].as_array().cloned().unwrap_or_default();
    Ok(runs.iter().filter_map(|r| r["run"].as_str().map(str::to_owned)).collect())
}

fn lines(file: &str, place: &Path) -> Vec<String> {
    let place = place.to_string_lossy().into_owned();
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.contains(&place)).map(str::to_owned).collect()
}

/// Processes that were started with our place in their arguments or environment, that stand in it, or
/// that see it in their mounts.
fn processes(world: &World) -> Vec<String> {
    let place = world.place.to_string_lossy().into_owned();
    let me = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if pid.parse::<u32>().is_err() || pid == me {
            continue;
        }
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let texts = ["cmdline", "environ", "mountinfo"].map(read);
        let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        let ours = cwd.starts_with(&place)
            || texts.iter().any(|t| String::from_utf8_lossy(t).contains(&place));
        if ours {
            let line = String::from_utf8_lossy(&texts[0]).replace('\0', " ");
            found.push(format!("{pid} {line}"));
        }
    }
    found
}

fn sockets(world: &World) -> Vec<String> {
    let mut found = lines("/proc/net/unix", &world.place);
    let is_socket = |path: &std::path::PathBuf| {
        path.symlink_metadata().is_ok_and(|m| m.file_type().is_socket())
    };
    found.extend(
        walk(&world.place).iter().filter(|p| is_socket(p)).map(|p| p.display().to_string()),
    );
    found
}

/// Control groups named after one of our runs, in any hierarchy.
fn cgroups(ids: &BTreeSet<String>) -> Vec<String> {
    let ours = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| ids.contains(name.to_string_lossy().as_ref()))
    };
    walk(Path::new("/sys/fs/cgroup"))
        .iter()
        .filter(|p| ours(p))
        .map(|p| p.display().to_string())
        .collect()
}

/// Containers or volumes that carry the id of one of our runs.
fn objects(world: &World, ids: &BTreeSet<String>, kind: &str) -> anyhow::Result<Vec<String>> {
    if world.engine == "native" {
        return Ok(Vec::new());
    }
    let format = "{{.Label \"cofferdam.run\"}} {{.Name}}"
        .replace(".Name", if kind == "container" { ".ID" } else { ".Name" });
    let mut command = sh::cmd("docker");
    command.args(if kind == "container" { vec!["ps", "-a"] } else { vec!["volume", "ls"] });
    command.args(["--filter", "label=cofferdam.managed=1", "--format", &format]);
    #[expect(clippy::disallowed_methods, reason = "xtask reads where the test engine is")]
    if let Some(host) = std::env::var_os("COFFERDAM_TEST_DOCKER_HOST") {
        command.env("DOCKER_HOST", host);
    }
    let listed = sh::output(&mut command)?;
    let ours = |line: &&str| line.split(' ').next().is_some_and(|id| ids.contains(id));
    Ok(listed.lines().filter(ours).map(str::to_owned).collect())
}

/// What lies in the data directory and no record retains.
fn directories(world: &World, ids: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(world.data())?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let inside = || {
            let listed = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            listed.map(|e| e.path())
        };
        match name.as_str() {
            // One of the ledger's, and the engine's locks and remembered images.
            name if name.starts_with("ledger.") || name == "engine" => {}
            "runs" | "trash" => found.extend(inside().map(|p| p.display().to_string())),
            "salvage" => {
                for path in inside() {
                    if !is_retained(world, ids, &path)? {
                        found.push(format!("{}, which no record retains", path.display()));
                    }
                }
            }
            _ => found.push(entry.path().display().to_string()),
        }
    }
    Ok(found)
}

fn is_retained(world: &World, ids: &BTreeSet<String>, path: &Path) -> anyhow::Result<bool> {
    let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !ids.contains(&id) {
        return Ok(false);
    }
    let record: Value = world.json(&["record", "show", &id])?;
    let shown = path.display().to_string();
    let entries = record["entries"].as_array().cloned().unwrap_or_default();
    Ok(entries.iter().any(|e| e["type"] == "retained" && e["place"] == shown.as_str()))
}

fn temporary(world: &World) -> Vec<String> {
    let places = ["tmp", "home"].map(|name| walk(&world.place.join(name)));
    places.into_iter().flatten().map(|p| p.display().to_string()).collect()
}

/// Refs of ours that no record speaks of.
fn refs(world: &World) -> anyhow::Result<Vec<String>> {
    let listed = world.git(&["for-each-ref", "--format=%(refname)", "refs/cofferdam"])?;
    let mut found = Vec::new();
    for reference in listed.lines() {
        let id = reference.split('/').nth(3).unwrap_or_default();
        let record = world.json(&["record", "show", id]).unwrap_or_default();
        let entries = record["entries"].as_array().cloned().unwrap_or_default();
        let fetched = entries
            .iter()
            .any(|e| e["type"] == "collected" && e["outcome"]["outcome"] == "fetched");
        if !fetched {
            found.push(format!("{reference}, whose record has no commits"));
        }
    }
    let all = world.git(&["for-each-ref", "--format=%(refname)"])?;
    let foreign = |r: &&str| !r.starts_with("refs/cofferdam/") && *r != "refs/heads/main";
    found.extend(all.lines().filter(foreign).map(str::to_owned));
    Ok(found)
}

/// Locks, temporary objects and scratch in the person's repository.
fn repository(world: &World) -> Vec<String> {
    let git = world.repo().join(".git");
    let stale = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let scratch = path.parent() == Some(&git.join("cofferdam")) && name != "apply.lock";
        (name.ends_with(".lock") && name != "apply.lock") || name.starts_with("tmp_") || scratch
    };
    walk(&git).iter().filter(|p| stale(p)).map(|p| p.display().to_string()).collect()
}
