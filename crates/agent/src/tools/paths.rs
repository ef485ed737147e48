//! Paths that tools may touch: below the working directory, or below `/tmp`.
//!
//! Must never follow a link out of these places. It is no defence against a process that changes
//! links at the same time; the sandbox is.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::ToolError;
use crate::limits::PATH_BYTES_MAX;

/// The places, canonical.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    cwd: PathBuf,
    tmp: Option<PathBuf>,
    /// The working directory as it was named, which models repeat.
    named: PathBuf,
}

impl Roots {
    pub(crate) fn new(cwd: &Path) -> io::Result<Self> {
        let canonical = cwd.canonicalize()?;
        if !canonical.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        Ok(Self {
            cwd: canonical,
            tmp: Path::new("/tmp").canonicalize().ok(),
            named: cwd.to_owned(),
        })
    }

    pub(crate) fn cwd(&self) -> &Path {
        &self.cwd
    }

    /// The path that `text` names, links resolved; it need not exist.
    pub(crate) fn resolve(&self, text: &str) -> Result<PathBuf, ToolError> {
        self.resolve_links(text, true)
    }

    /// Like [`Roots::resolve`], but a link at the end stays itself.
    pub(crate) fn resolve_entry(&self, text: &str) -> Result<PathBuf, ToolError> {
        self.resolve_links(text, false)
    }

    /// How a path is shown to the model: relative to the working directory where it is below it.
    pub(crate) fn show<'a>(&self, path: &'a Path) -> std::borrow::Cow<'a, str> {
        path.strip_prefix(&self.cwd).unwrap_or(path).to_string_lossy()
    }

    fn admits(&self, path: &Path) -> bool {
        path.starts_with(&self.cwd) || self.tmp.as_ref().is_some_and(|tmp| path.starts_with(tmp))
    }

    fn resolve_links(&self, text: &str, follow_last: bool) -> Result<PathBuf, ToolError> {
        if text.is_empty() {
            return Err(ToolError::new("The path is empty."));
        }
        if text.len() > PATH_BYTES_MAX {
            return Err(ToolError(format!("The path has more than {PATH_BYTES_MAX} bytes.")));
        }
        if text.contains('\0') {
            return Err(ToolError::new("The path holds a NUL character."));
        }
        let outside = |why: &str| {
            ToolError(format!(
                "`{text}` {why}. File tools work below {} and /tmp only; run_shell can look elsewhere.",
                self.named.display()
            ))
        };
        let mut wanted = Path::new(text).to_owned();
        if let Ok(rest) = wanted.strip_prefix(&self.named) {
            wanted = rest.to_owned();
        }
        let plain = normalise(&self.cwd.join(wanted));
        if !self.admits(&plain) {
            return Err(outside("is outside the working directory"));
        }
        let (base, last) = match (follow_last, plain.parent(), plain.file_name()) {
            (false, Some(parent), Some(name)) => (parent.to_owned(), Some(name.to_owned())),
            _ => (plain, None),
        };
        let mut real = real_path(&base).map_err(|e| ToolError(format!("`{text}`: {e}")))?;
        real.extend(last);
        if !self.admits(&real) {
            return Err(outside(&format!(
                "is a link to {}, outside the working directory",
                real.display()
            )));
        }
        Ok(real)
    }
}

/// Removes `.` and `..` by name alone; above `/` there is `/`.
fn normalise(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// Resolves the links of the part that exists and keeps the rest. A dangling link is an error: what
/// it would create is not where it seems.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    let mut missing: Vec<OsString> = Vec::new();
    let mut at = path.to_owned();
    loop {
        match at.canonicalize() {
            Ok(mut real) => {
                real.extend(missing.iter().rev());
                return Ok(real);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if at.symlink_metadata().is_ok() {
                    return Err(io::Error::new(
                        error.kind(),
                        "is a link to something that does not exist",
                    ));
                }
                let (Some(name), Some(parent)) = (at.file_name(), at.parent()) else {
                    return Err(error);
                };
                missing.push(name.to_owned());
                at = parent.to_owned();
            }
            Err(error) => return Err(error),
        }
    }
}
