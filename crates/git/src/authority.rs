//! Whose repository git works in, and therefore whose configuration counts. Authorities are types:
//! a function that handles a run's objects asks for a [`Git<Quarantine>`] and cannot be handed the
//! person's.
//!
//! It must never leave a configuration key in force that names a program which content could select
//! or an operation used here could start.

use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::call::Call;
use crate::environment::GitEnv;
use crate::error::GitError;

mod sealed {
    pub trait Sealed {}
}

/// An authority level.
pub trait Authority: sealed::Sealed + Send + Sync + 'static {
    /// Whether system and global configuration of the person are read.
    const PERSONS_CONFIG: bool;
    /// Whether the processes get resource limits against hostile packs.
    const LIMITED: bool;
    /// Configuration beyond [`COMMON`].
    const CONFIG: &'static [(&'static str, &'static str)];
}

/// The person's own repository. Their configuration is theirs (ignore rules, line endings, identity,
/// trusted directories), but nothing in it starts a program.
#[derive(Debug, Clone, Copy)]
pub enum Person {}

/// A bare repository of ours that receives objects from a sandbox.
#[derive(Debug, Clone, Copy)]
pub enum Quarantine {}

/// A bare repository of ours that borrows the person's objects, for merging and packing with
/// nobody's configuration and no working tree.
#[derive(Debug, Clone, Copy)]
pub enum Scratch {}

impl sealed::Sealed for Person {}
impl sealed::Sealed for Quarantine {}
impl sealed::Sealed for Scratch {}

impl Authority for Person {
    const PERSONS_CONFIG: bool = true;
    const LIMITED: bool = false;
    const CONFIG: &'static [(&'static str, &'static str)] = &[];
}

impl Authority for Quarantine {
    const PERSONS_CONFIG: bool = false;
    const LIMITED: bool = true;
    const CONFIG: &'static [(&'static str, &'static str)] = &[
        ("core.protectHFS", "true"),
        ("core.protectNTFS", "true"),
        ("core.symlinks", "false"),
        ("core.bigFileThreshold", "16m"),
        ("core.packedGitLimit", "1g"),
        ("core.packedGitWindowSize", "32m"),
        ("core.attributesFile", "/dev/null"),
        ("core.excludesFile", "/dev/null"),
        ("pack.threads", "2"),
        ("receive.fsckObjects", "true"),
    ];
}

impl Authority for Scratch {
    const PERSONS_CONFIG: bool = false;
    const LIMITED: bool = false;
    const CONFIG: &'static [(&'static str, &'static str)] = &[
        ("core.attributesFile", "/dev/null"),
        ("core.excludesFile", "/dev/null"),
        ("core.fsync", "none"),
        ("merge.directoryRenames", "false"),
        ("merge.renames", "true"),
    ];
}

/// In force for every call of every authority.
const COMMON: &[(&str, &str)] = &[
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("sequence.editor", "false"),
    ("core.askPass", ""),
    ("core.sshCommand", "false"),
    ("core.alternateRefsCommand", "true"),
    ("core.splitIndex", "false"),
    ("core.quotePath", "true"),
    ("core.safecrlf", "false"),
    ("core.commentChar", "#"),
    ("credential.helper", ""),
    ("color.ui", "false"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("gpg.program", "false"),
    ("gpg.ssh.program", "false"),
    ("gpg.x509.program", "false"),
    ("log.showSignature", "false"),
    ("merge.verifySignatures", "false"),
    ("gc.auto", "0"),
    ("gc.autoDetach", "false"),
    ("maintenance.auto", "false"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("fetch.bundleURI", ""),
    ("fetch.prune", "false"),
    ("fetch.pruneTags", "false"),
    ("fetch.writeCommitGraph", "false"),
    ("fetch.showForcedUpdates", "false"),
    ("fetch.fsckObjects", "true"),
    ("transfer.fsckObjects", "true"),
    ("transfer.bundleURI", "false"),
    ("protocol.allow", "never"),
    ("safe.bareRepository", "explicit"),
    ("i18n.commitEncoding", "UTF-8"),
    ("i18n.logOutputEncoding", "UTF-8"),
    ("diff.algorithm", "histogram"),
    ("diff.ignoreSubmodules", "all"),
    ("uploadpack.allowFilter", "false"),
];

/// Keys whose middle part is a name that content selects through attributes (or events), with the
/// value that switches each off. A merge driver becomes one that fails, so that the merge is a
/// conflict and never a silent "ours"; an empty filter is no filter.
const NAMED: &[(&str, &str, &str)] = &[
    ("filter.", ".clean", ""),
    ("filter.", ".smudge", ""),
    ("filter.", ".process", ""),
    ("filter.", ".required", "false"),
    ("merge.", ".driver", "false"),
    ("diff.", ".textconv", ""),
    ("diff.", ".command", ""),
    ("hook.", ".command", "true"),
];

/// One repository and the authority to work in it.
#[derive(Debug, Clone)]
pub struct Git<A: Authority> {
    pub(crate) env: GitEnv,
    pub(crate) directory: PathBuf,
    pub(crate) git_dir: Option<PathBuf>,
    pub(crate) work_tree: Option<PathBuf>,
    pub(crate) config: Vec<(OsString, OsString)>,
    filters: Vec<String>,
    authority: PhantomData<A>,
}

impl<A: Authority> Git<A> {
    fn new(env: GitEnv, directory: PathBuf) -> Self {
        let config = COMMON
            .iter()
            .chain(A::CONFIG)
            .map(|(key, value)| (OsString::from(key), OsString::from(value)))
            .collect();
        Self {
            env,
            directory,
            git_dir: None,
            work_tree: None,
            config,
            filters: Vec::new(),
            authority: PhantomData,
        }
    }

    /// Begins a call of `subcommand`.
    pub fn call(&self, subcommand: &'static str) -> Call<'_, A> {
        Call::new(self, subcommand)
    }

    /// The directory in which it runs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its surroundings.
    #[must_use]
    pub fn environment(&self) -> &GitEnv {
        &self.env
    }

    fn at_bare(env: &GitEnv, bare: &Path) -> Self {
        let mut git = Self::new(env.clone(), bare.to_owned());
        git.git_dir = Some(bare.to_owned());
        git
    }

    async fn init(env: &GitEnv, bare: &Path, object_format: &str) -> Result<Self, GitError> {
        env.version().await?;
        let mut git = Self::new(env.clone(), bare.to_owned());
        git.call("init")
            .args(["--quiet", "--bare", "--template="])
            .arg(format!("--object-format={object_format}"))
            .arg("--initial-branch=none")
            .args(["--end-of-options", "."])
            .run()
            .await?;
        git.git_dir = Some(bare.to_owned());
        Ok(git)
    }
}

impl Git<Person> {
    /// The person's repository around `directory`.
    ///
    /// Asks git for the filters, drivers and textconv programs that their configuration names, and
    /// switches each off for every later call.
    ///
    /// # Errors
    /// Git is missing or too old, or does not answer.
    pub async fn for_person(directory: &Path) -> Result<Self, GitError> {
        Self::for_person_in(&GitEnv::of_this_process(), directory).await
    }

    /// As [`Git::for_person`], with explicit surroundings.
    ///
    /// # Errors
    /// Git is missing or too old, or does not answer.
    pub async fn for_person_in(env: &GitEnv, directory: &Path) -> Result<Self, GitError> {
        env.version().await?;
        let mut git = Self::new(env.clone(), directory.to_owned());
        let listed = git
            .call("config")
            .args(["-z", "--name-only", "--get-regexp"])
            .arg(r"^(filter|merge|diff|hook)\..*\.(clean|smudge|process|required|driver|textconv|command)$")
            .accept(&[0, 1])
            .run()
            .await?;
        for key in listed.stdout.split(|b| *b == 0).filter(|k| !k.is_empty()) {
            let Some((_, _, off)) = NAMED.iter().find(|(start, end, _)| {
                key.starts_with(start.as_bytes()) && key.ends_with(end.as_bytes())
            }) else {
                continue;
            };
            if let Some(name) = key
                .strip_prefix(b"filter.")
                .and_then(|k| k.iter().rposition(|b| *b == b'.').map(|dot| &k[..dot]))
            {
                let name = crate::escape::line(name, 80);
                if !git.filters.contains(&name) {
                    git.filters.push(name);
                }
            }
            git.config.push((OsString::from_vec(key.to_vec()), OsString::from(off)));
        }
        Ok(git)
    }

    /// The same with the repository named outright, so that nothing is searched for again.
    #[must_use]
    pub fn pinned(mut self, git_dir: &Path, work_tree: &Path) -> Self {
        self.git_dir = Some(git_dir.to_owned());
        self.work_tree = Some(work_tree.to_owned());
        self.directory = work_tree.to_owned();
        self
    }

    /// Names of the content filters that the person's configuration defines, escaped. They are off.
    #[must_use]
    pub fn filters_switched_off(&self) -> &[String] {
        &self.filters
    }
}

impl Git<Quarantine> {
    /// An existing quarantine.
    ///
    /// # Errors
    /// [`GitError::Alternates`] when it borrows objects: what is checked there must be there.
    pub fn for_quarantine(bare: &Path) -> Result<Self, GitError> {
        Self::for_quarantine_in(&GitEnv::of_this_process(), bare)
    }

    /// As [`Git::for_quarantine`], with explicit surroundings.
    ///
    /// # Errors
    /// [`GitError::Alternates`].
    pub fn for_quarantine_in(env: &GitEnv, bare: &Path) -> Result<Self, GitError> {
        for name in ["alternates", "http-alternates"] {
            if bare.join("objects/info").join(name).symlink_metadata().is_ok() {
                return Err(GitError::Alternates(bare.to_owned()));
            }
        }
        Ok(Self::at_bare(env, bare))
    }

    /// Makes an empty quarantine in `bare`, which exists and is empty.
    ///
    /// # Errors
    /// Git is missing, too old, or fails.
    pub async fn create_quarantine(
        env: &GitEnv,
        bare: &Path,
        object_format: &str,
    ) -> Result<Self, GitError> {
        Self::init(env, bare, object_format).await
    }
}

impl Git<Scratch> {
    /// Makes an empty scratch repository in `bare`, which exists and is empty, and lets it borrow
    /// from the object directory `objects`.
    ///
    /// # Errors
    /// Git is missing, too old, or fails; the list of alternates cannot be written.
    pub async fn create_scratch(
        env: &GitEnv,
        bare: &Path,
        object_format: &str,
        objects: &Path,
    ) -> Result<Self, GitError> {
        let git = Self::init(env, bare, object_format).await?;
        let info = bare.join("objects/info");
        let mut line = quoted(objects.as_os_str());
        line.push("\n");
        std::fs::create_dir_all(&info)
            .and_then(|()| std::fs::write(info.join("alternates"), line.as_bytes()))
            .map_err(|source| GitError::Spawn {
                subcommand: "init",
                directory: bare.to_owned(),
                source,
            })?;
        Ok(git)
    }
}

/// A path as git reads it in lists of alternates: in double quotes, C style.
#[must_use]
pub fn quoted(path: &OsStr) -> OsString {
    let mut out = vec![b'"'];
    for &byte in path.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b'\n' => out.extend(*b"\\n"),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
    OsString::from_vec(out)
}
