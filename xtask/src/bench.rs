//! `cargo xtask bench`: figures beside a peer in the same run. Hand-run; never part of CI.

use crate::sh;

/// Runs the benchmark program in release mode.
pub(crate) fn bench(filter: Option<&str>) -> anyhow::Result<()> {
    crate::build::sandbox_binaries()?;
    let mut cargo = sh::cargo();
    cargo.args([
        "run",
        "--locked",
        "--release",
        "--package",
        "cofferdam-testkit",
        "--bin",
        "bench",
        "--",
    ]);
    cargo.args(filter);
    sh::run(&mut cargo)
}
