//! Running commands and talking to the person, for all of xtask.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail};

/// Root of the checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Target folder that cargo uses.
pub(crate) fn target() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "xtask reads cargo's own variable")]
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The search path.
pub(crate) fn path() -> std::ffi::OsString {
    #[expect(
        clippy::disallowed_methods,
        reason = "xtask adds to the search path of what it starts"
    )]
    std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into())
}

/// Where the test engine lives. Its socket path has to stay short, so it is not below `target`.
pub(crate) fn engine_dir() -> PathBuf {
    std::env::temp_dir().join("cofferdam-test-engine")
}

/// Where the static sandbox binaries are put; the same place that `.cargo/config.toml` names.
pub(crate) fn sandbox_bin() -> PathBuf {
    // A second tree of builds (another target folder) brings its own place.
    #[expect(
        clippy::disallowed_methods,
        reason = "xtask reads the variable that the product reads"
    )]
    std::env::var_os("COFFERDAM_BIN_DIR")
        .map_or_else(|| root().join("target/sandbox-bin"), PathBuf::from)
}

/// A command in the checkout's root.
pub(crate) fn cmd(program: impl AsRef<OsStr>) -> Command {
    #[expect(clippy::disallowed_methods, reason = "xtask starts tools")]
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The cargo that started us.
pub(crate) fn cargo() -> Command {
    #[expect(clippy::disallowed_methods, reason = "xtask reads cargo's own variable")]
    cmd(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs it, output passed through.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown} ended with {status}");
    }
    Ok(())
}

/// Runs it and gives its standard output as text.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let shown = format!("{command:?}");
    let out = command.output().with_context(|| format!("cannot start {shown}"))?;
    if !out.status.success() {
        bail!("{shown} ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// A line on standard output.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // A closed pipe on the other side is no reason to fail a build.
    let _ = writeln!(out, "{text}");
}

/// Runs a step, says its name before and its time after.
pub(crate) fn step<T>(name: &str, body: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    say(&format!("── {name}"));
    #[expect(clippy::disallowed_methods, reason = "xtask times its steps")]
    let begin = Instant::now();
    let result = body().with_context(|| format!("step {name:?}"));
    say(&format!("   {name}: {:.1} s", begin.elapsed().as_secs_f64()));
    result
}
