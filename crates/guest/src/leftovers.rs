//! What the agent left uncommitted becomes a last commit.
//!
//! Its own index, filters, attributes, locks and modes may be in any state: an index of the guest's
//! own is made from `HEAD`, so that none of them matters. Never loses anything silently: what is not
//! taken is named, unless it is ignored on purpose.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use cofferdam_run::ids::ObjectId;
use cofferdam_wire::{NOT_TAKEN, NOT_TAKEN_CHARS};

use crate::collect::commit_of;
use crate::git::{Git, GitError};
use crate::limits::{GIT_ADD, GIT_CALL, GIT_LONG_CALL};
use crate::places::Places;
use crate::survey::{self, Odd, Why};
use crate::{log, lost};

/// Message of the commit.
const MESSAGE: &str = "Uncommitted work at the end of the run (cofferdam)";

/// Where the commit is put when the branch cannot be moved.
pub(crate) const FALLBACK_REF: &str = "refs/cofferdam/leftovers/0";

/// Names of what was not taken, bounded.
#[derive(Debug, Default)]
pub(crate) struct NotTaken {
    pub(crate) names: Vec<String>,
    pub(crate) count: u64,
}

impl NotTaken {
    pub(crate) fn say(&mut self, text: &str) {
        self.count += 1;
        if self.names.len() < NOT_TAKEN {
            let plain = text.chars().flat_map(|c| {
                let shown: Vec<char> =
                    if c.is_control() { c.escape_default().collect() } else { vec![c] };
                shown
            });
            self.names.push(plain.take(NOT_TAKEN_CHARS).collect());
        }
    }

    fn path(&mut self, path: &Path, why: &str) {
        let shown: String = path.to_string_lossy().chars().take(NOT_TAKEN_CHARS / 2).collect();
        self.say(&format!("{shown}: {why}"));
    }
}

/// What became of the leftovers.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// The commit that was made, when one was.
    pub(crate) commit: Option<ObjectId>,
    /// It is at [`FALLBACK_REF`] and not at `HEAD`.
    pub(crate) beside_head: bool,
    pub(crate) not_taken: NotTaken,
    /// Why nothing was committed although it should have been.
    pub(crate) error: Option<String>,
}

/// Why there is no commit.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error("a file of the guest's own could not be made: {0}")]
    File(#[from] std::io::Error),
    #[error("the repository cannot be read any more")]
    Repository,
    #[error("git named no object")]
    NoObject,
}

/// Commits what is left in the tree.
pub(crate) async fn commit(places: &Places, git: &Git) -> Leftovers {
    let mut leftovers = Leftovers::default();
    let repo = places.repo.clone();
    let odd = tokio::task::spawn_blocking(move || survey::survey(&repo)).await.unwrap_or_default();
    let work = Work { places, git: git.pinned() };
    if let Err(fault) = work.take(odd, &mut leftovers).await {
        let error: String = fault.to_string().chars().take(NOT_TAKEN_CHARS).collect();
        log::line(&format!("leftovers were not committed: {error}"));
        leftovers.error = Some(error);
    }
    for name in ["index", "index.lock", "names", "answer"] {
        survey::remove(&work.file(name));
    }
    leftovers
}

struct Work<'p> {
    places: &'p Places,
    git: Git,
}

impl Work<'_> {
    /// A file of the guest's own, beside the repository.
    fn file(&self, name: &str) -> PathBuf {
        self.places.work.join(format!("leftovers.{name}"))
    }

    fn fresh(&self, name: &str) -> std::io::Result<File> {
        let place = self.file(name);
        survey::remove(&place);
        File::create_new(place)
    }

    async fn take(&self, odd: Vec<Odd>, leftovers: &mut Leftovers) -> Result<(), Fault> {
        let head = commit_of(&self.git, "HEAD").await;
        let place = self.git.ask(&["rev-parse", "--git-dir"], GIT_CALL).await?;
        let named = self.git.ask(&["rev-parse", "--verify", "--quiet", "HEAD"], GIT_CALL).await?;
        // A commit that is named and gone is no fresh start: a root commit in its place would hide
        // the loss.
        if head.is_none() && (place.code != 0 || named.code == 0) {
            return Err(Fault::Repository);
        }
        survey::remove(&self.file("index"));
        survey::remove(&self.file("index.lock"));
        let settings = [
            "core.sparseCheckout=false",
            "index.sparse=false",
            "core.splitIndex=false",
            "core.untrackedCache=false",
            "core.safecrlf=false",
            "core.bigFileThreshold=64m",
        ];
        let git = self
            .git
            .with_env("GIT_INDEX_FILE", self.file("index"))
            .with_config(settings.map(str::to_owned));
        let from = head.as_ref().map_or("--empty", ObjectId::as_str);
        git.run_within(&["read-tree", from], GIT_LONG_CALL).await?;
        let odd = self.leave_out(&git, odd, &mut leftovers.not_taken).await?;
        // Writing the tree may look at files once more, so it goes on with the git that took them.
        let git = self.add(git, &odd, &mut leftovers.not_taken).await?;
        self.add_forced(&git, &odd, &mut leftovers.not_taken).await;
        let tree = object(&git.run_within(&["write-tree"], GIT_LONG_CALL).await?)?;
        let mut parents = Vec::new();
        if let Some(head) = &head {
            let there = git.run(&["rev-parse", "--verify", &format!("{head}^{{tree}}")]).await?;
            if object(&there)? == tree {
                return Ok(());
            }
            parents.push(head.clone());
            parents.extend(commit_of(&git, "MERGE_HEAD").await.filter(|other| other != head));
        } else if git.run(&["ls-tree", "--name-only", tree.as_str()]).await?.is_empty() {
            return Ok(());
        }
        let mut args = vec!["commit-tree", "--no-gpg-sign", "-m", MESSAGE];
        for parent in &parents {
            args.extend(["-p", parent.as_str()]);
        }
        args.push(tree.as_str());
        let commit = object(&git.run(&args).await?)?;
        let moved = ["update-ref", "-m", "cofferdam: leftovers", "HEAD", commit.as_str()];
        if let Err(error) = git.run(&moved).await {
            log::line(&error.to_string());
            git.run(&["update-ref", "--no-deref", FALLBACK_REF, commit.as_str()]).await?;
            leftovers.beside_head = true;
        } else {
            // So that who opens the work directory sees it as it is; it only costs a look otherwise.
            let _ = std::fs::rename(self.file("index"), self.places.repo.join(".git/index"));
        }
        leftovers.commit = Some(commit);
        Ok(())
    }

    /// Says what is left out although it is not ignored, and gives it.
    async fn leave_out(
        &self,
        git: &Git,
        mut odd: Vec<Odd>,
        not_taken: &mut NotTaken,
    ) -> Result<Vec<Odd>, Fault> {
        let clean = lost::worktrees(git, not_taken).await;
        if odd.iter().any(|o| o.why == Why::Name) {
            // Odd names that the person has already are theirs, and may change.
            git.run_into(&["ls-files", "-z"], self.fresh("answer")?, GIT_LONG_CALL).await?;
            let tracked = self.answer();
            odd.retain(|o| o.why != Why::Name || !tracked.contains(o.path.as_os_str().as_bytes()));
        }
        if odd.is_empty() {
            return Ok(odd);
        }
        let mut names = self.fresh("names")?;
        for o in &odd {
            names.write_all(o.path.as_os_str().as_bytes())?;
            names.write_all(b"\0")?;
        }
        let input = File::open(self.file("names"))?;
        let asked = ["check-ignore", "-z", "--stdin"];
        let ignored = match git.filter(&asked, input, self.fresh("answer")?, GIT_CALL).await {
            Ok(0) => self.answer(),
            Ok(_) | Err(_) => BTreeSet::new(),
        };
        // Git complains of a path that is ignored and left out by name too.
        odd.retain(|o| !ignored.contains(o.path.as_os_str().as_bytes()));
        for o in &odd {
            let is_clean = || {
                let place = self.places.repo.join(&o.path).canonicalize();
                o.why == Why::Nested && place.is_ok_and(|place| clean.contains(&place))
            };
            if !is_clean() {
                not_taken.path(&o.path, &o.why.to_string());
            }
        }
        Ok(odd)
    }

    /// What git wrote as a list.
    fn answer(&self) -> BTreeSet<Vec<u8>> {
        let bytes = std::fs::read(self.file("answer")).unwrap_or_default();
        bytes.split(|b| *b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    }

    /// Takes everything else into the index. Gives the git with which that went.
    async fn add(&self, git: Git, odd: &[Odd], not_taken: &mut NotTaken) -> Result<Git, Fault> {
        let mut names = self.fresh("names")?;
        names.write_all(b":/\0")?;
        for o in odd {
            names.write_all(b":(top,exclude,literal)")?;
            names.write_all(o.path.as_os_str().as_bytes())?;
            names.write_all(b"\0")?;
        }
        let from = format!("--pathspec-from-file={}", self.file("names").display());
        let all = ["add", "--all", "--pathspec-file-nul", &from];
        let Err(first) = git.run_within(&all, GIT_ADD).await else { return Ok(git) };
        log::line(&first.to_string());
        let plain = self.without_filters(&git).await;
        let second = match plain.run_within(&all, GIT_ADD).await {
            Ok(_) => return Ok(plain),
            Err(error @ GitError::Failed { .. }) => error,
            Err(error) => return Err(error.into()),
        };
        log::line(&second.to_string());
        // One path that git cannot take must not cost the others.
        let all = ["add", "--all", "--ignore-errors", "--pathspec-file-nul", &from];
        plain.ask(&all, GIT_ADD).await?;
        let missing =
            ["ls-files", "-z", "--others", "--modified", "--deleted", "--exclude-standard"];
        plain.run_into(&missing, self.fresh("answer")?, GIT_LONG_CALL).await?;
        let mut missing: BTreeSet<PathBuf> =
            self.answer().into_iter().map(|n| std::ffi::OsString::from_vec(n).into()).collect();
        missing.retain(|path| !odd.iter().any(|o| path.starts_with(&o.path)));
        if missing.is_empty() {
            return Err(second.into());
        }
        for path in missing {
            not_taken.path(&path, "git could not take it");
        }
        Ok(plain)
    }

    /// Git that takes files as they are.
    async fn without_filters(&self, git: &Git) -> Git {
        let empty = match git.run(&["hash-object", "-t", "tree", "/dev/null"]).await {
            Ok(id) => id.trim().to_owned(),
            Err(_) => String::new(),
        };
        let asked = ["config", "-z", "--name-only", "--get-regexp", r"^filter\."];
        let listed = git.ask(&asked, GIT_CALL).await.map(|o| o.stdout).unwrap_or_default();
        let filters: BTreeSet<&str> = listed
            .split('\0')
            .filter_map(|key| key.strip_prefix("filter.")?.rsplit_once('.').map(|(name, _)| name))
            // Such a name cannot be written as a setting.
            .filter(|name| !name.contains('='))
            .collect();
        let off = filters.iter().flat_map(|name| {
            ["clean=", "process=", "required=false"].map(|end| format!("filter.{name}.{end}"))
        });
        let plain = git.with_config(off).with_config(
            ["core.autocrlf=false", "core.attributesFile=/dev/null"].map(str::to_owned),
        );
        if empty.is_empty() { plain } else { plain.with_env("GIT_ATTR_SOURCE", empty) }
    }

    /// Files that are ignored and that the agent has staged all the same.
    async fn add_forced(&self, git: &Git, odd: &[Odd], not_taken: &mut NotTaken) {
        let listed = async {
            let asked = ["ls-files", "-z", "--cached", "--ignored", "--exclude-standard"];
            // The agent's own index; when it is broken nothing is known of such files.
            self.git.run_into(&asked, self.fresh("answer")?, GIT_LONG_CALL).await?;
            let staged = self.answer();
            let mut names = self.fresh("names")?;
            let mut any = false;
            for name in staged {
                let path: PathBuf = std::ffi::OsString::from_vec(name).into();
                if !odd.iter().any(|o| path.starts_with(&o.path)) {
                    names.write_all(path.as_os_str().as_bytes())?;
                    names.write_all(b"\0")?;
                    any = true;
                }
            }
            Ok::<bool, Fault>(any)
        };
        match listed.await {
            Ok(true) => {}
            Ok(false) => return,
            Err(fault) => return log::line(&fault.to_string()),
        }
        let add = async {
            let input = File::open(self.file("names"))?;
            let args = ["update-index", "--add", "--remove", "-z", "--stdin"];
            let git = self.without_filters(git).await;
            Ok::<i32, Fault>(git.filter(&args, input, self.fresh("answer")?, GIT_ADD).await?)
        };
        match add.await {
            Ok(0) => {}
            Ok(_) | Err(_) => not_taken.say("files that were staged although they are ignored"),
        }
    }
}

fn object(printed: &str) -> Result<ObjectId, Fault> {
    printed.trim().parse().map_err(|_| Fault::NoObject)
}
