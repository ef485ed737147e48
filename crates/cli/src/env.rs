//! Every environment variable that the command reads, declared and read here and nowhere else.

use std::ffi::OsString;
use std::path::PathBuf;

/// Path of the configuration file.
pub(crate) const CONFIG: &str = "COFFERDAM_CONFIG";
/// Data directory.
pub(crate) const DATA_DIR: &str = "COFFERDAM_DATA_DIR";
/// Folder with guest and launcher, when they are not beside the command.
pub(crate) const BIN_DIR: &str = "COFFERDAM_BIN_DIR";
/// Log filter for operators, for example `debug`.
pub(crate) const LOG: &str = "COFFERDAM_LOG";
/// The Docker engine.
pub(crate) const DOCKER_HOST: &str = "DOCKER_HOST";
/// The Podman engine; Podman's own command reads it too.
pub(crate) const CONTAINER_HOST: &str = "CONTAINER_HOST";
/// Switches colour off, whatever its value.
pub(crate) const NO_COLOR: &str = "NO_COLOR";

/// The variable as it is.
pub(crate) fn raw(name: &str) -> Option<OsString> {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the environment"
    )]
    std::env::var_os(name).filter(|v| !v.is_empty())
}

/// The variable as text; one that is not text counts as absent.
pub(crate) fn text(name: &str) -> Option<String> {
    raw(name).and_then(|v| v.into_string().ok())
}

/// The variable as a path.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    raw(name).map(PathBuf::from)
}
