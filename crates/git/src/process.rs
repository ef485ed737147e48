//! Starts git and sees it end: no inherited environment, own process group, bounded time and output.
//!
//! It must never leave a process behind: the group is killed on time-out, on overflow and when the
//! caller stops waiting.

use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use crate::authority::Authority;
use crate::call::{Call, MAX_STDERR_BYTES, Output};
use crate::environment::GitEnv;
use crate::error::GitError;
use crate::escape;

/// Address space of a process that reads a sandbox's objects, bytes. Past it git fails to allocate and
/// the call fails.
pub const MAX_QUARANTINE_MEMORY_BYTES: u64 = 8 << 30;

/// Largest file that such a process may write, bytes. Past it git is ended by a signal and the call
/// fails.
pub const MAX_QUARANTINE_FILE_BYTES: u64 = 16 << 30;

/// Characters of standard error shown in an error.
const SHOWN_STDERR_CHARS: usize = 600;

#[expect(clippy::disallowed_methods, reason = "the one place where git starts")]
fn command(program: &std::path::Path) -> Command {
    Command::new(program)
}

/// Kills the whole group unless the leader was waited for.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // The leader has not been waited for, so its number cannot belong to anybody else.
            let _ = rustix::process::kill_process_group(leader, Signal::KILL);
        }
    }
}

fn base_command(env: &GitEnv, directory: &std::path::Path) -> Result<Command, GitError> {
    let mut command = command(&env.binary(directory)?);
    command
        .env_clear()
        .env("PATH", env.path_outside(directory))
        .env("LC_ALL", "C")
        .env("TERM", "dumb")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ASKPASS", "false")
        .env("SSH_ASKPASS", "false")
        .env("GIT_SSH_COMMAND", "false")
        .env("GIT_EDITOR", "false")
        .env("GIT_SEQUENCE_EDITOR", "false")
        .env("GIT_PAGER", "cat")
        .env("GIT_ADVICE", "0")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_ALLOW_PROTOCOL", "none")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    Ok(command)
}

fn prepared<A: Authority>(call: &Call<'_, A>) -> Result<Command, GitError> {
    let git = call.git;
    let mut command = base_command(&git.env, &git.directory)?;
    command.current_dir(&git.directory).arg("--no-pager").arg(call.subcommand).args(&call.args);
    if call.persons_config {
        if let Some(home) = git.env.home() {
            command.env("HOME", home);
        }
        if let Some(xdg) = git.env.xdg_config_home() {
            command.env("XDG_CONFIG_HOME", xdg);
        }
    } else {
        command
            .env("HOME", "/nonexistent")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1");
    }
    if call.local_files {
        command.env("GIT_ALLOW_PROTOCOL", "file");
    }
    if let Some(git_dir) = &git.git_dir {
        command.env("GIT_DIR", git_dir);
    }
    if let Some(work_tree) = &git.work_tree {
        command.env("GIT_WORK_TREE", work_tree);
    }
    for (var, value) in &call.vars {
        command.env(var.name(), value);
    }
    // Not `-c`: keys may contain `=`, and these variables do not show in the process list.
    let config: Vec<&(OsString, OsString)> = git.config.iter().chain(&call.config).collect();
    command.env("GIT_CONFIG_COUNT", config.len().to_string());
    for (at, (key, value)) in config.into_iter().enumerate() {
        command.env(format!("GIT_CONFIG_KEY_{at}"), key);
        command.env(format!("GIT_CONFIG_VALUE_{at}"), value);
    }
    Ok(command)
}

enum Read {
    Whole(Vec<u8>),
    TooLong(Vec<u8>),
}

/// Reads to the end, or to one byte past `limit`.
async fn read_bounded(reader: Option<impl AsyncRead + Unpin>, limit: usize) -> io::Result<Read> {
    let mut bytes = Vec::new();
    let Some(reader) = reader else { return Ok(Read::Whole(bytes)) };
    let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(bound).read_to_end(&mut bytes).await?;
    if bytes.len() > limit {
        bytes.truncate(limit);
        return Ok(Read::TooLong(bytes));
    }
    Ok(Read::Whole(bytes))
}

/// Keeps the beginning and reads the rest away, so that git never blocks on a full pipe.
async fn read_head(reader: Option<impl AsyncRead + Unpin>, keep: usize) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let Some(mut reader) = reader else { return Ok(kept) };
    let mut buffer = vec![0; 8192];
    loop {
        let n = reader.read(&mut buffer).await?;
        if n == 0 {
            return Ok(kept);
        }
        let room = keep.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..n.min(room)]);
    }
}

async fn feed(stdin: Option<tokio::process::ChildStdin>, bytes: Option<Vec<u8>>) -> io::Result<()> {
    let (Some(mut stdin), Some(bytes)) = (stdin, bytes) else { return Ok(()) };
    match stdin.write_all(&bytes).await {
        // Git ended early; its exit code tells why.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(target_os = "linux")]
fn limit_resources(child: &Child) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, prlimit};
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    for (resource, bytes) in [
        (Resource::As, MAX_QUARANTINE_MEMORY_BYTES),
        (Resource::Fsize, MAX_QUARANTINE_FILE_BYTES),
        (Resource::Core, 0),
    ] {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        match prlimit(pid, resource, limit) {
            // It has ended already.
            Ok(_) | Err(rustix::io::Errno::SRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn limit_resources(_: &Child) -> io::Result<()> {
    Ok(())
}

pub(crate) async fn run<A: Authority>(mut call: Call<'_, A>) -> Result<Output, GitError> {
    let subcommand = call.subcommand;
    let failed_to_run =
        |source| GitError::Spawn { subcommand, directory: call.git.directory.clone(), source };
    let mut command = prepared(&call)?;
    if call.stdin.is_some() {
        command.stdin(Stdio::piped());
    }
    let stdin_bytes = call.stdin.take();
    if let Some(file) = call.stdout_file.take() {
        command.stdout(file);
    }
    let mut child = command.spawn().map_err(failed_to_run)?;
    drop(command);
    // Declared after the child, so dropped, and the group killed, before the child can be reaped.
    let mut group = Group::of(&child);
    if A::LIMITED {
        limit_resources(&child).map_err(failed_to_run)?;
    }
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (limit, cut) = (call.limit, call.cut);
    let work = async {
        let out = async {
            match read_bounded(stdout, limit).await {
                Ok(Read::Whole(bytes)) => Ok((bytes, false)),
                Ok(Read::TooLong(bytes)) if cut => Err(Early::Cut(bytes)),
                Ok(Read::TooLong(_)) => Err(Early::Error(GitError::Overflow { subcommand, limit })),
                Err(source) => Err(Early::Error(failed_to_run(source))),
            }
        };
        let err = async {
            read_head(stderr, MAX_STDERR_BYTES).await.map_err(|e| Early::Error(failed_to_run(e)))
        };
        let input =
            async { feed(stdin, stdin_bytes).await.map_err(|e| Early::Error(failed_to_run(e))) };
        let ((stdout, _), stderr, ()) = tokio::try_join!(out, err, input)?;
        // Only now may the leader be reaped: until here its number guards the group.
        let status = child.wait().await.map_err(|e| Early::Error(failed_to_run(e)))?;
        Ok::<_, Early>((status, stdout, stderr))
    };
    let (status, stdout, stderr) = match tokio::time::timeout(call.within, work).await {
        Err(_) => return Err(GitError::TimedOut { subcommand, seconds: call.within.as_secs() }),
        Ok(Err(Early::Error(error))) => return Err(error),
        Ok(Err(Early::Cut(stdout))) => {
            return Ok(Output { code: 0, stdout, stderr: String::new(), cut: true });
        }
        Ok(Ok(done)) => done,
    };
    group.0 = None;
    let stderr = shown(&stderr);
    match status.code() {
        Some(code) if call.accept.contains(&code) => {
            Ok(Output { code, stdout, stderr, cut: false })
        }
        code => {
            tracing::debug!(subcommand, code, "git failed");
            Err(GitError::Failed { subcommand, code, stderr })
        }
    }
}

enum Early {
    Cut(Vec<u8>),
    Error(GitError),
}

/// The first lines that say something, joined and escaped.
fn shown(stderr: &[u8]) -> String {
    let lines: Vec<String> = stderr
        .split(|b| *b == b'\n')
        .filter(|l| !l.trim_ascii().is_empty() && !l.starts_with(b"hint:"))
        .take(8)
        .map(|l| escape::line(l.trim_ascii_end(), SHOWN_STDERR_CHARS))
        .collect();
    escape::line(lines.join("; "), SHOWN_STDERR_CHARS)
}

/// `git version`, outside every repository.
pub(crate) async fn version_text(env: &GitEnv) -> Result<String, GitError> {
    let root = std::path::Path::new("/");
    let failed_to_run =
        |source| GitError::Spawn { subcommand: "version", directory: root.to_owned(), source };
    let mut child =
        base_command(env, root)?.current_dir(root).arg("version").spawn().map_err(failed_to_run)?;
    let mut group = Group::of(&child);
    let stdout = child.stdout.take();
    let ask = async {
        let read = read_bounded(stdout, 4096).await?;
        child.wait().await?;
        Ok(read)
    };
    let seconds = 20;
    let text = match tokio::time::timeout(Duration::from_secs(seconds), ask).await {
        Err(_) => return Err(GitError::TimedOut { subcommand: "version", seconds }),
        Ok(Err(source)) => return Err(failed_to_run(source)),
        Ok(Ok(Read::Whole(bytes) | Read::TooLong(bytes))) => bytes,
    };
    group.0 = None;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
