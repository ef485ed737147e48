//! From a specification to a sandbox that exists and has not started.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use cofferdam_run::engine::EngineKind;
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::ids::Digest;
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};
use cofferdam_wire::layout;
use sha2::Digest as _;

use super::cgroup::{Hierarchies, RunCgroups};
use super::handoff::{LaunchRoot, LaunchSpec, SecondNet, UserMap, files};
use super::label::{self, Label};
use super::launcher::privileges::counts_processes_per_namespace;
use super::process::ProcessId;
use super::{NativeEngine, io_error, running, sweep};
use crate::engine::{Evidence, Prepared, RootSource, Running, SandboxSpec};
use crate::error::SandboxError;

/// A native sandbox that exists and has not started.
#[derive(Debug)]
pub(super) struct NativePrepared {
    pub(super) identity: String,
    pub(super) evidence: Evidence,
    pub(super) launcher: PathBuf,
    pub(super) launch: LaunchSpec,
    pub(super) label: Label,
    pub(super) runs_root: PathBuf,
}

pub(super) async fn prepare(
    engine: &NativeEngine,
    spec: &SandboxSpec,
) -> Result<NativePrepared, SandboxError> {
    let launcher = engine.launcher()?;
    let root = launch_root(&spec.root)?;
    check_run_dir(engine, spec)?;
    let (builder, wanted) = (engine.clone(), spec.clone());
    // Hashing the guest and writing files block: off the event loop with them.
    let made = tokio::task::spawn_blocking(move || build(&builder, &wanted, launcher, root)).await;
    let result = made.unwrap_or_else(|error| {
        Err(SandboxError::Engine {
            engine: EngineKind::Native,
            attempt: "prepare the sandbox",
            detail: error.to_string(),
        })
    });
    if let Err(error) = &result
        && !matches!(error, SandboxError::Exists { .. })
    {
        // What was made so far carries the label; what cannot be removed now is found by `list`.
        sweep::remove(&engine.config.runs_root, &spec.instance, &spec.run).await;
    }
    result
}

/// `list` looks below the runs root only, so nothing may be made elsewhere.
fn check_run_dir(engine: &NativeEngine, spec: &SandboxSpec) -> Result<(), SandboxError> {
    if spec.run_dir == engine.config.runs_root.join(spec.run.as_str()) && spec.run_dir.is_absolute()
    {
        return Ok(());
    }
    Err(SandboxError::Io {
        attempt: "use as the run's directory",
        path: spec.run_dir.clone(),
        source: io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it must be {}/{}", engine.config.runs_root.display(), spec.run),
        ),
    })
}

fn launch_root(root: &RootSource) -> Result<LaunchRoot, SandboxError> {
    let refuse = |reason: String| SandboxError::Root { engine: EngineKind::Native, reason };
    match root {
        RootSource::HostUserland => Ok(LaunchRoot::HostUserland),
        RootSource::Directory(path) => {
            // Its top must be the directory itself: a link could be turned elsewhere later.
            let canonical = path.canonicalize().map_err(io_error("find", path))?;
            if canonical == Path::new("/") {
                return Err(refuse("it is the host's own root".to_owned()));
            }
            if !canonical.join("usr").is_dir() && !canonical.join("bin").is_dir() {
                return Err(refuse(format!("{} holds neither usr nor bin", path.display())));
            }
            Ok(LaunchRoot::Directory(canonical))
        }
        RootSource::Image(name) => {
            Err(refuse(format!("image {name} must be unpacked to a directory first")))
        }
    }
}

fn build(
    engine: &NativeEngine,
    spec: &SandboxSpec,
    launcher: PathBuf,
    root: LaunchRoot,
) -> Result<NativePrepared, SandboxError> {
    let hardening = &spec.hardening;
    let guest = file_digest(&spec.guest_binary).map_err(io_error("read", &spec.guest_binary))?;
    let host = ProcessId::current().map_err(io_error("read", Path::new("/proc/self/stat")))?;

    make_private(&engine.config.runs_root)?;
    make_private(&spec.run_dir)?;
    let label = Label {
        run: spec.run.clone(),
        instance: spec.instance.clone(),
        expires_at: spec.expires_at,
        launcher: None,
    };
    if Label::read(&spec.run_dir).map_err(io_error("read the label in", &spec.run_dir))?.is_some() {
        return Err(SandboxError::Exists { sandbox: label.identity() });
    }
    label.write(&spec.run_dir).map_err(io_error("write the label in", &spec.run_dir))?;
    make_directory(&spec.run_dir.join(files::ROOT), None)?;

    let is_root = rustix::process::geteuid().is_root();
    make_directory(&spec.run_dir.join(files::WORK), is_root.then_some(layout::UID))?;
    let cgroups =
        RunCgroups::create(&Hierarchies::detect(), &spec.instance, &spec.run, &hardening.limits);
    let launch = LaunchSpec {
        host,
        grace_ms: engine.grace_ms,
        run_dir: spec.run_dir.clone(),
        guest: spec.guest_binary.clone(),
        root,
        hardening: hardening.clone(),
        digest: hardening.digest(),
        cgroups: cgroups.directories,
        cgroup_views: cgroups.views,
        user_map: (!is_root).then(|| UserMap {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }),
        command: command(engine, spec),
        second_net: spec
            .shell_host
            .then(|| SecondNet { command: engine.shell_host.clone(), shared: engine.shared_net }),
        extra: engine.extra.clone(),
    };
    let file = spec.run_dir.join(files::LAUNCH);
    label::write_json(&file, &launch).map_err(io_error("write", &file))?;
    let mut read_back = cgroups.read_back;
    if !is_root {
        count_rlimit(&mut read_back);
    }
    let evidence = Evidence {
        engine_version: version(),
        hardening: launch.digest.clone(),
        root: fingerprint(&launch.root),
        guest,
        read_back,
    };
    Ok(NativePrepared {
        identity: label.identity(),
        evidence,
        launcher,
        launch,
        label,
        runs_root: engine.config.runs_root.clone(),
    })
}

/// The guest is told that it was given the shell host's socket.
fn command(engine: &NativeEngine, spec: &SandboxSpec) -> Vec<String> {
    let mut command = engine.command.clone();
    if spec.shell_host && command == [layout::GUEST_BIN] {
        command.push("--shell-host".to_owned());
    }
    command
}

/// An ordinary user without a cgroup still gets a bound on processes: the launcher sets it per
/// process and the kernel counts it per user namespace.
fn count_rlimit(read_back: &mut [LayerReport]) {
    for report in read_back {
        if report.layer == Layer::PidsLimit
            && let LayerStatus::Absent { reason } = &report.status
            && counts_processes_per_namespace()
        {
            report.status = LayerStatus::Degraded {
                reason: format!("held by RLIMIT_NPROC of its own user namespace only: {reason}"),
            };
        }
    }
}

/// Version text: ours and the kernel's.
pub(super) fn version() -> String {
    let kernel = rustix::system::uname();
    let text = format!(
        "native {}, Linux {}",
        env!("CARGO_PKG_VERSION"),
        kernel.release().to_string_lossy()
    );
    text.chars().take(200).collect()
}

/// A directory for the owner only; made when missing.
fn make_private(path: &Path) -> Result<(), SandboxError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error("create", path))
}

/// A real directory, no link; its owner set as root.
fn make_directory(path: &Path, owner: Option<u32>) -> Result<(), SandboxError> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(path).map_err(io_error("look at", path))?;
            if !meta.is_dir() {
                return Err(io_error("use as a directory", path)(error));
            }
        }
        Err(error) => return Err(io_error("create", path)(error)),
    }
    if let Some(id) = owner {
        std::os::unix::fs::lchown(path, Some(id), Some(id)).map_err(io_error("give away", path))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(io_error("close", path))
}

fn file_digest(path: &Path) -> io::Result<Digest> {
    let mut file = fs::File::open(path)?;
    let mut hasher = sha2::Sha256::new();
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Digest::from_sha256(hasher.finalize().into())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// Tells one root from another: not a digest of every file, but of what changes when it is updated.
fn fingerprint(root: &LaunchRoot) -> String {
    let (name, top) = match root {
        LaunchRoot::HostUserland => ("host userland".to_owned(), PathBuf::from("/")),
        LaunchRoot::Directory(path) => (path.display().to_string(), path.clone()),
    };
    let mut seen = Vec::new();
    for file in ["usr/lib/os-release", "etc/ld.so.cache", "var/lib/dpkg/status", "var/lib/rpm"] {
        if let Ok(meta) = fs::metadata(top.join(file)) {
            seen.extend_from_slice(file.as_bytes());
            for number in [meta.len(), meta.ino(), meta.mtime().unsigned_abs()] {
                seen.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
    seen.extend_from_slice(&fs::read(top.join("usr/lib/os-release")).unwrap_or_default());
    format!("{name} {}", Digest::of(&seen))
}

#[async_trait]
impl Prepared for NativePrepared {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    async fn start(self: Box<Self>) -> Result<Running, SandboxError> {
        running::start(*self).await
    }

    async fn teardown(self: Box<Self>) -> TeardownOutcome {
        sweep::remove(&self.runs_root, &self.label.instance, &self.label.run).await
    }
}
