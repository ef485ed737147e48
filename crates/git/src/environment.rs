//! What git takes from the process's surroundings: where programs are, and whose configuration.
//!
//! It must never pass anything else on: every other variable of this process stays outside.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokio::sync::OnceCell;

use crate::error::GitError;
use crate::escape;

/// Oldest git that has every option used here (`merge-tree --write-tree`) and that the tests have run
/// with: that of Debian 12.
pub const MIN_VERSION: (u32, u32) = (2, 39);

/// Cheap to clone; the version is asked for once.
#[derive(Debug, Clone)]
pub struct GitEnv(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: OsString,
    home: Option<PathBuf>,
    xdg_config_home: Option<PathBuf>,
    version: OnceCell<Result<(u32, u32), String>>,
}

impl GitEnv {
    /// From explicit values. Relative directories of `path` are dropped: they would name programs
    /// inside whatever repository is current.
    #[must_use]
    pub fn new(path: &OsStr, home: Option<PathBuf>, xdg_config_home: Option<PathBuf>) -> Self {
        let absolute = std::env::split_paths(path).filter(|p| p.is_absolute());
        Self(Arc::new(Inner {
            path: std::env::join_paths(absolute).unwrap_or_default(),
            home: home.filter(|p| p.is_absolute()),
            xdg_config_home: xdg_config_home.filter(|p| p.is_absolute()),
            version: OnceCell::new(),
        }))
    }

    /// From this process: `PATH`, `HOME` and `XDG_CONFIG_HOME`, read once.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "git reads the person's own configuration below HOME, and is found through PATH; nothing else is read"
    )]
    pub fn of_this_process() -> Self {
        static ENV: OnceLock<GitEnv> = OnceLock::new();
        ENV.get_or_init(|| {
            let path =
                std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
            Self::new(
                &path,
                std::env::var_os("HOME").map(PathBuf::from),
                std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from),
            )
        })
        .clone()
    }

    /// `PATH` for git, without directories inside `repository`: what lies there may be an agent's.
    pub(crate) fn path_outside(&self, repository: &Path) -> OsString {
        // Everything lies below `/`; a repository there rules nothing out.
        let whole = repository.parent().is_none();
        let outside =
            std::env::split_paths(&self.0.path).filter(|p| whole || !p.starts_with(repository));
        std::env::join_paths(outside).unwrap_or_default()
    }

    pub(crate) fn home(&self) -> Option<&Path> {
        self.0.home.as_deref()
    }

    pub(crate) fn xdg_config_home(&self) -> Option<&Path> {
        self.0.xdg_config_home.as_deref()
    }

    /// The git binary, outside `repository`.
    pub(crate) fn binary(&self, repository: &Path) -> Result<PathBuf, GitError> {
        use std::os::unix::fs::PermissionsExt as _;
        std::env::split_paths(&self.path_outside(repository))
            .map(|dir| dir.join("git"))
            .find(|file| {
                file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
            })
            .ok_or(GitError::Missing)
    }

    /// Version of git.
    ///
    /// # Errors
    /// [`GitError::Missing`] and [`GitError::TooOld`].
    pub async fn version(&self) -> Result<(u32, u32), GitError> {
        let asked = self
            .0
            .version
            .get_or_try_init(|| async {
                let text = crate::process::version_text(self).await?;
                Ok::<_, GitError>(parse_version(&text).ok_or_else(|| escape::line(&text, 80)))
            })
            .await?;
        match asked {
            Ok(version) if *version >= MIN_VERSION => Ok(*version),
            Ok((major, minor)) => Err(GitError::TooOld { found: format!("{major}.{minor}") }),
            Err(what) => Err(GitError::Unexpected { subcommand: "version", what: what.clone() }),
        }
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix("git version ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_all_vendors_parse() {
        assert_eq!(parse_version("git version 2.47.3\n"), Some((2, 47)));
        assert_eq!(parse_version("git version 2.39.5 (Apple Git-154)\n"), Some((2, 39)));
        assert_eq!(parse_version("git version 2.50.0.windows.1"), Some((2, 50)));
        assert_eq!(parse_version("hub version 2"), None);
    }

    #[test]
    fn relative_and_repository_directories_leave_the_path() {
        let env = GitEnv::new(OsStr::new(".:/usr/bin::bin:/repo/node_modules/.bin"), None, None);
        assert_eq!(env.path_outside(Path::new("/repo")), OsString::from("/usr/bin"));
    }
}
