//! The lane `fuzz`: libFuzzer over every target, with the stable toolchain that builds everything else.
//!
//! Coverage comes from LLVM's own pass, which stable `rustc` can switch on; there is no sanitizer, and
//! none is missed: what is fuzzed has no unsafe code. It must never change the committed corpora
//! unless it is asked to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};

use crate::sh;

/// As in tests/fuzz/tests/replay.rs.
const MAX_FILES: usize = 200;
const MAX_INPUT: u64 = 4096;

const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// What libFuzzer needs to see where an input went.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";

/// How to run it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// For each target.
    pub(crate) seconds: u32,
    /// Write what was found back to the committed corpora, minimised.
    pub(crate) keep: bool,
}

/// Builds the targets and runs one after the other. All are run, also when one fails.
pub(crate) fn fuzz(options: Options) -> anyhow::Result<()> {
    let build = sh::target().join("fuzz");
    sh::run(
        sh::cargo()
            .args(["build", "--locked", "--release", "--target", TRIPLE, "--manifest-path"])
            .arg(sh::root().join("fuzz/Cargo.toml"))
            .env("CARGO_TARGET_DIR", &build)
            .env("RUSTFLAGS", COVERAGE),
    )?;
    let mut failed = Vec::new();
    for name in targets()? {
        let target = Target::new(&build, &name)?;
        if let Err(error) = sh::step(&name, || target.run(options)) {
            sh::say(&format!("{error:#}"));
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} failed; each input is in {}", failed.join(", "), build.join("found").display());
}

fn targets() -> anyhow::Result<Vec<String>> {
    let manifest: toml::Table = fs::read_to_string(sh::root().join("fuzz/Cargo.toml"))?.parse()?;
    let programs = manifest.get("bin").and_then(toml::Value::as_array);
    let names = programs.into_iter().flatten().filter_map(|bin| bin.get("name")?.as_str());
    Ok(names.map(str::to_owned).collect())
}

struct Target {
    program: PathBuf,
    /// Committed.
    corpus: PathBuf,
    /// What this machine has found so far.
    own: PathBuf,
    found: PathBuf,
}

impl Target {
    fn new(build: &Path, name: &str) -> anyhow::Result<Self> {
        let target = Self {
            program: build.join(TRIPLE).join("release").join(name),
            corpus: sh::root().join("tests/fuzz/corpora").join(name),
            own: build.join("corpora").join(name),
            found: build.join("found"),
        };
        for dir in [&target.own, &target.found] {
            fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        Ok(target)
    }

    fn run(&self, options: Options) -> anyhow::Result<()> {
        let mut command = sh::cmd("nice");
        command.args(["-n", "19"]).arg(&self.program);
        command.arg(format!("-max_total_time={}", options.seconds));
        command.args(["-max_len=4096", "-timeout=10", "-rss_limit_mb=2048", "-verbosity=0"]);
        command.args(["-print_final_stats=1", "-use_value_profile=1"]);
        command.arg(format!("-artifact_prefix={}/", self.found.display()));
        command.arg(&self.own).arg(&self.corpus);
        let log = self.own.with_extension("log");
        let out = fs::File::create(&log)?;
        let status = command.stdout(out.try_clone()?).stderr(Stdio::from(out)).status()?;
        let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if !status.success() {
            let end: Vec<&str> = said.lines().rev().take(40).collect();
            let end: Vec<&str> = end.into_iter().rev().collect();
            bail!("{}\nit ended with {status}", end.join("\n"));
        }
        let count = said.lines().find_map(|l| l.strip_prefix("stat::number_of_executed_units:"));
        sh::say(&format!("   {} inputs, nothing found", count.unwrap_or("?").trim()));
        if options.keep { self.keep() } else { Ok(()) }
    }

    /// Reduces both corpora to the fewest and smallest inputs that reach as much. Inputs that a person
    /// named stay.
    fn keep(&self) -> anyhow::Result<()> {
        let merged = self.own.with_extension("merged");
        let _ = fs::remove_dir_all(&merged);
        fs::create_dir_all(&merged)?;
        let mut command = sh::cmd(&self.program);
        command.args(["-merge=1", "-max_len=4096", "-verbosity=0", "-rss_limit_mb=2048"]);
        command.arg(&merged).arg(&self.corpus).arg(&self.own);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        sh::run(&mut command)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&merged)? {
            let entry = entry?;
            files.push((entry.metadata()?.len(), entry.path()));
        }
        files.retain(|(bytes, _)| *bytes <= MAX_INPUT);
        files.sort();
        let mut named = 0;
        for entry in fs::read_dir(&self.corpus)? {
            let entry = entry?;
            if is_digest(&entry.file_name()) {
                fs::remove_file(entry.path())?;
            } else {
                named += 1;
            }
        }
        files.truncate(MAX_FILES.saturating_sub(named));
        for (_, file) in files {
            let name = file.file_name().context("a file without a name")?;
            fs::copy(&file, self.corpus.join(name))?;
        }
        Ok(())
    }
}

/// libFuzzer names what it finds by SHA-1.
fn is_digest(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|n| n.len() == 40 && n.bytes().all(|b| b.is_ascii_hexdigit()))
}
