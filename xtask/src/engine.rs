//! A private Docker engine for tests: own data, own socket, no bridge, no firewall rule.
//!
//! It must never touch an engine that somebody else started, the default socket, or the machine's
//! network settings. `down` ends only what `up` started in the same directory.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::sh;

/// Longest wait for the engine's first answer: polls of [`POLL`]. Past it `up` fails with its log.
const START_POLLS: u32 = 600;
/// Attempts to start it.
const START_ATTEMPTS: u32 = 3;
/// Longest wait for the engine's end before it is killed, in polls.
const STOP_POLLS: u32 = 200;
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(100);
/// Attempts to install the engine; package mirrors fail now and then.
const INSTALL_ATTEMPTS: u32 = 3;
/// Socket paths are limited by the kernel to 108 bytes, the final zero included.
const MAX_SOCKET_PATH: usize = 107;
/// Longest wait for one answer of the engine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Installs what is missing, starts the engine, and returns its `DOCKER_HOST`. Does nothing when it
/// runs already. gVisor's runtime is among its runtimes when it is installed.
pub(crate) fn up(dir: &Path) -> anyhow::Result<String> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let dir = dir.canonicalize()?;
    let place = Place { dir };
    // Two callers at once: the second waits and then finds the engine running.
    let lock = File::create(place.path("lock"))?;
    lock.lock().context("cannot lock the engine's directory")?;

    let socket = place.socket();
    if socket.as_os_str().len() > MAX_SOCKET_PATH {
        bail!(
            "{} is longer than {MAX_SOCKET_PATH} bytes: choose a shorter directory",
            socket.display()
        );
    }
    let host = format!("unix://{}", socket.display());
    if place.answers() {
        return Ok(host);
    }
    install(&place.path("apt.log"), "dockerd", &["docker.io"])?;
    if place.start_and_wait()? {
        return Ok(host);
    }
    bail!(
        "the engine did not start; end of {}:\n{}",
        place.path("dockerd.log").display(),
        place.log_tail()
    )
}

/// Removes the containers of the engine in `dir` and stops it. Does nothing when it does not run.
pub(crate) fn down(dir: &Path) {
    let Ok(dir) = dir.canonicalize() else { return };
    let place = Place { dir };
    if place.pid().is_none() && place.has_orphans() {
        // An engine that was killed leaves its containers running: only an engine can remove them.
        let _ = place.start_and_wait();
    }
    if let Some(pid) = place.pid() {
        place.stop(pid);
    }
    let _ = fs::remove_file(place.path("dockerd.pid"));
    let _ = fs::remove_file(place.socket());
    // An engine that was killed once leaves the mount of its data behind.
    for mount in place.mounts() {
        let _ = sh::cmd("umount").arg(mount).status();
    }
}

/// The engine's directory.
struct Place {
    dir: PathBuf,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("docker.sock")
    }

    /// Removes every container and ends the engine.
    fn stop(&self, pid: u32) {
        // With live restore a container would outlive its engine.
        for id in self.containers() {
            let _ = self.ask("DELETE", &format!("/containers/{id}?force=1&v=1"));
        }
        signal(pid, "TERM");
        for _ in 0..STOP_POLLS {
            if self.pid().is_none() {
                return;
            }
            sleep(POLL);
        }
        signal(pid, "KILL");
    }

    /// True when a helper of this engine's containers runs.
    fn has_orphans(&self) -> bool {
        let exec = self.path("exec");
        let ours = exec.as_os_str().as_encoded_bytes();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
            .any(|cmdline| cmdline.split(|b| *b == 0).any(|arg| arg.starts_with(ours)))
    }

    /// The engine's process, when the pid file names a process that is this engine and no other.
    fn pid(&self) -> Option<u32> {
        let pid: u32 = fs::read_to_string(self.path("dockerd.pid")).ok()?.trim().parse().ok()?;
        let cmdline = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let root = self.path("root");
        let is_ours =
            cmdline.split(|b| *b == 0).any(|arg| arg == root.as_os_str().as_encoded_bytes());
        is_ours.then_some(pid)
    }

    /// Starts it; `false` when it did not come up. After it was killed, its first start often gives up
    /// on a helper of the old one, and the second works.
    fn start_and_wait(&self) -> anyhow::Result<bool> {
        for _ in 0..START_ATTEMPTS {
            if self.try_start()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn try_start(&self) -> anyhow::Result<bool> {
        let mut engine = self.start()?;
        for _ in 0..START_POLLS {
            if self.answers() {
                return Ok(true);
            }
            if engine.try_wait()?.is_some() {
                return Ok(false);
            }
            sleep(POLL);
        }
        Ok(false)
    }

    fn start(&self) -> anyhow::Result<Child> {
        if self.pid().is_none() {
            // Left by an engine that was killed: dockerd would refuse to start.
            let _ = fs::remove_file(self.path("dockerd.pid"));
        }
        let log = File::create(self.path("dockerd.log"))?;
        // Its own configuration, never the machine's.
        fs::write(self.path("daemon.json"), runtimes())?;
        // Its own session, so that Ctrl-C in the caller's terminal does not reach it.
        sh::cmd("setsid")
            .arg("dockerd")
            .arg("--config-file")
            .arg(self.path("daemon.json"))
            .args(["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"])
            .arg("--live-restore")
            .arg("--data-root")
            .arg(self.path("root"))
            .arg("--exec-root")
            .arg(self.path("exec"))
            .arg("--pidfile")
            .arg(self.path("dockerd.pid"))
            .arg("--host")
            .arg(format!("unix://{}", self.socket().display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start dockerd")
    }

    fn answers(&self) -> bool {
        self.ask("GET", "/_ping").is_ok_and(|answer| answer.trim_end().ends_with("OK"))
    }

    fn containers(&self) -> Vec<String> {
        let Ok(answer) = self.ask("GET", "/containers/json?all=1") else { return Vec::new() };
        let Some((_, body)) = answer.split_once("\r\n\r\n") else { return Vec::new() };
        let list: Vec<serde_json::Value> = serde_json::from_str(body.trim()).unwrap_or_default();
        list.iter().filter_map(|entry| entry["Id"].as_str().map(str::to_owned)).collect()
    }

    /// Mount points below the directory, deepest first.
    fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(&self.dir)).collect();
        below.sort();
        below.reverse();
        below
    }

    /// One request. HTTP 1.0, so that the answer ends with the connection and is not chunked.
    fn ask(&self, method: &str, path: &str) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        write!(stream, "{method} {path} HTTP/1.0\r\nHost: engine\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.path("dockerd.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// Configuration of the engine: gVisor where it is installed.
fn runtimes() -> String {
    let found =
        ["/usr/bin/runsc", "/usr/local/bin/runsc"].into_iter().find(|p| Path::new(p).exists());
    let runtimes = found.map_or_else(
        || serde_json::json!({}),
        |path| {
            // The oldest platform, which needs neither KVM nor a new kernel.
            let arguments = ["--network=none", "--platform=ptrace", "--oci-seccomp"];
            serde_json::json!({ "runsc": { "path": path, "runtimeArgs": arguments } })
        },
    );
    serde_json::json!({ "runtimes": runtimes }).to_string()
}

fn installed(program: &str) -> bool {
    sh::cmd(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Installs `packages` unless `program` is there.
pub(crate) fn install(log_path: &Path, program: &str, packages: &[&str]) -> anyhow::Result<()> {
    if installed(program) {
        return Ok(());
    }
    let names = packages.join(" ");
    let advice = format!("install it by hand ({names})");
    if sh::cmd("apt-get").arg("--version").stdout(Stdio::null()).status().is_err() {
        bail!("{program} is missing and there is no apt-get: {advice}");
    }
    sh::say(&format!("   installing {names}, log in {}", log_path.display()));
    for attempt in 1..=INSTALL_ATTEMPTS {
        let log = File::create(log_path)?;
        let apt = |args: &[&str]| -> anyhow::Result<bool> {
            let status = sh::cmd("apt-get")
                .args(["-qq", "-o", "DPkg::Lock::Timeout=300"])
                .args(args)
                .env("DEBIAN_FRONTEND", "noninteractive")
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log.try_clone()?)
                .status()?;
            Ok(status.success())
        };
        // A failed update leaves the lists of last time, which may still do.
        let _ = apt(&["update"])?;
        let mut arguments = vec!["install", "-y", "--no-install-recommends"];
        arguments.extend(packages);
        if apt(&arguments)? && installed(program) {
            return Ok(());
        }
        sh::say(&format!("   attempt {attempt} of {INSTALL_ATTEMPTS} failed"));
        sleep(POLL * 20);
    }
    bail!("{names} did not install, see {}: {advice} (installing needs root)", log_path.display())
}

pub(crate) fn signal(pid: u32, name: &str) {
    let _ = sh::cmd("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
}
