//! Facts about making salvaged work harmless, with the real git.

use super::*;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs git as a person would, apart from a home of its own.
#[expect(clippy::disallowed_methods, reason = "the real git, in a directory of the test")]
fn git(home: &Path, at: &Path, arguments: &[&str]) -> bool {
    Command::new("git")
        .args(arguments)
        .current_dir(at)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home)
        .env("GIT_CEILING_DIRECTORIES", home)
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

struct Trap {
    temp: tempfile::TempDir,
    canary: PathBuf,
}

impl Trap {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let canary = temp.path().join("canary");
        fs::create_dir(temp.path().join("work")).unwrap();
        Self { temp, canary }
    }

    fn work(&self) -> PathBuf {
        self.temp.path().join("work")
    }

    fn init(&self, at: &str) -> PathBuf {
        let at = self.work().join(at);
        fs::create_dir_all(&at).unwrap();
        assert!(git(self.temp.path(), &at, &["init", "-q", "."]));
        self.arm(&at.join(".git"), None);
        at
    }

    /// Makes `git status` run a program.
    fn arm(&self, git_dir: &Path, worktree: Option<&Path>) {
        let worktree = worktree.map_or(String::new(), |w| format!("worktree = {}\n", w.display()));
        let config = format!(
            "[core]\nrepositoryformatversion = 0\nbare = false\n{worktree}fsmonitor = \"touch {} #\"\n",
            self.canary.display()
        );
        fs::write(git_dir.join("config"), config).unwrap();
    }

    /// Whether `git status` in any directory below `work` ran the program.
    fn springs(&self, only: Option<&Path>) -> bool {
        let _none = fs::remove_file(&self.canary);
        let mut left = vec![only.map_or(self.work(), Path::to_owned)];
        while let Some(at) = left.pop() {
            git(self.temp.path(), &at, &["status"]);
            if only.is_none() {
                for entry in fs::read_dir(&at).unwrap().map(Result::unwrap) {
                    if entry.file_type().unwrap().is_dir() {
                        left.push(entry.path());
                    }
                }
            }
        }
        self.canary.exists()
    }

    fn is_disarmed_after_springing_at(&self, at: &Path) {
        assert!(self.springs(Some(at)), "the trap does not work at {}", at.display());
        disarm(&self.work()).unwrap();
        assert!(!self.springs(None), "git ran a program of the guest's");
    }
}

#[test]
fn planted_program_does_not_run_at_the_top_nor_below() {
    let trap = Trap::new();
    let nested = trap.init("a/b/nested");
    assert!(trap.springs(Some(&nested)));
    trap.init("");
    fs::write(trap.work().join("file"), "kept").unwrap();
    trap.is_disarmed_after_springing_at(&trap.work());
    assert_eq!(fs::read(trap.work().join("file")).unwrap(), b"kept");
    assert!(trap.work().join("git-of-the-sandbox/config-of-the-sandbox").exists());
    assert!(nested.join("git-of-the-sandbox/HEAD-of-the-sandbox").exists());
}

#[test]
fn file_or_link_in_the_place_of_the_repository_leads_git_nowhere() {
    for link in [false, true] {
        let trap = Trap::new();
        let top = trap.init("");
        fs::rename(top.join(".git"), top.join("elsewhere")).unwrap();
        if link {
            symlink("elsewhere", top.join(".git")).unwrap();
        } else {
            fs::write(top.join(".git"), "gitdir: elsewhere\n").unwrap();
        }
        trap.is_disarmed_after_springing_at(&top);
        let renamed = fs::symlink_metadata(top.join(GIT_RENAMED)).unwrap();
        assert_eq!(renamed.is_symlink(), link);
    }
}

#[test]
fn bare_repository_is_not_taken_for_one() {
    let trap = Trap::new();
    let bare = trap.init("");
    fs::rename(bare.join(".git"), bare.join("objects-store")).unwrap();
    let bare = bare.join("objects-store");
    trap.arm(&bare, Some(&trap.work()));
    trap.is_disarmed_after_springing_at(&bare);
}

#[test]
fn directory_that_borrows_a_repository_is_not_taken_for_one() {
    let trap = Trap::new();
    let lender = trap.work().join("lender");
    let borrower = trap.work().join("borrower");
    trap.init("");
    fs::rename(trap.work().join(".git"), &lender).unwrap();
    fs::create_dir(&borrower).unwrap();
    // Neither has all that makes a repository.
    fs::rename(lender.join("HEAD"), borrower.join("HEAD")).unwrap();
    fs::write(borrower.join("commondir"), "../lender\n").unwrap();
    trap.arm(&lender, None);
    let config = fs::read_to_string(lender.join("config")).unwrap();
    let config = config.replace("version = 0", "version = 1").replace("bare = false\n", "");
    fs::write(lender.join("config"), config + "[extensions]\nworktreeConfig = true\n").unwrap();
    let own = format!("[core]\nbare = false\nworktree = {}\n", trap.work().display());
    fs::write(borrower.join("config.worktree"), own).unwrap();
    trap.is_disarmed_after_springing_at(&borrower);
}

#[test]
fn every_spelling_is_renamed_and_nothing_is_replaced() {
    let trap = Trap::new();
    let work = trap.work();
    for name in [".git", ".GIT", ".Git", "git-of-the-sandbox", "git-of-the-sandbox-1"] {
        fs::write(work.join(name), name).unwrap();
    }
    disarm(&work).unwrap();
    let mut names = Vec::new();
    let mut contents = Vec::new();
    for entry in fs::read_dir(&work).unwrap().map(Result::unwrap) {
        contents.push(fs::read_to_string(entry.path()).unwrap());
        names.push(entry.file_name().into_string().unwrap());
    }
    contents.sort();
    assert_eq!(contents, [".GIT", ".Git", ".git", "git-of-the-sandbox", "git-of-the-sandbox-1"]);
    assert!(names.iter().all(|name| name.starts_with(GIT_RENAMED)), "{names:?}");
}

#[test]
fn repository_outside_that_a_link_leads_to_is_left_alone() {
    let trap = Trap::new();
    let outside = trap.temp.path().join("outside");
    fs::create_dir_all(outside.join(".git")).unwrap();
    symlink(&outside, trap.work().join("link")).unwrap();
    disarm(&trap.work()).unwrap();
    assert!(outside.join(".git").exists());
    assert_eq!(fs::read_link(trap.work().join("link")).unwrap(), outside);
}

#[test]
fn repository_deeper_than_any_path_is_disarmed() {
    let trap = Trap::new();
    let mut at = rustix::fs::open(trap.work(), DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..1_500 {
        rustix::fs::mkdirat(&at, c"deep", Mode::RWXU).unwrap();
        at = openat(&at, c"deep", DIRECTORY, Mode::empty()).unwrap();
    }
    rustix::fs::mkdirat(&at, c".git", Mode::RWXU).unwrap();
    disarm(&trap.work()).unwrap();
    assert!(statat(&at, c".git", AtFlags::SYMLINK_NOFOLLOW).is_err());
    assert!(statat(&at, GIT_RENAMED, AtFlags::SYMLINK_NOFOLLOW).is_ok());
    crate::tree::remove(&trap.work()).unwrap();
}

#[test]
fn empty_directories_are_no_content_and_a_link_is() {
    let trap = Trap::new();
    fs::create_dir_all(trap.work().join("home/.config")).unwrap();
    assert!(!has_content(&trap.work()).unwrap());
    symlink("nowhere", trap.work().join("home/link")).unwrap();
    assert!(has_content(&trap.work()).unwrap());
}
