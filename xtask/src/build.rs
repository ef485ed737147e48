//! Builds the static binaries (guest and launcher) and the command.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::sh;

/// Programs that must not depend on any library of the machine: the guest, because the sandbox may
/// hold none, and the launcher, so that starting it costs no dynamic linking.
const STATIC: [(&str, &str); 2] =
    [("cofferdam-guest", "cofferdam-guest"), ("cofferdam-sandbox", "cofferdam-launch")];

/// The same for a program that tests start inside; it is not shipped.
const ATTACKER: (&str, &str) = ("cofferdam-security", "cofferdam-attacker");

fn host_triple() -> anyhow::Result<String> {
    let text = sh::output(sh::cmd("rustc").arg("-vV"))?;
    text.lines()
        .find_map(|l| l.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc -vV names no host")
}

/// Builds guest and launcher and copies them to `target/sandbox-bin`.
pub(crate) fn sandbox_binaries() -> anyhow::Result<PathBuf> {
    let triple = host_triple()?;
    let mut cargo = sh::cargo();
    // --target keeps +crt-static away from build scripts and procedural macros, which cannot have it.
    cargo.args(["build", "--locked", "--profile", "guest", "--target", &triple]);
    for (package, bin) in STATIC.into_iter().chain([ATTACKER]) {
        cargo.args(["--package", package, "--bin", bin]);
    }
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    // A target folder of its own: other flags would otherwise rebuild every dependency each time.
    let target = sh::target().join("static");
    cargo.env("CARGO_TARGET_DIR", &target);
    sh::run(&mut cargo)?;
    let out = sh::sandbox_bin();
    fs::create_dir_all(&out)?;
    for (_, bin) in STATIC.into_iter().chain([ATTACKER]) {
        replace(&target.join(&triple).join("guest").join(bin), &out.join(bin))?;
    }
    Ok(out)
}

/// Copies beside and renames over, so that a running copy is never written to, and leaves an equal
/// file alone, so that its fingerprint and time stay.
fn replace(from: &std::path::Path, to: &std::path::Path) -> anyhow::Result<()> {
    let fresh = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == fresh) {
        return Ok(());
    }
    let temporary = to.with_extension("new");
    fs::copy(from, &temporary)?;
    fs::rename(&temporary, to)?;
    Ok(())
}

/// Builds everything that a person runs; gives the path of the command.
pub(crate) fn build(dist: bool) -> anyhow::Result<PathBuf> {
    let bin = sh::step("build sandbox binaries", sandbox_binaries)?;
    let (profile, folder) = if dist { ("dist", "dist") } else { ("dev", "debug") };
    sh::step("build cofferdam", || {
        sh::run(sh::cargo().args([
            "build",
            "--locked",
            "--profile",
            profile,
            "--package",
            "cofferdam",
            "--package",
            "cofferdam-testkit",
        ]))
    })?;
    let command = sh::target().join(folder).join("cofferdam");
    if !dist {
        return Ok(command);
    }
    let out = sh::target().join("cofferdam");
    fs::create_dir_all(&out)?;
    replace(&command, &out.join("cofferdam"))?;
    for (_, name) in STATIC {
        replace(&bin.join(name), &out.join(name))?;
    }
    sh::say(&format!("ready: {}", out.display()));
    Ok(out.join("cofferdam"))
}
