//! The whole product: `cofferdam run -- true` on a small repository, from the shell and back to it.
//!
//! The peer is an orientation and no rival: a clone and the same command without any protection.

use crate::outside;
use crate::report::{Table, Unit};
use crate::repository::Bench;
use crate::world::World;

const ROUNDS: usize = 15;
/// Layers that need cgroups, which an ordinary person may not have.
const NOT_ROOT: &str = "memory_limit,pids_limit,cpu_limit";

pub(crate) async fn measure(world: &World) -> anyhow::Result<Table> {
    let dir = world.directory()?;
    let bench = Bench::new(dir.path())?;
    let repository = bench.repository("repository", 20, 5)?;
    let data = bench.path("data");
    let config = bench.path("config.toml");
    std::fs::write(&config, "")?;
    let cofferdam = |args: &[&str]| {
        let mut command = outside::command(world.cofferdam());
        command.current_dir(&repository).env_clear().args(args);
        command.env("PATH", outside::search_path()).env("HOME", bench.path("home"));
        command.env("COFFERDAM_CONFIG", &config).env("COFFERDAM_DATA_DIR", &data);
        command.env("COFFERDAM_BIN_DIR", world.bin_dir());
        command
    };
    let run = || {
        let mut command = cofferdam(&["run", "--engine", "native"]);
        if !outside::is_root() {
            command.args(["--accept-degraded", NOT_ROOT]);
        }
        command.args(["--", "true"]);
        command
    };
    let peer = || -> anyhow::Result<f64> {
        let clone = bench.clone_ms(&repository, &[])?;
        let mut shell = outside::command("sh");
        Ok(clone + outside::timed(shell.args(["-c", "true"]).current_dir(bench.path("clone")))?)
    };

    let mut table =
        Table::new("run-native", "cofferdam run --engine native -- true, 20 files, 5 commits");
    let bare = table.row("git clone + sh -c true", Unit::Ms);
    let whole = table.beside(bare, "cofferdam run", Unit::Ms);
    let bare_cpu = table.row("git clone + sh -c true, processor time", Unit::Ms);
    let cpu = table.beside(bare_cpu, "cofferdam run, processor time", Unit::Ms);
    let start = table.row("cofferdam --version", Unit::Ms);
    let kept = table.row("kept on disk per run", Unit::KiB);

    // Once each: the first run makes the data directory, which a person does once. Its output is
    // shown when it fails.
    outside::output(&mut run())?;
    peer()?;
    let before = outside::bytes_below(&data);
    let (mut peer_cpu, mut run_cpu) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let begin = outside::children_cpu_ms()?;
        table.add(bare, peer()?);
        let between = outside::children_cpu_ms()?;
        table.add(whole, outside::timed(&mut run())?);
        let end = outside::children_cpu_ms()?;
        peer_cpu += between - begin;
        run_cpu += end - between;
        table.add(start, outside::timed(&mut cofferdam(&["--version"]))?);
        tokio::task::yield_now().await;
    }
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let (rounds, grown) =
        (ROUNDS as f64, outside::bytes_below(&data).saturating_sub(before) as f64);
    table.add(bare_cpu, peer_cpu / rounds);
    table.add(cpu, run_cpu / rounds);
    table.add(kept, grown / 1024.0 / rounds);
    Ok(table)
}
