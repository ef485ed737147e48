//! Repositories to measure with, made by git itself in a home of its own.
//!
//! It must never read the person's git configuration or touch a repository that it did not make.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use cofferdam_git::GitEnv;

use crate::outside;

/// A directory that holds a home without configuration and the repositories of one benchmark.
#[derive(Debug)]
pub(crate) struct Bench<'d> {
    dir: &'d Path,
}

impl<'d> Bench<'d> {
    pub(crate) fn new(dir: &'d Path) -> anyhow::Result<Self> {
        std::fs::create_dir(dir.join("home"))?;
        Ok(Self { dir })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The same surroundings for this project's own launcher of git.
    pub(crate) fn env(&self) -> GitEnv {
        GitEnv::new(OsStr::new(&outside::search_path()), Some(self.path("home")), None)
    }

    /// Git in a directory, without anything of the person's.
    pub(crate) fn git(&self, place: &Path) -> Command {
        let mut command = outside::command("git");
        command.current_dir(place).env_clear();
        command.env("PATH", outside::search_path()).env("HOME", self.path("home"));
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("LC_ALL", "C");
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_NAME"), "Bench");
            command.env(format!("GIT_{role}_EMAIL"), "bench@example.com");
        }
        command.args(["-c", "maintenance.auto=false", "-c", "gc.auto=0"]);
        command
    }

    pub(crate) fn run(&self, place: &Path, args: &[&str]) -> anyhow::Result<String> {
        outside::output(self.git(place).args(args))
    }

    /// Removes the last clone and clones, through git's transport and not by links: milliseconds of
    /// the clone alone.
    pub(crate) fn clone_ms(&self, from: &Path, more: &[&str]) -> anyhow::Result<f64> {
        let to = self.path("clone");
        if to.exists() {
            std::fs::remove_dir_all(&to)?;
        }
        let mut git = self.git(self.dir);
        outside::timed(git.args(["clone", "-q", "--no-local"]).args(more).arg(from).arg(&to))
    }

    /// A repository with that many files of about 1 KiB each and that many commits, checked out and
    /// packed.
    pub(crate) fn repository(
        &self,
        name: &str,
        files: usize,
        commits: usize,
    ) -> anyhow::Result<PathBuf> {
        let place = self.path(name);
        std::fs::create_dir(&place)?;
        self.run(&place, &["init", "-q", "-b", "main"])?;
        let mut git = self.git(&place);
        git.args(["fast-import", "--quiet"]).stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = git.spawn().context("cannot start git fast-import")?;
        let mut stream = std::io::BufWriter::new(child.stdin.take().context("no stdin")?);
        for n in 0..commits {
            let message = format!("Change {n}");
            writeln!(stream, "commit refs/heads/main\ncommitter B <b@example.com> {n} +0000")?;
            writeln!(stream, "data {}\n{message}", message.len())?;
            // The first commit has all files, each further one changes one of them.
            let changed = if n == 0 { 0..files } else { n % files..n % files + 1 };
            for file in changed {
                let text = text(n, file);
                writeln!(stream, "M 100644 inline dir{:03}/file{file}.txt", file / 100)?;
                writeln!(stream, "data {}\n{text}", text.len())?;
            }
        }
        stream.flush()?;
        drop(stream);
        let status = child.wait()?;
        anyhow::ensure!(status.success(), "git fast-import ended with {status}");
        self.run(&place, &["reset", "-q", "--hard"])?;
        self.run(&place, &["repack", "-q", "-a", "-d"])?;
        Ok(place)
    }
}

/// Lines that differ between files and between changes, so that neither packs to nothing.
fn text(change: usize, file: usize) -> String {
    let mut state = (change * 1_000_003 + file * 7919 + 1) as u64;
    (0..28)
        .map(|line| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(line);
            format!("line {line} of file {file}: {state:016x}\n")
        })
        .collect()
}
