//! `cargo xtask bench`: figures beside a peer in the same run. Hand-run; never part of CI.

use std::path::Path;

use crate::{build, sh};

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
    program.arg("--bin-dir").arg(bin_dir).arg("--command").arg(release.join("cofferdam"));
    if let Some(file) = json {
        program.arg("--json").arg(std::path::absolute(file)?);
    }
    sh::run(program.args(filter))
}
