//! Long suites by name. CONTRIBUTING.md has the table; a representative part of each is in CI.

use anyhow::bail;

use crate::fuzz::{self, Options};
use crate::{build, sh};

struct Lane {
    name: &'static str,
    about: &'static str,
    body: fn(Options) -> anyhow::Result<()>,
}

const LANES: [Lane; 4] = [
    Lane {
        name: "deny",
        about: "cargo-deny over licences, bans and sources (installs cargo-deny)",
        body: |_| deny(),
    },
    Lane {
        name: "fuzz",
        about: "libFuzzer over every target, --seconds each; --keep writes the corpora back",
        body: fuzz::fuzz,
    },
    Lane {
        name: "repeat",
        about: "the end-to-end suite on both engines, 20 times over",
        body: |_| repeat(),
    },
    Lane {
        name: "soak",
        about: "1,000 runs whose hosts are killed at random moments, then a count of what is left",
        body: |_| crate::soak::soak(&crate::soak::Options::long()),
    },
];

/// Runs a lane, or lists them.
pub(crate) fn lane(name: Option<&str>, options: Options) -> anyhow::Result<()> {
    let Some(name) = name else {
        for lane in &LANES {
            sh::say(&format!("{:10} {}", lane.name, lane.about));
        }
        return Ok(());
    };
    match LANES.iter().find(|l| l.name == name) {
        Some(lane) => sh::step(lane.name, || (lane.body)(options)),
        None => bail!("no lane {name:?}; `cargo xtask lane` lists them"),
    }
}

fn deny() -> anyhow::Result<()> {
    if sh::output(sh::cargo().args(["deny", "--version"])).is_err() {
        sh::run(sh::cargo().args(["install", "--locked", "cargo-deny"]))?;
    }
    sh::run(sh::cargo().args(["deny", "--offline", "check", "bans", "licenses", "sources"]))
}

fn repeat() -> anyhow::Result<()> {
    build::sandbox_binaries()?;
    let dir = sh::engine_dir();
    let host = crate::engine::up(&dir)?;
    let result = sh::run(
        sh::cargo()
            .args(["nextest", "run", "--locked", "--package", "cofferdam", "--stress-count", "20"])
            .env("COFFERDAM_TEST_DOCKER_HOST", &host),
    );
    crate::engine::down(&dir);
    result
}
