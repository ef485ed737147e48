//! Start to exit of a trivial program in a native sandbox, beside what other tools need for theirs.
//!
//! The peers make less: `unshare` only the namespaces, `bwrap` and `runc` a root as well. None of
//! them hashes its inputs, reads back what it got, or proves the removal.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use cofferdam_sandbox::native::{NativeConfig, NativeEngine};
use serde_json::{Value, json};

use crate::outside;
use crate::report::{Table, Unit};
use crate::world::{SandboxMaker, World, instance, interruptible};

const ROUNDS: usize = 60;
const PROGRAM: &str = "/usr/bin/true";

pub(crate) async fn measure(world: &World) -> anyhow::Result<Table> {
    let dir = world.directory()?;
    let runs = dir.path().join("runs");
    std::fs::create_dir(&runs)?;
    let config = NativeConfig { launcher: Some(world.launcher()), runs_root: runs.clone() };
    let engine = NativeEngine::new(config).with_command(&[PROGRAM]);
    let instance = instance()?;
    let maker =
        SandboxMaker { engine: &engine, instance: &instance, guest: world.guest(), runs: &runs };
    let result = interruptible(rounds(&maker, dir.path())).await;
    maker.sweep().await?;
    result
}

async fn rounds(maker: &SandboxMaker<'_>, dir: &Path) -> anyhow::Result<Table> {
    let mut table = Table::new("start-native", format!("sandbox around {PROGRAM}"));
    let mut unshare = unshare()?;
    let mut bwrap = outside::find("bwrap").map(|program| bwrap(&program));
    let runc = outside::find("runc").map(|program| Runc::new(program, dir)).transpose()?;

    // Once each, so that files are in memory.
    maker.life().await?;
    outside::timed(&mut unshare)?;
    bwrap.as_mut().map(outside::timed).transpose()?;
    runc.as_ref().map(Runc::life).transpose()?;

    let bare = table.row("unshare -Urmpfn", Unit::Ms);
    let row_bwrap = bwrap.as_ref().map(|_| table.beside(bare, "bwrap", Unit::Ms));
    let row_runc = runc.as_ref().map(|_| table.beside(bare, "runc run", Unit::Ms));
    let to_exit = table.beside(bare, "cofferdam, prepare to exit", Unit::Ms);
    let to_gone = table.beside(bare, "cofferdam, prepare to proven removal", Unit::Ms);
    for _ in 0..ROUNDS {
        table.add(bare, outside::timed(&mut unshare)?);
        if let (Some(command), Some(row)) = (bwrap.as_mut(), row_bwrap) {
            table.add(row, outside::timed(command)?);
        }
        if let (Some(runc), Some(row)) = (&runc, row_runc) {
            table.add(row, runc.life()?);
        }
        let (exit, gone) = maker.life().await?;
        table.add(to_exit, exit);
        table.add(to_gone, gone);
        // Lets Ctrl-C be seen between rounds.
        tokio::task::yield_now().await;
    }
    for (name, there, package) in
        [("bwrap", bwrap.is_some(), "bubblewrap"), ("runc", runc.is_some(), "runc")]
    {
        if !there {
            table.absent(name, format!("not installed (Debian package {package})"));
        }
    }
    Ok(table)
}

fn unshare() -> anyhow::Result<Command> {
    let program = outside::find("unshare").context("unshare (util-linux) is not installed")?;
    let mut command = outside::command(program);
    command.args(["-U", "-r", "-m", "-p", "-f", "-n", PROGRAM]);
    Ok(command)
}

/// The host's userland read-only, private everything else, no capability.
fn bwrap(program: &Path) -> Command {
    let mut command = outside::command(program);
    command.args(["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
    command.args(["--ro-bind", "/usr", "/usr"]);
    for name in ["bin", "sbin", "lib", "lib64"] {
        command.arg("--symlink").arg(format!("usr/{name}")).arg(format!("/{name}"));
    }
    command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", PROGRAM]);
    command
}

/// A bundle for runc with the host's userland as its root, and runc's own default hardening.
struct Runc {
    program: PathBuf,
    bundle: PathBuf,
    state: PathBuf,
}

impl Runc {
    fn new(program: PathBuf, dir: &Path) -> anyhow::Result<Self> {
        let bundle = dir.join("bundle");
        let root = bundle.join("rootfs");
        for name in ["usr", "proc", "dev", "sys"] {
            std::fs::create_dir_all(root.join(name))?;
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
        }
        let mut spec = outside::command(&program);
        spec.arg("spec").args((!outside::is_root()).then_some("--rootless"));
        outside::output(spec.current_dir(&bundle))?;
        let file = bundle.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
        config["process"]["args"] = json!([PROGRAM]);
        config["process"]["terminal"] = json!(false);
        let mounts = config["mounts"].as_array_mut().context("runc's default has no mounts")?;
        mounts.push(json!({
            "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"],
        }));
        std::fs::write(&file, config.to_string())?;
        Ok(Self { program, bundle, state: dir.join("runc-state") })
    }

    /// Start to removal: `runc run` deletes the container at its end.
    fn life(&self) -> anyhow::Result<f64> {
        let mut command = outside::command(&self.program);
        command.arg("--root").arg(&self.state).arg("run").arg("--bundle").arg(&self.bundle);
        outside::timed(command.arg(format!("cofferdam-bench-{}", std::process::id())))
    }
}
