//! Everything that CI runs, in the order in which it fails fastest.

use crate::{build, conformance, engine, sh, soak, tidy};

/// Stops the engine when the tests are over, however they ended.
struct EngineGuard(std::path::PathBuf);

impl Drop for EngineGuard {
    fn drop(&mut self) {
        engine::down(&self.0);
    }
}

/// Runs it all.
pub(crate) fn test() -> anyhow::Result<()> {
    sh::step("format", || sh::run(sh::cargo().args(["fmt", "--all", "--check"])))?;
    sh::step("tidy", tidy::tidy)?;
    sh::step("sandbox binaries", build::sandbox_binaries)?;
    sh::step("clippy", || {
        sh::run(sh::cargo().args([
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    sh::step("build tests", || {
        sh::run(sh::cargo().args(["nextest", "run", "--locked", "--workspace", "--no-run"]))
    })?;
    let dir = sh::engine_dir();
    let host = sh::step("docker engine", || engine::up(&dir))?;
    let guard = EngineGuard(dir);
    let result = sh::step("tests (needs: docker, git, native sandbox)", || {
        sh::run(
            sh::cargo()
                .args(["nextest", "run", "--locked", "--workspace", "--no-fail-fast"])
                .env("COFFERDAM_TEST_DOCKER_HOST", &host),
        )
    });
    drop(guard);
    result?;
    sh::step("soak (hosts killed at random moments)", || soak::soak(&soak::Options::ci()))?;
    // On the native engine it has just run among the others.
    conformance::run(&["docker", "podman", "gvisor"])
}
