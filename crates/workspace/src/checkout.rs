//! The person's checkout: found, checked once, then named outright in every later call.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cofferdam_git::{Git, GitEnv, GitError, Output, Person, Scratch};
use cofferdam_run::ObjectId;

use crate::error::WorkspaceError;
use crate::locate::remote_address;
use crate::objects;

/// An operation of git that was interrupted and waits for the person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InProgress {
    /// `git merge`.
    Merge,
    /// `git rebase` or `git am`.
    Rebase,
    /// `git cherry-pick`.
    CherryPick,
    /// `git revert`.
    Revert,
    /// `git bisect`.
    Bisect,
}

impl InProgress {
    /// Its name for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Merge => "merge",
            Self::Rebase => "rebase",
            Self::CherryPick => "cherry-pick",
            Self::Revert => "revert",
            Self::Bisect => "bisect",
        }
    }
}

/// A checkout on this machine with at least one commit.
#[derive(Debug, Clone)]
pub struct Checkout {
    git: Git<Person>,
    top: PathBuf,
    git_dir: PathBuf,
    common_dir: PathBuf,
    object_format: String,
    shallow: bool,
}

impl Checkout {
    /// Opens the checkout around `path`, which may be any directory inside it.
    ///
    /// # Errors
    /// One coded error for each thing that it may be instead.
    pub async fn open(path: &Path) -> Result<Self, WorkspaceError> {
        Self::open_in(&GitEnv::of_this_process(), path).await
    }

    /// As [`Checkout::open`], with explicit surroundings of git.
    ///
    /// # Errors
    /// As [`Checkout::open`].
    pub async fn open_in(env: &GitEnv, path: &Path) -> Result<Self, WorkspaceError> {
        if let Some(address) = remote_address(path) {
            return Err(WorkspaceError::Remote(address));
        }
        let path = &match path.canonicalize() {
            Ok(path) => path,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(WorkspaceError::NotFound(path.to_owned()));
            }
            Err(error) => return Err(WorkspaceError::io("read", path, error)),
        };
        if !path.is_dir() {
            return Err(WorkspaceError::NotADirectory(path.clone()));
        }
        let git = Git::for_person_in(env, path).await?;
        refuse_what_is_no_checkout(&git, path).await?;
        let top = absolute(&git, "--show-toplevel").await?;
        let git_dir = absolute(&git, "--absolute-git-dir").await?;
        let common_dir = absolute(&git, "--git-common-dir").await?;
        let object_format = ask(&git, &["--show-object-format"]).await?;
        let shallow = ask(&git, &["--is-shallow-repository"]).await?.line() == b"true";
        let object_format = match object_format.line() {
            b"sha1" => "sha1",
            b"sha256" => "sha256",
            other => {
                let what = cofferdam_git::escape::line(other, 80);
                return Err(GitError::Unexpected { subcommand: "rev-parse", what }.into());
            }
        };
        let checkout = Self {
            git: git.pinned(&git_dir, &top),
            top,
            git_dir,
            common_dir,
            object_format: object_format.to_owned(),
            shallow,
        };
        checkout.head().await?;
        Ok(checkout)
    }

    /// Top directory of the working tree, absolute.
    #[must_use]
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// `sha1` or `sha256`.
    #[must_use]
    pub fn object_format(&self) -> &str {
        &self.object_format
    }

    /// What the person is in the middle of.
    #[must_use]
    pub fn in_progress(&self) -> Option<InProgress> {
        [
            ("rebase-merge", InProgress::Rebase),
            ("rebase-apply", InProgress::Rebase),
            ("MERGE_HEAD", InProgress::Merge),
            ("CHERRY_PICK_HEAD", InProgress::CherryPick),
            ("REVERT_HEAD", InProgress::Revert),
            ("sequencer", InProgress::CherryPick),
            ("BISECT_LOG", InProgress::Bisect),
        ]
        .into_iter()
        .find(|(name, _)| self.git_dir.join(name).symlink_metadata().is_ok())
        .map(|(_, what)| what)
    }

    /// The commit at `HEAD`.
    ///
    /// # Errors
    /// [`WorkspaceError::Unborn`].
    pub async fn head(&self) -> Result<ObjectId, WorkspaceError> {
        if let Some(head) = objects::commit_named(&self.git, "HEAD").await? {
            return Ok(head);
        }
        let named = self
            .git
            .call("rev-parse")
            .args(["--verify", "--quiet", "HEAD"])
            .accept(&[0, 1])
            .run()
            .await?;
        if named.code == 0 {
            // It names a commit that cannot be read: git says why.
            self.git.call("cat-file").args(["commit", "HEAD"]).run().await?;
        }
        Err(WorkspaceError::Unborn(self.top.clone()))
    }

    /// The current branch; `None` when `HEAD` is detached or its name is not UTF-8.
    ///
    /// # Errors
    /// Git fails.
    pub async fn branch(&self) -> Result<Option<String>, WorkspaceError> {
        let output =
            self.git.call("symbolic-ref").args(["--quiet", "HEAD"]).accept(&[0, 1]).run().await?;
        Ok(std::str::from_utf8(output.line())
            .ok()
            .and_then(|name| name.strip_prefix("refs/heads/"))
            .map(ToOwned::to_owned))
    }

    /// Name and address for commits: `user.name` and `user.email`, or a stand-in for each.
    ///
    /// # Errors
    /// Git fails.
    pub async fn identity(&self) -> Result<(String, String), WorkspaceError> {
        let name = self.setting("user.name").await?;
        let email = self.setting("user.email").await?;
        Ok((
            name.unwrap_or_else(|| "Cofferdam".to_owned()),
            email.unwrap_or_else(|| "run@cofferdam.invalid".to_owned()),
        ))
    }

    /// One line of the person's configuration, without what an identity may not contain.
    async fn setting(&self, key: &str) -> Result<Option<String>, WorkspaceError> {
        let output =
            self.git.call("config").args(["-z", "--get", key]).accept(&[0, 1]).run().await?;
        let value = output.records().next().map(String::from_utf8_lossy).unwrap_or_default();
        let clean: String = value
            .chars()
            .filter(|c| !c.is_control() && !matches!(c, '<' | '>'))
            .take(MAX_IDENTITY_CHARS)
            .collect();
        let clean = clean.trim();
        Ok((!clean.is_empty()).then(|| clean.to_owned()))
    }

    pub(crate) fn git(&self) -> &Git<Person> {
        &self.git
    }

    pub(crate) fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    /// The repository's common directory: equal for all linked worktrees of one repository.
    #[must_use]
    pub fn common_dir(&self) -> &Path {
        &self.common_dir
    }

    /// Cofferdam's own directory in the repository, made when it is missing: locks and scratch.
    pub(crate) fn room(&self) -> Result<PathBuf, WorkspaceError> {
        let room = self.common_dir.join("cofferdam");
        std::fs::create_dir_all(&room).map_err(|e| WorkspaceError::io("created", &room, e))?;
        Ok(room)
    }

    pub(crate) fn objects_dir(&self) -> PathBuf {
        self.common_dir.join("objects")
    }

    pub(crate) fn is_shallow(&self) -> bool {
        self.shallow
    }

    /// A scratch repository in the empty directory `bare` that borrows this one's objects.
    pub(crate) async fn scratch_at(&self, bare: &Path) -> Result<Git<Scratch>, WorkspaceError> {
        let env = self.git.environment();
        let git = Git::create_scratch(env, bare, &self.object_format, &self.objects_dir()).await?;
        if self.shallow {
            // Where history is cut; without it git would look for parents that are not there.
            let (from, to) = (self.common_dir.join("shallow"), bare.join("shallow"));
            std::fs::copy(&from, to).map_err(|e| WorkspaceError::io("copied", from, e))?;
        }
        Ok(git)
    }
}

/// Characters kept of `user.name` and `user.email` each; the rest is dropped.
pub(crate) const MAX_IDENTITY_CHARS: usize = 200;

async fn ask(git: &Git<Person>, args: &[&str]) -> Result<Output, GitError> {
    git.call("rev-parse").args(args).run().await
}

async fn absolute(git: &Git<Person>, what: &str) -> Result<PathBuf, GitError> {
    let output = ask(git, &["--path-format=absolute", what]).await?;
    Ok(PathBuf::from(OsStr::from_bytes(output.line())))
}

async fn refuse_what_is_no_checkout(git: &Git<Person>, path: &Path) -> Result<(), WorkspaceError> {
    let asked =
        ask(git, &["--is-bare-repository", "--is-inside-git-dir", "--is-inside-work-tree"]).await;
    let path = path.to_owned();
    let output = match asked {
        Ok(output) => output,
        Err(error) => {
            let reason = error.stderr();
            return Err(if reason.contains("dubious ownership") {
                WorkspaceError::DubiousOwnership(path)
            } else if reason.contains("safe.bareRepository") {
                // Also what a repository planted inside a checkout looks like.
                if path.components().any(|c| c.as_os_str() == ".git") {
                    WorkspaceError::InsideGitDir(path)
                } else {
                    WorkspaceError::Bare(path)
                }
            } else if reason.contains("not a git repository") {
                WorkspaceError::NotARepository(path)
            } else {
                error.into()
            });
        }
    };
    let mut answers = output.line().split(|b| *b == b'\n').map(|l| l == b"true");
    let (bare, inside_git_dir, inside_work_tree) =
        (answers.next() == Some(true), answers.next() == Some(true), answers.next() == Some(true));
    if inside_git_dir && !bare {
        Err(WorkspaceError::InsideGitDir(path))
    } else if bare {
        Err(WorkspaceError::Bare(path))
    } else if !inside_work_tree {
        Err(WorkspaceError::NotARepository(path))
    } else {
        Ok(())
    }
}
