//! One call of git, described and then run. There is no way to give it a shell line or a raw
//! environment variable.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use crate::authority::{Authority, Git};
use crate::error::GitError;
use crate::process;

/// Most bytes of standard output held in memory unless a call says otherwise. Past it the process is
/// killed and the call fails, or is cut where the call asks for that.
pub const MAX_STDOUT_BYTES: usize = 16 << 20;

/// Most bytes of standard error kept; the rest is read and dropped.
pub const MAX_STDERR_BYTES: usize = 64 << 10;

/// Longest a call may take unless it says otherwise. Past it the process group is killed and the call
/// fails.
pub const MAX_CALL: Duration = Duration::from_secs(120);

/// Longest for calls that move whole histories.
pub const MAX_LONG_CALL: Duration = Duration::from_secs(30 * 60);

/// Variables that a call may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitVar {
    /// Another index than the repository's.
    IndexFile,
    /// Where new objects go.
    ObjectDirectory,
    /// From where objects are borrowed; give [`crate::authority::quoted`] paths joined by `:`.
    AlternateObjectDirectories,
    /// Author's name.
    AuthorName,
    /// Author's address.
    AuthorEmail,
    /// Committer's name.
    CommitterName,
    /// Committer's address.
    CommitterEmail,
}

impl GitVar {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::IndexFile => "GIT_INDEX_FILE",
            Self::ObjectDirectory => "GIT_OBJECT_DIRECTORY",
            Self::AlternateObjectDirectories => "GIT_ALTERNATE_OBJECT_DIRECTORIES",
            Self::AuthorName => "GIT_AUTHOR_NAME",
            Self::AuthorEmail => "GIT_AUTHOR_EMAIL",
            Self::CommitterName => "GIT_COMMITTER_NAME",
            Self::CommitterEmail => "GIT_COMMITTER_EMAIL",
        }
    }
}

/// What a call gave.
#[derive(Debug, Clone)]
pub struct Output {
    /// Exit code, one of the accepted.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// First lines of standard error, escaped.
    pub stderr: String,
    /// Standard output was cut at the limit, as the call had asked for.
    pub cut: bool,
}

impl Output {
    /// Standard output without its one final line feed.
    #[must_use]
    pub fn line(&self) -> &[u8] {
        self.stdout.strip_suffix(b"\n").unwrap_or(&self.stdout)
    }

    /// The NUL-terminated records of standard output.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.stdout.split(|b| *b == 0).filter(|r| !r.is_empty())
    }
}

/// Builder of a call. Nothing runs before [`Call::run`].
#[must_use = "a call does nothing until it is run"]
#[derive(Debug)]
pub struct Call<'g, A: Authority> {
    pub(crate) git: &'g Git<A>,
    pub(crate) subcommand: &'static str,
    pub(crate) args: Vec<OsString>,
    pub(crate) vars: Vec<(GitVar, OsString)>,
    pub(crate) config: Vec<(OsString, OsString)>,
    pub(crate) stdin: Option<Vec<u8>>,
    pub(crate) stdout_file: Option<std::fs::File>,
    pub(crate) limit: usize,
    pub(crate) cut: bool,
    pub(crate) within: Duration,
    pub(crate) accept: &'static [i32],
    pub(crate) local_files: bool,
    pub(crate) persons_config: bool,
}

impl<'g, A: Authority> Call<'g, A> {
    pub(crate) fn new(git: &'g Git<A>, subcommand: &'static str) -> Self {
        Self {
            git,
            subcommand,
            args: Vec::new(),
            vars: Vec::new(),
            config: Vec::new(),
            stdin: None,
            stdout_file: None,
            limit: MAX_STDOUT_BYTES,
            cut: false,
            within: MAX_CALL,
            accept: &[0],
            local_files: false,
            persons_config: A::PERSONS_CONFIG,
        }
    }

    /// Adds an argument. Put `--end-of-options` or `--` before what comes from outside.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<I>(mut self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets a variable.
    pub fn var(mut self, var: GitVar, value: impl AsRef<OsStr>) -> Self {
        self.vars.push((var, value.as_ref().to_owned()));
        self
    }

    /// Sets a configuration key for this call, over everything else.
    pub fn config(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.config.push((key.into(), value.as_ref().to_owned()));
        self
    }

    /// Gives it standard input; without, it has none.
    pub fn stdin(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = Some(bytes);
        self
    }

    /// Sends standard output to a file, which takes the place of the memory bound.
    pub fn stdout_to(mut self, file: std::fs::File) -> Self {
        self.stdout_file = Some(file);
        self
    }

    /// Another bound on standard output, bytes.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// On overflow, cut instead of failing. [`Output::cut`] tells.
    pub fn cut_at(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self.cut = true;
        self
    }

    /// Another bound on time.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Exit codes that are answers and not failures.
    pub fn accept(mut self, codes: &'static [i32]) -> Self {
        self.accept = codes;
        self
    }

    /// Lets it fetch from a file or directory on this machine; every other transport stays shut.
    pub fn from_local_files(mut self) -> Self {
        self.local_files = true;
        self
    }

    /// Reads no system or global configuration, also in programs that this git starts itself.
    pub fn without_persons_config(mut self) -> Self {
        self.persons_config = false;
        self
    }

    /// Runs it.
    ///
    /// # Errors
    /// See [`GitError`]; an exit code that [`Call::accept`] does not list is [`GitError::Failed`].
    pub async fn run(self) -> Result<Output, GitError> {
        process::run(self).await
    }
}
