//! Repositories that make git run a program, and a person who looks at them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Shell commands that leave such repositories in `/work/repo`: at its top, nested, in capitals, bare,
/// and behind a `.git` that is a file. No git is needed.
pub(crate) fn script(canary: &Path) -> String {
    format!(
        r#"set -e
make() {{
    mkdir -p "$1/objects" "$1/refs" "$1/hooks"
    echo 'ref: refs/heads/main' > "$1/HEAD"
    printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = "touch {canary} #"\n%s' "$2" > "$1/config"
}}
mkdir /work/repo && cd /work/repo
echo kept > file
make .git ''
make nested/.git ''
make capitals/.GIT ''
make bare.git '	worktree = ..
'
mkdir pointed && echo 'gitdir: ../bare.git' > pointed/.git
"#,
        canary = canary.display()
    )
}

/// Copies a tree, links as links.
#[expect(clippy::disallowed_methods, reason = "a copy for the positive control")]
pub(crate) fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// Gives the top repository its names back.
#[allow(dead_code, reason = "one of the two suites has the work before it is salvaged")]
pub(crate) fn rearm(top: &Path) {
    let git = top.join(".git");
    fs::rename(top.join("git-of-the-sandbox"), &git).unwrap();
    for part in ["HEAD", "config", "hooks"] {
        fs::rename(git.join(format!("{part}-of-the-sandbox")), git.join(part)).unwrap();
    }
}

/// Whether `git status`, in any directory of the tree, ran the planted program.
#[expect(clippy::disallowed_methods, reason = "the real git, as a person would run it")]
pub(crate) fn springs(top: &Path, canary: &Path) -> bool {
    let _none = fs::remove_file(canary);
    let home = tempfile::tempdir().unwrap();
    let mut left = vec![top.to_owned()];
    while let Some(at) = left.pop() {
        Command::new("git")
            .arg("status")
            .current_dir(&at)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", home.path())
            .env("GIT_CEILING_DIRECTORIES", top.parent().unwrap())
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", "safe.directory")
            .env("GIT_CONFIG_VALUE_0", "*")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        for entry in fs::read_dir(&at).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
        }
    }
    canary.exists()
}
