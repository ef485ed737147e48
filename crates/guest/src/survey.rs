//! A look at the work tree before leftovers are taken: makes readable what is not, clears locks of
//! the dead, and finds what git or the host would not take.
//!
//! Never follows a link, and never removes anything but lock files of git.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::limits::{LEFTOVER_FILE, SURVEY_ENTRIES, SURVEY_ODD};

/// Why a place cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its name is not accepted by the host.
    Name,
    /// It is larger than [`LEFTOVER_FILE`].
    Large(u64),
    /// It is a repository of its own.
    Nested,
    /// It cannot be read, not even after its mode was changed.
    Unreadable,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name => f.write_str("a name that is not accepted"),
            Self::Large(bytes) => write!(f, "{bytes} bytes are more than {LEFTOVER_FILE}"),
            Self::Nested => f.write_str("a nested repository, its files are not carried"),
            Self::Unreadable => f.write_str("it cannot be read"),
        }
    }
}

/// A place that is left out.
#[derive(Debug, Clone)]
pub(crate) struct Odd {
    /// Relative to the repository.
    pub(crate) path: PathBuf,
    pub(crate) why: Why,
}

/// Looks at everything below `repo`, which must have no process of the agent any more.
pub(crate) fn survey(repo: &Path) -> Vec<Odd> {
    readable(repo, true);
    clear_repository(&repo.join(".git"));
    let mut odd = Vec::new();
    let mut left = SURVEY_ENTRIES;
    let mut open = vec![PathBuf::new()];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(repo.join(&dir)) else {
            odd.push(Odd { path: dir, why: Why::Unreadable });
            continue;
        };
        for entry in entries.flatten() {
            if left == 0 || odd.len() >= SURVEY_ODD {
                return odd;
            }
            left -= 1;
            let name = entry.file_name();
            if name == ".git" {
                continue;
            }
            let path = dir.join(&name);
            let Ok(metadata) = entry.metadata() else {
                odd.push(Odd { path, why: Why::Unreadable });
                continue;
            };
            match look(&entry.path(), name.as_bytes(), &metadata) {
                Some(why) => odd.push(Odd { path, why }),
                None if metadata.is_dir() => open.push(path),
                None => {}
            }
        }
    }
    odd
}

fn look(place: &Path, name: &[u8], metadata: &Metadata) -> Option<Why> {
    if !name_is_accepted(name) {
        return Some(Why::Name);
    }
    if metadata.is_dir() {
        if !readable(place, true) {
            return Some(Why::Unreadable);
        }
        return is_repository(place).then_some(Why::Nested);
    }
    if !metadata.is_file() {
        return None;
    }
    if metadata.len() > LEFTOVER_FILE {
        return Some(Why::Large(metadata.len()));
    }
    (!readable(place, false)).then_some(Why::Unreadable)
}

/// The host's rule: no control characters, and nothing that some file system takes for `.git`.
fn name_is_accepted(name: &[u8]) -> bool {
    if name.iter().any(|b| *b < 0x20 || *b == 0x7f) {
        return false;
    }
    !name.split(|b| *b == b'\\').any(|part| {
        let text: String = String::from_utf8_lossy(part)
            .chars()
            .filter(|c| {
                !matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
                    | '\u{206a}'..='\u{206f}' | '\u{feff}')
            })
            .flat_map(char::to_lowercase)
            .collect();
        let plain = text.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
        matches!(plain, ".git" | "git~1")
    })
}

fn is_repository(dir: &Path) -> bool {
    let inside = dir.join(".git");
    match inside.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => {
            readable(&inside, true);
            inside.join("HEAD").symlink_metadata().is_ok()
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Gives the owner what is needed to read (and search a directory). False when that failed.
fn readable(place: &Path, dir: bool) -> bool {
    add_mode(place, if dir { 0o700 } else { 0o400 })
}

fn add_mode(place: &Path, bits: u32) -> bool {
    let Ok(metadata) = place.symlink_metadata() else { return false };
    let mode = metadata.permissions().mode();
    if metadata.is_symlink() || mode & bits == bits {
        return true;
    }
    fs::set_permissions(place, PermissionsExt::from_mode((mode | bits) & 0o7777)).is_ok()
}

/// Makes the repository's own directory usable again, and removes locks in it.
fn clear_repository(git: &Path) {
    let mut left = SURVEY_ENTRIES;
    if !git.symlink_metadata().is_ok_and(|m| m.is_dir()) {
        return;
    }
    let objects = git.join("objects");
    let mut open = vec![git.to_owned()];
    while let Some(dir) = open.pop() {
        add_mode(&dir, 0o700);
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            if left == 0 {
                return;
            }
            left -= 1;
            let place = entry.path();
            let Ok(metadata) = entry.metadata() else { continue };
            let in_objects = place.starts_with(&objects);
            if !in_objects && entry.file_name().as_bytes().ends_with(b".lock") {
                // No process of the agent lives any more, so a lock is a dead one's; no ref may be
                // called so.
                remove(&place);
            } else if metadata.is_dir() {
                open.push(place);
            } else if metadata.is_file() {
                add_mode(&place, if in_objects { 0o400 } else { 0o600 });
            }
        }
    }
}

/// Removes whatever is there, without following a link.
pub(crate) fn remove(place: &Path) {
    if let Ok(metadata) = place.symlink_metadata() {
        // What cannot be removed shows where it is in the way.
        let _ = if metadata.is_dir() { fs::remove_dir_all(place) } else { fs::remove_file(place) };
    }
}
