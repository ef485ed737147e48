//! One service per data directory, held by the kernel: the lock goes with the process, however it ends.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::fs::{FlockOperation, flock};

use crate::error::ServeError;
use crate::place::Place;

/// The right to serve a data directory. Given back when dropped, or when the process ends.
#[derive(Debug)]
pub struct ServiceLock {
    _file: File,
}

impl ServiceLock {
    /// Takes it.
    ///
    /// # Errors
    /// [`ServeError::AlreadyServed`] when another process holds it.
    pub fn take(place: &Place) -> Result<Self, ServeError> {
        place.create().map_err(|e| ServeError::file("create", place.dir(), e))?;
        let path = place.lock();
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| ServeError::file("open", &path, e))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(ServeError::AlreadyServed(place.data().to_path_buf()))
            }
            Err(error) => Err(ServeError::file("lock", &path, error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_is_served_once_and_can_be_served_again_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(dir.path());
        let first = ServiceLock::take(&place).unwrap();
        assert_eq!(ServiceLock::take(&place).unwrap_err().code(), "API-020");
        drop(first);
        ServiceLock::take(&place).unwrap();
    }
}
