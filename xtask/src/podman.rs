//! A private Podman service for the conformance suite, as root or as an ordinary user: own storage, own
//! socket, no configuration of the machine's.
//!
//! It ends only what it started in the same directory. The ordinary user is made once and kept: it owns
//! nothing but the range of ids that rootless engines need.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::{engine, sh};

/// The user that rootless containers belong to.
const USER: &str = "cofferdam-podman";
/// Looks at whether the service listens, and at whether it has ended.
const LOOKS: u32 = 300;
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Installs what is missing, starts the service in `dir`, and returns its address.
pub(crate) fn up(dir: &Path, rootless: bool) -> anyhow::Result<String> {
    fs::create_dir_all(dir)?;
    let dir = dir.canonicalize()?;
    let log = dir.join("apt.log");
    engine::install(&log, "podman", &["podman", "uidmap", "catatonit"])?;
    engine::install(&log, "runc", &["runc"])?;
    let socket = dir.join("podman.sock");
    let host = format!("unix://{}", socket.display());
    if UnixStream::connect(&socket).is_ok() {
        return Ok(host);
    }
    let _stale = fs::remove_file(&socket);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    for sub in ["home", "run"] {
        fs::create_dir_all(dir.join(sub))?;
    }
    fs::set_permissions(dir.join("run"), fs::Permissions::from_mode(0o700))?;
    if rootless {
        make_user()?;
        sh::run(sh::cmd("chown").arg("-R").arg(USER).arg(&dir))?;
    }
    start(&dir, rootless)?;
    for _ in 0..LOOKS {
        if UnixStream::connect(&socket).is_ok() {
            return Ok(host);
        }
        sleep(PAUSE);
    }
    let said = fs::read_to_string(dir.join("podman.log")).unwrap_or_default();
    bail!("podman does not listen at {}: {}", socket.display(), said.trim())
}

/// Once; a second call finds it there. Its range of ids comes from the system's own tool.
fn make_user() -> anyhow::Result<()> {
    let there = sh::cmd("id").arg(USER).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !there.success() {
        sh::run(sh::cmd("useradd").args([
            "--no-create-home",
            "--home-dir",
            "/nonexistent",
            "--shell",
            "/usr/sbin/nologin",
            USER,
        ]))?;
    }
    let ranges = fs::read_to_string("/etc/subuid").unwrap_or_default();
    if !ranges.lines().any(|line| line.starts_with(&format!("{USER}:"))) {
        bail!("{USER} has no range of ids in /etc/subuid: add one with `usermod --add-subuids`");
    }
    Ok(())
}

fn start(dir: &Path, rootless: bool) -> anyhow::Result<()> {
    let log = File::create(dir.join("podman.log"))?;
    let mut command = sh::cmd("setsid");
    if rootless {
        command.args(["setpriv", "--reuid", USER, "--regid", USER, "--init-groups"]);
    }
    // Nothing of the caller's environment but where programs are: no configuration of a person.
    #[expect(clippy::disallowed_methods, reason = "xtask hands its own search path on")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    command
        .arg("podman")
        .arg("--root")
        .arg(dir.join("root"))
        .arg("--runroot")
        .arg(dir.join("runroot"))
        .arg("--tmpdir")
        .arg(dir.join("tmp"))
        // Debian's other runtime refuses machines with both versions of control groups.
        .args(["--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--runtime", "runc"])
        .args(["--events-backend", "file", "system", "service", "--time", "0"])
        .arg(format!("unix://{}", dir.join("podman.sock").display()))
        .current_dir(dir)
        .env_clear()
        .env("PATH", path)
        .env("HOME", dir.join("home"))
        .env("XDG_RUNTIME_DIR", dir.join("run"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    command.spawn().context("cannot start podman")?;
    Ok(())
}

/// Ends the service of `dir` with all that belongs to it, and removes the directory.
pub(crate) fn down(dir: &Path) {
    let Ok(dir) = dir.canonicalize() else { return };
    for name in ["TERM", "KILL"] {
        for _ in 0..LOOKS {
            let ours = processes(&dir);
            if ours.is_empty() {
                break;
            }
            for pid in ours {
                engine::signal(pid, name);
            }
            sleep(PAUSE);
        }
    }
    for mount in mounts(&dir) {
        let _ = sh::cmd("umount").arg("--lazy").arg(mount).status();
    }
    let _ = sh::cmd("rm").arg("-rf").arg(&dir).status();
}

/// Processes whose command line names the directory: the service, the monitors of its containers, and the
/// one that holds a rootless engine's namespace.
fn processes(dir: &Path) -> Vec<u32> {
    let ours = dir.as_os_str().as_encoded_bytes();
    let own = std::process::id();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let name = fs::read(entry.path().join("comm")).ok()?;
            let engine = name.starts_with(b"podman") || name.starts_with(b"conmon");
            let holder = engine
                && fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
            let named = engine && line.windows(ours.len()).any(|part| part == ours);
            (pid != own && (named || holder)).then_some(pid)
        })
        .collect()
}

/// Mount points below the directory, deepest first.
fn mounts(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    below.sort();
    below.reverse();
    below
}
