//! `cargo xtask soak`: many runs through the real command, most of them killed at a random moment;
//! then one sweep, and a count of everything that a run could leave behind.
//!
//! It must never touch anything that does not lie below its own directory or carry one of its own run
//! ids: other tests use the same machine at the same time.

mod census;
mod fate;
mod verdicts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{build, sh};
use fate::{Ending, Fate};

/// A run that takes longer is itself a find.
const PATIENCE: Duration = Duration::from_secs(150);
/// Leases of processes whose end cannot be proven run out within this time.
const SWEEPING: Duration = Duration::from_secs(60);

/// What the person asked for.
pub(crate) struct Options {
    /// How many runs.
    pub(crate) runs: u32,
    /// Kill the host process of most of them.
    pub(crate) kill: bool,
    /// Engine name.
    pub(crate) engine: String,
    /// Seed of everything that is random.
    pub(crate) seed: u64,
    /// Runs at once.
    pub(crate) jobs: u32,
    /// The program to run; built when none is named.
    pub(crate) program: Option<PathBuf>,
    /// Leave the directory in place.
    pub(crate) keep: bool,
}

impl Options {
    /// The part that is in CI.
    pub(crate) fn ci() -> Self {
        Self {
            runs: 50,
            kill: true,
            engine: "native".to_owned(),
            seed: 1,
            jobs: 3,
            program: None,
            keep: false,
        }
    }

    /// The lane.
    pub(crate) fn long() -> Self {
        Self { runs: 1_000, ..Self::ci() }
    }
}

/// The place of one soak.
pub(crate) struct World {
    command: PathBuf,
    place: PathBuf,
    engine: String,
}

impl World {
    pub(crate) fn repo(&self) -> PathBuf {
        self.place.join("repo")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.place.join("data")
    }

    /// The command, with everything that it makes below our own place.
    pub(crate) fn cofferdam(&self, args: &[&str]) -> Command {
        let mut command = sh::cmd(&self.command);
        command.current_dir(self.repo()).args(args);
        command.env("COFFERDAM_CONFIG", self.place.join("config.toml"));
        command.env("COFFERDAM_DATA_DIR", self.data());
        command.env("COFFERDAM_BIN_DIR", sh::sandbox_bin());
        command.env("HOME", self.place.join("home")).env("TMPDIR", self.place.join("tmp"));
        if self.engine != "native" {
            #[expect(clippy::disallowed_methods, reason = "xtask reads where the test engine is")]
            if let Some(host) = std::env::var_os("COFFERDAM_TEST_DOCKER_HOST") {
                command.env("DOCKER_HOST", host);
            }
        }
        command
    }

    pub(crate) fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let text = sh::output(&mut self.cofferdam(args))?;
        serde_json::from_str(&text).with_context(|| format!("output of {args:?}"))
    }

    pub(crate) fn git(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = sh::cmd("git");
        command.current_dir(self.repo()).args(args).env("HOME", self.place.join("home"));
        Ok(sh::output(&mut command)?.trim_end().to_owned())
    }
}

/// Runs it all; what is found ends it with an error that lists everything.
pub(crate) fn soak(options: &Options) -> anyhow::Result<()> {
    let command = match &options.program {
        Some(program) => program.clone(),
        None => build::build(false)?,
    };
    let place = std::env::temp_dir().join(format!("cofferdam-soak-{}", std::process::id()));
    let world = World { command, place: place.clone(), engine: options.engine.clone() };
    make_place(&world)?;
    sh::say(&format!(
        "{} runs on {}, {} at once, seed {} (repeat with --seed {})",
        options.runs, options.engine, options.jobs, options.seed, options.seed
    ));
    let result = story(options, &world);
    if options.keep || result.is_err() {
        sh::say(&format!("kept: {}", place.display()));
    } else {
        fs::remove_dir_all(&place).with_context(|| format!("remove {}", place.display()))?;
    }
    result
}

fn story(options: &Options, world: &World) -> anyhow::Result<()> {
    let before = (world.git(&["rev-parse", "HEAD"])?, world.git(&["status", "--porcelain"])?);
    let mut found = sh::step("runs", || all_runs(options, world))?;
    sh::step("sweep", || sweep(world))?;
    sh::step("verdicts", || {
        found.extend(verdicts::check(world, options)?);
        Ok(())
    })?;
    sh::step("count what is left", || {
        found.extend(census::left(world)?);
        Ok(())
    })?;
    let after = (world.git(&["rev-parse", "HEAD"])?, world.git(&["status", "--porcelain"])?);
    if before != after {
        found.push(format!("the checkout changed: {before:?} became {after:?}"));
    }
    if found.is_empty() {
        sh::say("nothing is left, every run has a verdict that holds");
        return Ok(());
    }
    bail!("{} finds (seed {}):\n{}", found.len(), options.seed, found.join("\n"))
}

fn make_place(world: &World) -> anyhow::Result<()> {
    for name in ["repo", "home", "tmp", "out"] {
        fs::create_dir_all(world.place.join(name))?;
    }
    fs::write(world.place.join("config.toml"), "")?;
    fs::write(world.repo().join("README.md"), "# Soaked\n")?;
    world.git(&["init", "--quiet", "--initial-branch", "main"])?;
    world.git(&["config", "user.name", "Test Person"])?;
    world.git(&["config", "user.email", "person@example.com"])?;
    world.git(&["add", "."])?;
    world.git(&["commit", "--quiet", "-m", "Start"])?;
    fs::write(world.repo().join("README.md"), "# Soaked\n\nedited, not committed\n")?;
    fs::write(world.repo().join("untracked.txt"), "untracked\n")?;
    Ok(())
}

/// All runs, some at once. Gives what went wrong.
fn all_runs(options: &Options, world: &World) -> anyhow::Result<Vec<String>> {
    let next = AtomicU32::new(0);
    let found = Mutex::new(Vec::new());
    let tell = |text: String| {
        // A poisoned list means that another worker panicked; its text is still worth having.
        found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(text);
    };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= options.runs {
                        return;
                    }
                    let fate = Fate::of(options.seed, number, options.kill);
                    if let Err(error) = one_run(world, number, &fate) {
                        tell(format!("run {number} ({fate:?}): {error:#}"));
                    }
                    if (number + 1).is_multiple_of(50) {
                        sh::say(&format!("   {} begun", number + 1));
                    }
                }
            });
        }
    });
    Ok(found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn one_run(world: &World, number: u32, fate: &Fate) -> anyhow::Result<()> {
    let script = fate.script(number);
    let mut args =
        vec!["run", "--json", "--engine", &world.engine, "--wall-clock", fate.wall_clock];
    if !is_root() {
        args.extend(["--accept-degraded", "memory_limit,pids_limit,cpu_limit"]);
    }
    args.extend(["--", "sh", "-c", &script]);
    let out = |end: &str| fs::File::create(world.place.join(format!("out/{number}.{end}")));
    let mut child = world
        .cofferdam(&args)
        .stdin(Stdio::null())
        .stdout(out("out")?)
        .stderr(out("err")?)
        .spawn()
        .context("start the command")?;
    match fate.ending {
        Ending::Kill { after_ms } => {
            std::thread::sleep(Duration::from_millis(after_ms));
            // Gone already is fine too.
            let _ = child.kill();
        }
        Ending::Cancel { after_ms } => {
            std::thread::sleep(Duration::from_millis(after_ms));
            // Our own child, not waited for yet: the id cannot have been reused.
            let _ = sh::cmd("kill").args(["-INT", &child.id().to_string()]).status();
        }
        Ending::Itself => {}
    }
    wait(&mut child)
}

fn wait(child: &mut Child) -> anyhow::Result<()> {
    let begin = now();
    while child.try_wait()?.is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            bail!("did not end within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Sweeps until nothing is live any more.
fn sweep(world: &World) -> anyhow::Result<()> {
    let begin = now();
    loop {
        let report = world.json(&["sweep", "--json"])?;
        let list = |name: &str| report[name].as_array().map_or(0, Vec::len);
        sh::say(&format!(
            "   settled {}, sandboxes {}, directories {}, failed {}, live {}",
            list("settled"),
            list("removed"),
            list("directories"),
            list("failed"),
            list("live"),
        ));
        if list("live") == 0 && list("stuck") == 0 && list("failed") == 0 {
            return Ok(());
        }
        if begin.elapsed() > SWEEPING {
            bail!("the sweep does not come to an end: {report:#}");
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "xtask bounds its waiting")]
    Instant::now()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// Every path below `place`, links not followed.
fn walk(place: &Path) -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(place).min_depth(1).follow_links(false);
    entries.into_iter().flatten().map(walkdir::DirEntry::into_path).collect()
}
