//! Starting a prepared sandbox, looking at it before its first instruction, and control over it.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_run::engine::EngineKind;
use cofferdam_run::fact::{ResourceUse, TeardownOutcome};
use cofferdam_run::ids::{InstanceId, RunId};
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use super::handoff::{GO, LaunchReport, REPORT_BYTES, files};
use super::outside;
use super::prepare::NativePrepared;
use super::process::ProcessId;
use super::{cgroup, io_error, label, salvage, shell_host, sweep, unlinked};
use crate::engine::{Control, Running, SandboxExit};
use crate::error::SandboxError;
use crate::spec::Hardening;
use crate::volume::{self, Stop, WorkUse};

/// How long a launch may take, milliseconds. Past it the sandbox is removed and the start fails.
pub const LAUNCH_MS: u64 = 30_000;
/// Most bytes of a failed launcher's last words that go into the error; the rest is dropped.
const LAST_WORDS: u64 = 4_096;

pub(super) async fn start(prepared: NativePrepared) -> Result<Running, SandboxError> {
    let (runs_root, label) = (prepared.runs_root.clone(), prepared.label.clone());
    let limit = Duration::from_millis(LAUNCH_MS);
    let result = match tokio::time::timeout(limit, launch(prepared)).await {
        Ok(result) => result,
        Err(_elapsed) => Err(SandboxError::Timeout {
            engine: EngineKind::Native,
            attempt: "bring the sandbox up",
            limit_ms: LAUNCH_MS,
        }),
    };
    if result.is_err() {
        // Whatever is left stays labelled and is found by `list`.
        let outcome = sweep::remove(&runs_root, &label.instance, &label.run).await;
        if let TeardownOutcome::Failed { detail } = outcome {
            tracing::warn!(run = %label.run, detail, "a sandbox that failed to start is not all gone");
        }
    }
    result
}

#[expect(clippy::disallowed_methods, reason = "the engine is the place that starts the launcher")]
fn spawn(prepared: &NativePrepared) -> Result<Child, SandboxError> {
    tokio::process::Command::new(&prepared.launcher)
        .arg(prepared.launch.run_dir.join(files::LAUNCH))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io_error("start", &prepared.launcher))
}

async fn launch(prepared: NativePrepared) -> Result<Running, SandboxError> {
    let run_dir = prepared.launch.run_dir.clone();
    let mut child = spawn(&prepared)?;
    let missing = |what: &str| failed("start the launcher", format!("it has no {what}"));
    let mut stdin = child.stdin.take().ok_or_else(|| missing("standard input"))?;
    let mut stdout = child.stdout.take().ok_or_else(|| missing("standard output"))?;
    let mut stderr = child.stderr.take().ok_or_else(|| missing("standard error"))?;

    let mut label = prepared.label.clone();
    label.launcher = child.id().and_then(|pid| ProcessId::of(pid.try_into().ok()?).ok());
    label.write(&run_dir).map_err(io_error("write the label in", &run_dir))?;

    let restricted = match read_report(&mut stdout).await {
        Ok(LaunchReport::Ready { landlock, seccomp_filters, .. })
            if seccomp_filters > 0 || !prepared.launch.hardening.asks_for(Layer::Seccomp) =>
        {
            landlock
        }
        Ok(LaunchReport::Ready { .. }) => {
            return Err(failed("install the system-call filter", "none was installed".to_owned()));
        }
        Ok(LaunchReport::Failed { stage, detail }) => {
            return Err(SandboxError::Launch { stage, detail });
        }
        Err(detail) => return Err(last_words(&mut child, &mut stderr, detail).await),
    };
    let first = label::read_json::<ProcessId>(&run_dir.join(files::CHILD))
        .map_err(io_error("read", &run_dir.join(files::CHILD)))?
        .filter(|process| process.is_running())
        .ok_or_else(|| failed("find the first process", "it has gone".to_owned()))?;
    let outside = outside::look(first.pid, &prepared.launch, &restricted)
        .map_err(|error| failed("look at the first process", error.to_string()))?;
    refuse_broken(&outside, &prepared.launch.hardening)?;
    if let Some(second) = &prepared.launch.second_net {
        let layers = shell_host::look(first.pid, second, &prepared.launch, &restricted)
            .map_err(|detail| failed("look at the shell host", detail))?;
        refuse_broken(&layers, &prepared.launch.hardening)?;
    }

    // The word: until here nothing but the launcher has run.
    let go = async {
        stdin.write_all(&[GO]).await?;
        stdin.flush().await
    };
    go.await.map_err(|error| failed("let the guest go", error.to_string()))?;
    Ok(running(prepared, child, first, (stdin, stdout, stderr), outside))
}

/// Layers that this engine always gives when they are asked for. One that does not show means that something is wrong with
/// the launch itself: the guest does not start, whatever the caller would accept.
fn refuse_broken(outside: &[LayerReport], asked: &Hardening) -> Result<(), SandboxError> {
    for report in outside {
        if let LayerStatus::Absent { reason } = &report.status
            && report.layer != Layer::Landlock
            && asked.asks_for(report.layer)
        {
            return Err(failed(
                "look at the first process",
                format!("{}: {reason}", report.layer.as_str()),
            ));
        }
    }
    Ok(())
}

fn failed(stage: &str, detail: String) -> SandboxError {
    SandboxError::Launch { stage: stage.to_owned(), detail }
}

/// Reads exactly the report line. Nothing follows it before the word is given, so the first byte
/// after it is the guest's and stays in the pipe.
async fn read_report(stdout: &mut ChildStdout) -> Result<LaunchReport, String> {
    let mut line = Vec::new();
    loop {
        let mut buffer = [0u8; 1024];
        let n = stdout.read(&mut buffer).await.map_err(|error| error.to_string())?;
        if n == 0 {
            return Err("it ended without a report".to_owned());
        }
        line.extend_from_slice(&buffer[..n]);
        if line.len() > REPORT_BYTES {
            return Err("its report does not end".to_owned());
        }
        if let Some(text) = line.strip_suffix(b"\n") {
            return serde_json::from_slice(text).map_err(|error| error.to_string());
        }
    }
}

async fn last_words(child: &mut Child, stderr: &mut ChildStderr, detail: String) -> SandboxError {
    // The launcher holds no secret and the guest has not run, so its words may be shown.
    let _already_ended = child.start_kill();
    let mut words = Vec::new();
    let _cut = stderr.take(LAST_WORDS).read_to_end(&mut words).await;
    let status = child.wait().await.map_or_else(|e| e.to_string(), |s| s.to_string());
    let words = String::from_utf8_lossy(&words);
    failed("run the launcher", format!("{detail}; {status}; {}", words.trim()))
}

fn running(
    prepared: NativePrepared,
    child: Child,
    first: ProcessId,
    (stdin, stdout, stderr): (ChildStdin, ChildStdout, ChildStderr),
    outside: Vec<LayerReport>,
) -> Running {
    let control = NativeControl {
        child,
        first,
        ended: None,
        cgroups: prepared.launch.cgroups,
        runs_root: prepared.runs_root,
        instance: prepared.label.instance,
        run: prepared.label.run,
    };
    Running {
        stdin: Box::new(stdin),
        stdout: Box::new(stdout),
        stderr: Box::new(stderr),
        control: Box::new(control),
        outside,
    }
}

struct NativeControl {
    child: Child,
    first: ProcessId,
    ended: Option<SandboxExit>,
    cgroups: Vec<PathBuf>,
    runs_root: PathBuf,
    instance: InstanceId,
    run: RunId,
}

impl NativeControl {
    fn work(&self) -> PathBuf {
        self.runs_root.join(self.run.as_str()).join(files::WORK)
    }

    fn exit_of(&self, status: std::io::Result<ExitStatus>) -> SandboxExit {
        use std::os::unix::process::ExitStatusExt as _;
        let oom_killed = cgroup::oom_killed(&self.cgroups);
        match status {
            Ok(status) => SandboxExit { code: status.code(), signal: status.signal(), oom_killed },
            Err(_unknown) => SandboxExit { code: None, signal: None, oom_killed },
        }
    }
}

#[async_trait]
impl Control for NativeControl {
    async fn wait(&mut self) -> SandboxExit {
        if let Some(exit) = self.ended {
            return exit;
        }
        let status = self.child.wait().await;
        let exit = self.exit_of(status);
        self.ended = Some(exit);
        exit
    }

    async fn kill(&mut self) {
        // The first process takes the whole namespace with it, and its parent reports how it ended.
        self.first.kill();
    }

    async fn usage(&mut self) -> ResourceUse {
        // A handful of files that the kernel makes up: not worth a thread.
        cgroup::usage::read(&self.cgroups)
    }

    async fn work_use(&mut self, stop: Stop) -> Option<WorkUse> {
        let (work, first) = (self.work(), self.first);
        let _ends_with_the_caller = stop.guard();
        let counted = tokio::task::spawn_blocking(move || {
            let mut seen = volume::count(&work, &stop)?;
            let open = unlinked::bytes(&work, first.pid);
            seen.bytes = seen.bytes.saturating_add(open);
            Ok::<_, std::io::Error>(seen)
        });
        match counted.await {
            Ok(Ok(seen)) => Some(seen),
            Ok(Err(error)) => {
                tracing::warn!(run = %self.run, error = %error, "work volume not counted");
                None
            }
            Err(_) => None,
        }
    }

    fn work_place(&self) -> Option<PathBuf> {
        Some(self.work())
    }

    async fn salvage(&mut self, to: &Path) -> Result<bool, SandboxError> {
        self.first.kill();
        self.wait().await;
        salvage::take(&self.runs_root, &self.instance, &self.run, to).await
    }

    async fn teardown(mut self: Box<Self>) -> TeardownOutcome {
        self.first.kill();
        let limit = Duration::from_millis(cgroup::removal::LEAVE_MS);
        if tokio::time::timeout(limit, self.child.wait()).await.is_err() {
            let _already_ended = self.child.start_kill();
        }
        sweep::remove(&self.runs_root, &self.instance, &self.run).await
    }
}
