//! The system-call profile as a file, for engines that take its path.
//!
//! Named by its digest and replaced whole, so that a run never gets half of one. It must never hand out
//! a path whose content it has not compared.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cofferdam_run::ids::Digest;

/// Writes the profile into `dir` where it is not there yet; gives its absolute path.
pub(crate) fn write(dir: &Path, profile: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(dir)?;
    let digest = Digest::of(profile.as_bytes()).to_string();
    let name = digest.trim_start_matches("sha256:").get(..16).unwrap_or("profile");
    let place = std::path::absolute(dir)?.join(format!("seccomp-{name}.json"));
    if holds(&place, profile) {
        return Ok(place);
    }
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(profile.as_bytes())?;
    // Nothing secret: an engine of another user has to read it too.
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    file.persist(&place).map_err(|error| error.error)?;
    Ok(place)
}

/// Whether the file holds exactly this profile.
pub(crate) fn holds(place: &Path, profile: &str) -> bool {
    fs::read(place).is_ok_and(|there| there == profile.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_other_content_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let place = write(dir.path(), "{}").unwrap();
        assert!(place.is_absolute() && holds(&place, "{}"));
        fs::write(&place, "{\"defaultAction\":\"SCMP_ACT_ALLOW\"}").unwrap();
        assert!(!holds(&place, "{}"));
        assert_eq!(write(dir.path(), "{}").unwrap(), place);
        assert!(holds(&place, "{}"));
        assert_ne!(write(dir.path(), "{ }").unwrap(), place);
    }
}
