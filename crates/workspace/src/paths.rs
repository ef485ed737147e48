//! Our own check of paths that a run's commits contain, beside the one that git's fsck makes.

/// Why a path may not enter the person's repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathFault {
    /// It begins with a slash.
    #[error("is absolute")]
    Absolute,
    /// A component is empty, `.` or `..`.
    #[error("leaves or repeats its directory")]
    Dots,
    /// A component is `.git` to some file system.
    #[error("reaches into a .git directory")]
    DotGit,
    /// It has control characters.
    #[error("has control characters")]
    Control,
    /// It or one of its components is longer than a file system takes.
    #[error("is too long")]
    TooLong,
}

/// Longest path, bytes (Linux's own bound for one call). A longer one is refused.
pub(crate) const MAX_PATH_BYTES: usize = 4096;

/// Longest component, bytes (the bound of all common file systems). A longer one is refused.
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// Checks a path as git stores it: relative, with `/` between its components.
pub(crate) fn check(path: &[u8]) -> Result<(), PathFault> {
    if path.len() > MAX_PATH_BYTES || path.split(|b| *b == b'/').any(|p| p.len() > MAX_NAME_BYTES) {
        return Err(PathFault::TooLong);
    }
    if path.starts_with(b"/") {
        return Err(PathFault::Absolute);
    }
    if path.iter().any(|b| *b < 0x20 || *b == 0x7f) {
        return Err(PathFault::Control);
    }
    for part in path.split(|b| *b == b'/') {
        if matches!(part, b"" | b"." | b"..") {
            return Err(PathFault::Dots);
        }
        if is_dot_git(part) {
            return Err(PathFault::DotGit);
        }
    }
    Ok(())
}

/// `.git` in any case, with characters that HFS+ ignores, with trailing dots, spaces or a stream name
/// that NTFS ignores, or by its short name. A backslash separates components on Windows.
fn is_dot_git(part: &[u8]) -> bool {
    part.split(|b| *b == b'\\').any(|part| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_escape_or_disguise_are_refused() {
        for (path, fault) in [
            ("/etc/passwd", PathFault::Absolute),
            ("a/../../b", PathFault::Dots),
            ("a//b", PathFault::Dots),
            ("./a", PathFault::Dots),
            (".git/hooks/pre-commit", PathFault::DotGit),
            ("sub/.GIT/config", PathFault::DotGit),
            (".g\u{200c}it/config", PathFault::DotGit),
            (".git. /config", PathFault::DotGit),
            (".git::$INDEX_ALLOCATION/x", PathFault::DotGit),
            ("GIT~1/config", PathFault::DotGit),
            ("a\\.git\\config", PathFault::DotGit),
            ("a\rb", PathFault::Control),
            ("a\u{1b}[31m", PathFault::Control),
        ] {
            assert_eq!(check(path.as_bytes()), Err(fault), "{path:?}");
        }
        assert_eq!(check(&[b'a'; 256]), Err(PathFault::TooLong));
        assert_eq!(check("a/".repeat(2500).as_bytes()), Err(PathFault::TooLong));
    }

    #[test]
    fn ordinary_and_odd_paths_pass() {
        for path in [
            ".gitignore",
            ".github/workflows/x.yml",
            "ä ö/ü",
            "-rf",
            "a b",
            "git",
            "x.git/y",
            "...",
        ] {
            assert_eq!(check(path.as_bytes()), Ok(()), "{path:?}");
        }
        assert_eq!(check(b"\xff\xfe"), Ok(()));
    }
}
