//! Where the service keeps its files, and where its socket is.
//!
//! All of it is private to the person. The socket's path is the same for every process that knows
//! the data directory, also where that path is too long for a socket.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_run::Digest;

/// The kernel takes 108 bytes for a socket's path, the final zero included.
const MAX_SOCKET_PATH: usize = 107;

/// The service's places in a data directory.
#[derive(Debug, Clone)]
pub struct Place {
    data: PathBuf,
    dir: PathBuf,
}

impl Place {
    /// Of the data directory `data`, which is absolute; nothing is created yet.
    #[must_use]
    pub fn of(data: &Path) -> Self {
        Self { data: data.to_path_buf(), dir: data.join("service") }
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The folder of the service's own files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The operator's token.
    #[must_use]
    pub fn token(&self) -> PathBuf {
        self.dir.join("operator.token")
    }

    /// Locked by the one process that serves.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// What the service writes when it was started on demand.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("service.log")
    }

    /// The local socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let usual = self.dir.join("socket");
        if usual.as_os_str().len() <= MAX_SOCKET_PATH {
            return usual;
        }
        let name = Digest::of(self.data.as_os_str().as_encoded_bytes());
        let name: String = name.as_str().chars().skip("sha256:".len()).take(16).collect();
        fallback_dir().join(name)
    }

    /// Creates the folders that are missing, mode 0700.
    ///
    /// # Errors
    /// They cannot be made, or the socket's folder belongs to somebody else.
    pub fn create(&self) -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        if self.socket().parent() == Some(self.dir.as_path()) {
            return Ok(());
        }
        let dir = fallback_dir();
        match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => owned(&dir),
            Err(error) => Err(error),
        }
    }
}

/// A folder below the machine's shared temporary one: only its owner makes it trustworthy.
fn fallback_dir() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    Path::new("/tmp").join(format!("cofferdam-{uid}"))
}

fn owned(dir: &Path) -> std::io::Result<()> {
    let found = std::fs::symlink_metadata(dir)?;
    let private = found.is_dir()
        && found.uid() == rustix::process::getuid().as_raw()
        && found.permissions().mode() & 0o077 == 0;
    if private {
        return Ok(());
    }
    let text = format!("{} is not a private folder of this person's", dir.display());
    Err(std::io::Error::other(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_data_directory_still_has_a_socket_of_its_own() {
        let long = |tail: &str| Place::of(&Path::new("/").join("d".repeat(150)).join(tail));
        let (one, two) = (long("one").socket(), long("two").socket());
        assert_ne!(one, two);
        assert!(one.as_os_str().len() <= MAX_SOCKET_PATH);
        assert_eq!(one, long("one").socket());
        let short = Place::of(Path::new("/data"));
        assert_eq!(short.socket(), Path::new("/data/service/socket"));
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("shared");
        std::fs::DirBuilder::new().mode(0o700).create(&place).unwrap();
        owned(&place).unwrap();
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
        owned(&place).unwrap_err();
        std::os::unix::fs::symlink("/root", dir.path().join("link")).unwrap();
        owned(&dir.path().join("link")).unwrap_err();
    }
}
