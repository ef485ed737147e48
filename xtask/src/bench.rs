//! `cargo xtask bench`: figures beside a peer in the same run. Hand-run; never part of CI.

use std::path::{Path, PathBuf};

use crate::{build, sh};

/// Peers that Debian carries: program, package.
const DEBIAN: [(&str, &str); 4] = [
    ("/usr/bin/tinyproxy", "tinyproxy-bin"),
    ("/usr/sbin/squid", "squid"),
    ("/usr/bin/bwrap", "bubblewrap"),
    ("/usr/sbin/runc", "runc"),
];

/// The peer that PyPI carries.
const PYPI: (&str, &str) = ("mitmdump", "mitmproxy");

/// Builds everything optimised and runs the benchmark program.
pub(crate) fn bench(filter: Option<&str>, json: Option<&Path>) -> anyhow::Result<()> {
    let bin_dir = build::sandbox_binaries()?;
    sh::run(sh::cargo().args([
        "build",
        "--locked",
        "--release",
        "--package",
        "cofferdam",
        "--bin",
        "cofferdam",
        "--package",
        "cofferdam-bench",
        "--bin",
        "cofferdam-bench",
    ]))?;
    let release = sh::target().join("release");
    let mut program = sh::cmd(release.join("cofferdam-bench"));
    program.env("PATH", with_peers()?);
    program.arg("--bin-dir").arg(bin_dir).arg("--command").arg(release.join("cofferdam"));
    if let Some(file) = json {
        program.arg("--json").arg(std::path::absolute(file)?);
    }
    sh::run(program.args(filter))
}

/// Installs what is missing of the peers, and gives a search path that has them. What cannot be installed
/// is left out of the figures, and named there.
fn with_peers() -> anyhow::Result<std::ffi::OsString> {
    let missing: Vec<&str> = DEBIAN
        .iter()
        .filter(|(p, _)| !Path::new(p).exists())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        let mut apt = sh::cmd("apt-get");
        apt.args(["-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"]);
        if let Err(error) = sh::run(apt.args(missing).env("DEBIAN_FRONTEND", "noninteractive")) {
            sh::say(&format!("   peers from Debian: {error:#}"));
        }
    }
    let place = sh::target().join("bench-peers");
    if !place.join("bin").join(PYPI.0).exists()
        && let Err(error) = python(&place)
    {
        sh::say(&format!("   peers from PyPI: {error:#}"));
    }
    let mut path: Vec<PathBuf> = std::env::split_paths(&sh::path()).collect();
    path.push(place.join("bin"));
    Ok(std::env::join_paths(path)?)
}

fn python(place: &Path) -> anyhow::Result<()> {
    sh::run(sh::cmd("python3").args(["-m", "venv"]).arg(place))?;
    sh::run(sh::cmd(place.join("bin/pip")).args(["install", "--quiet", PYPI.1]))
}
