//! Making salvaged work harmless to git on the host.
//!
//! A repository's own configuration names programs that git runs, so a repository that a guest wrote
//! must not be recognised as one outside a sandbox. Entries are renamed, through descriptors. It must
//! never follow a link, lose content, or run while something of the guest still writes.

use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, RenameFlags, openat, renameat, renameat_with, statat};
use rustix::io::Errno;

use crate::tree::{DIRECTORY, each, open_directory};

/// Most entries of a tree that are looked at before it is handed over, entries. A larger one is not
/// handed over: the salvage fails and the work stays where it is.
pub const MAX_DISARM_ENTRIES: u64 = 20_000_000;

/// What an entry named `.git` is called in salvaged work.
pub const GIT_RENAMED: &str = "git-of-the-sandbox";
/// What the parts of a repository that git needs to recognise it, or runs programs from, end with.
const PART_SUFFIX: &str = "-of-the-sandbox";
/// Beside the salvaged directory.
const README: &str = "README-salvage.txt";

/// Whether this is git's name for a repository, in any case: file systems may not tell them apart.
pub(crate) fn is_git_name(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b".git")
}

/// Renames everything below `top` that makes git take a directory for a repository: entries named
/// `.git`, and the head, configuration and hooks of directories that are repositories themselves.
pub(crate) fn disarm(top: &Path) -> io::Result<()> {
    let mut seen = 0u64;
    walk(top, |directory| {
        let mut found = Parts::default();
        let mut below = Vec::new();
        each(directory, |name, kind, _inode| {
            seen += 1;
            if seen > MAX_DISARM_ENTRIES {
                return Err(io::Error::other(format!(
                    "more than {MAX_DISARM_ENTRIES} entries: too many to make harmless"
                )));
            }
            if !found.note(name, kind) && kind == FileType::Directory {
                below.push(name.to_owned());
            }
            Ok(())
        })?;
        let Parts { dot_git, parts, head, objects, refs, common } = found;
        for (name, kind) in dot_git {
            let new = rename_away(directory, &name, GIT_RENAMED)?;
            if kind == FileType::Directory {
                below.push(new);
            }
        }
        // Git takes a directory with these for a repository, whatever its name is. Those of the
        // directories renamed above are among them.
        let repository = head && ((objects && refs) || common);
        for (name, kind) in parts {
            let new = if repository {
                let new = format!("{}{PART_SUFFIX}", name.to_string_lossy());
                rename_away(directory, &name, &new)?
            } else {
                name
            };
            if kind == FileType::Directory {
                below.push(new);
            }
        }
        Ok(Some(below))
    })
}

/// Whether there is anything below `top` but directories.
pub(crate) fn has_content(top: &Path) -> io::Result<bool> {
    let mut content = false;
    walk(top, |directory| {
        let mut below = Vec::new();
        each(directory, |name, kind, _inode| {
            if kind == FileType::Directory {
                below.push(name.to_owned());
            } else {
                content = true;
            }
            Ok(())
        })?;
        Ok((!content).then_some(below))
    })?;
    Ok(content)
}

/// Says beside the directory `to` what it is. Work is not given up for want of this text.
pub(crate) fn explain(to: &Path) {
    let place = to.with_file_name(README);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&place)
        .and_then(|mut file| file.write_all(EXPLANATION.as_bytes()));
    match written {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            tracing::warn!(place = %place.display(), %error, "salvage is not explained");
            let _none_or_half = fs::remove_file(&place);
        }
        _ => {}
    }
}

const EXPLANATION: &str = "\
This is work that could not be brought out of a sandbox in the ordinary way.

Treat all of it as hostile: an unattended agent wrote it. Do not build it, run it, or open it in an
editor that runs what a project asks for.

Its git repositories were made unrecognisable, because the configuration of a repository names
programs that git runs, even for `git status`:

  .git                   is now   git-of-the-sandbox
  HEAD, config, hooks    are now  HEAD-of-the-sandbox, config-of-the-sandbox, hooks-of-the-sandbox
  (a number follows when the name was taken)

Reading and copying single files is safe. To get at commits, work on a copy inside a sandbox or a
container without network and credentials (`cofferdam run` is one): take the names back there, and
bring out a bundle or patches, not the repository. Options such as `-c core.fsmonitor=` and
`-c core.hooksPath=/dev/null` on this machine are not enough: other settings start programs too.
";

#[derive(Default)]
struct Parts {
    dot_git: Vec<(CString, FileType)>,
    parts: Vec<(CString, FileType)>,
    head: bool,
    objects: bool,
    refs: bool,
    common: bool,
}

impl Parts {
    /// Takes note of names that matter. `true` when the entry may get another name.
    fn note(&mut self, name: &CStr, kind: FileType) -> bool {
        let bytes = name.to_bytes();
        let is = |other: &[u8]| bytes.eq_ignore_ascii_case(other);
        if is_git_name(bytes) {
            self.dot_git.push((name.to_owned(), kind));
            return true;
        }
        self.objects |= is(b"objects");
        self.refs |= is(b"refs");
        self.common |= is(b"commondir");
        self.head |= is(b"HEAD");
        let part = is(b"HEAD") || is(b"config") || is(b"config.worktree") || is(b"hooks");
        if part {
            self.parts.push((name.to_owned(), kind));
        }
        part
    }
}

/// Gives an entry the first name that is free: `wanted`, `wanted-1` and so on.
fn rename_away(directory: &OwnedFd, name: &CStr, wanted: &str) -> io::Result<CString> {
    let mut number = 0u64;
    loop {
        let new = match number {
            0 => wanted.to_owned(),
            n => format!("{wanted}-{n}"),
        };
        let new = CString::new(new)?;
        let renamed = match renameat_with(directory, name, directory, &new, RenameFlags::NOREPLACE)
        {
            Err(Errno::INVAL | Errno::NOSYS) => {
                // A file system without the flag. Nothing else writes here.
                match statat(directory, &new, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => renameat(directory, name, directory, &new),
                    Err(error) => Err(error),
                    Ok(_) => Err(Errno::EXIST),
                }
            }
            other => other,
        };
        match renamed {
            Ok(()) => return Ok(new),
            Err(Errno::EXIST) => number += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Visits `top` and every directory that a visit names, of any depth, with one open descriptor. A
/// visit that returns `None` ends it. Going up through `..` is sound because nothing moves meanwhile.
fn walk(
    top: &Path,
    mut visit: impl FnMut(&OwnedFd) -> io::Result<Option<Vec<CString>>>,
) -> io::Result<()> {
    let mut at = rustix::fs::open(top, DIRECTORY, Mode::empty())?;
    let Some(below) = visit(&at)? else { return Ok(()) };
    let mut levels = vec![below];
    while let Some(pending) = levels.last_mut() {
        if let Some(name) = pending.pop() {
            at = open_directory(&at, &name)?;
            let Some(below) = visit(&at)? else { return Ok(()) };
            levels.push(below);
        } else {
            levels.pop();
            if !levels.is_empty() {
                at = openat(&at, c"..", DIRECTORY, Mode::empty())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "disarm_tests.rs"]
mod tests;
