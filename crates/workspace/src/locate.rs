//! Tells an address of another machine from a path on this one, by its text alone.
//!
//! It must never look at the file system: a remote project is refused before anything is touched.

use std::path::Path;

use cofferdam_git::escape;

/// The address, escaped, when `path` names another machine: `scheme://…`, `vscode-remote:…`,
/// `[user@]host:path` (as git reads it: a colon before the first slash).
pub(crate) fn remote_address(path: &Path) -> Option<String> {
    let text = path.to_string_lossy();
    let before_slash = text.split('/').next().unwrap_or_default();
    // `scheme://` has a colon before its first slash too.
    before_slash.contains(':').then(|| escape::line(text.as_bytes(), 200))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_other_machines_are_told_from_paths() {
        for remote in [
            "ssh://host/path",
            "https://example.com/x.git",
            "git@github.com:a/b.git",
            "host:path",
            "vscode-remote://ssh-remote+host/home/x",
            "vscode-remote:x",
            "file:///home/x",
            "C:/x",
        ] {
            assert!(remote_address(Path::new(remote)).is_some(), "{remote}");
        }
        for local in [".", "/srv/a:b", "./a:b", "work/a:b", "", "näme", "../x"] {
            assert!(remote_address(Path::new(local)).is_none(), "{local}");
        }
    }
}
