//! Git inside the sandbox, for import and collect.
//!
//! The repository is the agent's own, with whatever configuration it wrote: that can only harm the
//! sandbox, but must not hang or fool the guest. So hooks are off, nothing prompts, time and output
//! are bounded, and what git starts ends with it. This is not the host's launcher of git, which
//! must never see such a repository.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cofferdam_wire::GitIdentity;
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

use crate::limits::{GIT_CALL, GIT_STDERR, GIT_STDOUT};
use crate::process;

/// Where git is looked for when the agent's environment does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const CONFIG: &[(&str, &str)] = &[
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "true"),
    ("sequence.editor", "true"),
    ("core.askPass", "true"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("commit.template", "/dev/null"),
    ("commit.cleanup", "strip"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.allow", "never"),
    ("protocol.file.allow", "always"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("advice.detachedHead", "false"),
];

/// Why a call of git did not give what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GitError {
    /// It could not be started.
    #[error("git could not be started: {0}")]
    Start(std::io::Error),
    /// It failed.
    #[error("git {command} failed (exit {code}): {stderr}")]
    Failed {
        /// Subcommand.
        command: String,
        /// Exit code, or -1 after a signal.
        code: i32,
        /// Beginning of its standard error.
        stderr: String,
    },
    /// It took too long.
    #[error("git {0} took longer than {1:?}")]
    Time(String, Duration),
    /// It printed too much.
    #[error("git {0} printed more than {GIT_STDOUT} bytes")]
    Output(String),
}

/// Git in one repository.
#[derive(Debug, Clone)]
pub(crate) struct Git {
    repo: PathBuf,
    path: String,
    identity: GitIdentity,
    pinned: bool,
    env: Vec<(&'static str, OsString)>,
    config: Vec<String>,
}

/// What a call printed, with its exit code.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    stderr: String,
}

impl Git {
    pub(crate) fn new(repo: &Path, path: Option<&String>, identity: &GitIdentity) -> Self {
        let path = path.map_or(PATH, String::as_str).to_owned();
        Self {
            repo: repo.to_owned(),
            path,
            identity: identity.clone(),
            pinned: false,
            env: Vec::new(),
            config: Vec::new(),
        }
    }

    fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = process::command("git");
        command
            .env("PATH", &self.path)
            .env("HOME", "/nonexistent")
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_AUTHOR_NAME", &self.identity.name)
            .env("GIT_AUTHOR_EMAIL", &self.identity.email)
            .env("GIT_COMMITTER_NAME", &self.identity.name)
            .env("GIT_COMMITTER_EMAIL", &self.identity.email)
            // Looks for a repository here and nowhere above.
            .env("GIT_CEILING_DIRECTORIES", self.repo.parent().unwrap_or(Path::new("/")))
            .current_dir(&self.repo);
        if self.pinned {
            command.args(["--git-dir=.git", "--work-tree=."]);
        }
        for (key, value) in CONFIG {
            command.arg("-c").arg(format!("{key}={value}"));
        }
        for setting in &self.config {
            command.arg("-c").arg(setting);
        }
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The same with the repository named outright, whatever its configuration says about the tree.
    pub(crate) fn pinned(&self) -> Self {
        Self { pinned: true, ..self.clone() }
    }

    /// Git in another worktree, which it finds by itself.
    pub(crate) fn elsewhere(&self, place: &Path) -> Self {
        Self { repo: place.to_owned(), pinned: false, env: Vec::new(), ..self.clone() }
    }

    /// The same with a variable more in its environment.
    pub(crate) fn with_env(&self, key: &'static str, value: impl Into<OsString>) -> Self {
        let mut git = self.clone();
        git.env.push((key, value.into()));
        git
    }

    /// The same with more settings, `key=value`. They win over the repository's own.
    pub(crate) fn with_config(&self, settings: impl IntoIterator<Item = String>) -> Self {
        let mut git = self.clone();
        git.config.extend(settings);
        git
    }

    /// Runs git and gives back what it printed, whatever its exit code.
    pub(crate) async fn ask<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        limit: Duration,
    ) -> Result<Output, GitError> {
        finish(self.command(args), name(args), limit).await
    }

    /// Runs git; a failure is an error.
    pub(crate) async fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<String, GitError> {
        self.run_within(args, GIT_CALL).await
    }

    /// The same with another bound on time.
    pub(crate) async fn run_within<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        limit: Duration,
    ) -> Result<String, GitError> {
        successful(self.ask(args, limit).await?, args)
    }

    /// Runs git with its standard output in a file.
    pub(crate) async fn run_into<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        file: std::fs::File,
        limit: Duration,
    ) -> Result<(), GitError> {
        let mut command = self.command(args);
        command.stdout(file);
        successful(finish(command, name(args), limit).await?, args).map(drop)
    }
}

impl Git {
    /// Runs git with its standard input and output in files. Gives its exit code.
    pub(crate) async fn filter<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        input: std::fs::File,
        output: std::fs::File,
        limit: Duration,
    ) -> Result<i32, GitError> {
        let mut command = self.command(args);
        command.stdin(input).stdout(output);
        Ok(finish(command, name(args), limit).await?.code)
    }
}

fn name<S: AsRef<OsStr>>(args: &[S]) -> String {
    args.first().map(|a| a.as_ref().to_string_lossy().into_owned()).unwrap_or_default()
}

fn successful<S: AsRef<OsStr>>(output: Output, args: &[S]) -> Result<String, GitError> {
    match output.code {
        0 => Ok(output.stdout),
        code => Err(GitError::Failed { command: name(args), code, stderr: output.stderr }),
    }
}

async fn finish(mut command: Command, name: String, limit: Duration) -> Result<Output, GitError> {
    let mut git = process::start(&mut command).map_err(GitError::Start)?;
    let stdout = git.child.stdout.take();
    let stderr = git.child.stderr.take();
    let work = async {
        let (stdout, stderr) = tokio::join!(read(stdout, GIT_STDOUT), read(stderr, GIT_STDERR));
        (git.child.wait().await, stdout, stderr)
    };
    let result = tokio::time::timeout(limit, work).await;
    if result.is_err() {
        // Its children as well; dropping it kills only git itself.
        git.signal_group(Signal::KILL);
    }
    let (status, stdout, stderr) = result.map_err(|_| GitError::Time(name.clone(), limit))?;
    let status = status.map_err(GitError::Start)?;
    let Read { text: stdout, cut: false } = stdout else { return Err(GitError::Output(name)) };
    Ok(Output { code: status.code().unwrap_or(-1), stdout, stderr: stderr.text.trim().to_owned() })
}

struct Read {
    text: String,
    cut: bool,
}

/// Reads to the end and keeps the first `limit` bytes.
async fn read(from: Option<impl AsyncRead + Unpin>, limit: usize) -> Read {
    let mut kept = Vec::new();
    let mut cut = false;
    if let Some(mut from) = from {
        let mut chunk = vec![0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut chunk).await {
            let room = limit - kept.len();
            kept.extend_from_slice(&chunk[..len.min(room)]);
            cut |= len > room;
        }
    }
    Read { text: String::from_utf8_lossy(&kept).into_owned(), cut }
}
