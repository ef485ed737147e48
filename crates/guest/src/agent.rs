//! The agent as a process: started with exactly its environment, watched, ended with everything
//! that it left behind.
//!
//! Never returns while a process of the agent lives that the kernel lets us end, and never waits
//! for one without a bound once it should be gone.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use cofferdam_agent::driver::{EventsFormat, Launch, LaunchInput, driver_for};
use cofferdam_wire::{
    AgentEnd, AgentStart, GitIdentity, OutputStream, ShellStart, StartSpec, layout,
};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::harden;
use crate::limits::{DRAIN, TERM_GRACE, TERM_GRACE_GONE};
use crate::output::{self, Budget, LastWords};
use crate::places::Places;
use crate::process::{self, Started};
use crate::reap;
use crate::talk::{ToHost, Wish, Wishes};
use crate::untouchable::Untouchable;

/// What is to be started.
pub(crate) fn launch(places: &Places, spec: &StartSpec) -> Result<Launch, String> {
    let complete = |mut env: BTreeMap<String, String>| {
        let identity = identity_variables(&spec.workspace.identity);
        let home = ("HOME", places.home.to_string_lossy().into_owned());
        for (name, value) in identity.into_iter().chain([home]) {
            env.entry(name.to_owned()).or_insert(value);
        }
        env
    };
    let env = complete(spec.env.clone());
    let shell =
        spec.shell.clone().map(|shell| ShellStart { env: complete(shell.env.clone()), ..shell });
    let cwd = places.repo.to_string_lossy();
    let mut launch = driver_for(&spec.agent, shell.as_ref())
        .launch(&env, &cwd)
        .map_err(|error| error.to_string())?;
    if Path::new(&launch.program) == Path::new(layout::GUEST_BIN) {
        launch.program = places.guest_bin.to_string_lossy().into_owned();
    }
    Ok(launch)
}

fn identity_variables(identity: &GitIdentity) -> [(&'static str, String); 4] {
    [
        ("GIT_AUTHOR_NAME", identity.name.clone()),
        ("GIT_AUTHOR_EMAIL", identity.email.clone()),
        ("GIT_COMMITTER_NAME", identity.name.clone()),
        ("GIT_COMMITTER_EMAIL", identity.email.clone()),
    ]
}

/// The name to show for it.
pub(crate) fn shown_program(start: &AgentStart, launch: &Launch) -> String {
    match start {
        AgentStart::Builtin { .. } => "built-in agent".to_owned(),
        AgentStart::Command { .. } => launch.program.chars().take(200).collect(),
    }
}

/// A started agent.
#[derive(Debug)]
pub(crate) struct Agent {
    process: Started,
    budget: Budget,
    stdout: JoinHandle<LastWords>,
    stderr: JoinHandle<LastWords>,
}

/// A started agent that nobody listens to yet, so that the host hears first that it runs.
#[derive(Debug)]
pub(crate) struct Unheard {
    process: Started,
    events: EventsFormat,
}

/// Starts it, with its channel to the shell host where there is one.
pub(crate) fn start(launch: Launch, channel: Option<OwnedFd>) -> Result<Unheard, String> {
    let mut command = process::command(&launch.program);
    command
        .args(&launch.argv)
        .envs(&launch.env)
        .current_dir(&launch.cwd)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if matches!(launch.stdin, LaunchInput::Bytes(_)) {
        command.stdin(Stdio::piped());
    }
    let others =
        Untouchable::here().map_err(|error| format!("the supervisor's threads: {error}"))?;
    harden::agent(&mut command, &others);
    if let Some(channel) = channel {
        harden::give_channel(&mut command, channel);
    }
    let mut process = harden::first_to_go(|| process::start(&mut command))
        .map_err(|error| format!("`{}` could not be started: {error}", launch.program))?;
    if let (LaunchInput::Bytes(bytes), Some(mut stdin)) = (launch.stdin, process.child.stdin.take())
    {
        tokio::spawn(async move {
            // An agent that does not read its input is its own problem.
            let _ = stdin.write_all(&bytes).await;
        });
    }
    Ok(Unheard { process, events: launch.events })
}

impl Unheard {
    /// Relays what it says, at most `output_bytes` of it.
    pub(crate) fn listen(mut self, output_bytes: u64, up: &ToHost) -> Agent {
        let budget = Budget::new(output_bytes);
        let (stdout, stderr) = (self.process.child.stdout.take(), self.process.child.stderr.take());
        let stdout =
            output::relay(stdout, OutputStream::Stdout, self.events, budget.clone(), up.clone());
        let stderr = output::relay(
            stderr,
            OutputStream::Stderr,
            EventsFormat::None,
            budget.clone(),
            up.clone(),
        );
        let (stdout, stderr) = (tokio::spawn(stdout), tokio::spawn(stderr));
        Agent { process: self.process, budget, stdout, stderr }
    }
}

impl Agent {
    /// Waits until it has ended by itself or been ended, and everything of it with it.
    pub(crate) async fn finish(mut self, wishes: &mut Wishes) -> AgentEnd {
        let ended = tokio::select! {
            status = self.process.child.wait() => Ok(status.ok()),
            wish = wishes.changed() => Err(wish),
        };
        let cancelled = ended.is_err();
        let status = match ended {
            Ok(status) => status,
            Err(Wish::Gone) => self.end(TERM_GRACE_GONE).await,
            Err(Wish::Cancel | Wish::Work) => self.end(TERM_GRACE).await,
        };
        reap::kill_all().await;
        let (stdout, stderr) = (last_words(self.stdout).await, last_words(self.stderr).await);
        let mut report = stdout.into_text();
        if report.trim().is_empty() {
            report = stderr.into_text();
        }
        AgentEnd {
            code: status.and_then(|s| s.code()),
            signal: status.and_then(|s| s.signal()),
            cancelled,
            report,
            output_cut_bytes: self.budget.cut(),
        }
    }

    /// Politely first.
    async fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        self.process.signal_group(Signal::TERM);
        if let Ok(status) = timeout(grace, self.process.child.wait()).await {
            return status.ok();
        }
        reap::kill_all().await;
        timeout(DRAIN, self.process.child.wait()).await.ok()?.ok()
    }
}

async fn last_words(relay: JoinHandle<LastWords>) -> LastWords {
    let abort = relay.abort_handle();
    match timeout(DRAIN, relay).await {
        Ok(words) => words.unwrap_or_default(),
        Err(_) => {
            abort.abort();
            LastWords::default()
        }
    }
}
