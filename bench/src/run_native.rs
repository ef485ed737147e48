//! The whole product: `cofferdam run -- true` from the shell and back to it.
//!
//! The peer is an orientation and no rival: a clone and the same command without any protection.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outside;
use crate::report::{Table, Unit};
use crate::repository::Bench;
use crate::world::World;

/// Name, files, commits, rounds.
const SIZES: [(&str, usize, usize, usize); 2] =
    [("20 files", 20, 5, 15), ("10,000 files", 10_000, 1, 2)];
/// Layers that need cgroups, which an ordinary person may not have.
const NOT_ROOT: &str = "memory_limit,pids_limit,cpu_limit";

pub(crate) async fn measure(world: &World) -> anyhow::Result<Table> {
    let mut table = Table::new("run-native", "cofferdam run --engine native -- true");
    for (name, files, commits, rounds) in SIZES {
        let dir = world.directory()?;
        let bench = Bench::new(dir.path())?;
        let repository = bench.repository("repository", files, commits)?;
        let person = Person { world, bench: &bench, repository: &repository };
        std::fs::write(person.config(), "")?;

        let bare = table.row(format!("{name}: git clone + sh -c true"), Unit::Ms);
        let whole = table.beside(bare, format!("{name}: cofferdam run"), Unit::Ms);
        let bare_cpu = table.row(format!("{name}: clone, processor time"), Unit::Ms);
        let cpu = table.beside(bare_cpu, format!("{name}: run, processor time"), Unit::Ms);
        let kept = table.row(format!("{name}: kept on disk per run"), Unit::KiB);

        // Once each: the first run makes the data directory, which a person does once. What it says
        // is shown when it fails.
        outside::output(&mut person.run())?;
        person.peer()?;
        let before = outside::bytes_below(&person.data());
        let (mut peer_cpu, mut run_cpu) = (0.0, 0.0);
        for _ in 0..rounds {
            let begin = outside::children_cpu_ms()?;
            table.add(bare, person.peer()?);
            let between = outside::children_cpu_ms()?;
            table.add(whole, outside::timed(&mut person.run())?);
            run_cpu += outside::children_cpu_ms()? - between;
            peer_cpu += between - begin;
            tokio::task::yield_now().await;
        }
        let grown = outside::bytes_below(&person.data()).saturating_sub(before);
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let (rounds, grown) = (rounds as f64, grown as f64);
        table.add(bare_cpu, peer_cpu / rounds);
        table.add(cpu, run_cpu / rounds);
        table.add(kept, grown / 1024.0 / rounds);
    }
    Ok(table)
}

/// Somebody with a checkout, a data directory and nothing configured.
struct Person<'a> {
    world: &'a World,
    bench: &'a Bench<'a>,
    repository: &'a Path,
}

impl Person<'_> {
    fn config(&self) -> PathBuf {
        self.bench.path("config.toml")
    }

    fn data(&self) -> PathBuf {
        self.bench.path("data")
    }

    fn run(&self) -> Command {
        let mut command = outside::command(self.world.cofferdam());
        command.current_dir(self.repository).env_clear();
        command.env("PATH", outside::search_path()).env("HOME", self.bench.path("home"));
        command.env("COFFERDAM_CONFIG", self.config()).env("COFFERDAM_DATA_DIR", self.data());
        command.env("COFFERDAM_BIN_DIR", self.world.bin_dir());
        command.args(["run", "--engine", "native"]);
        if !outside::is_root() {
            command.args(["--accept-degraded", NOT_ROOT]);
        }
        command.args(["--", "true"]);
        command
    }

    fn peer(&self) -> anyhow::Result<f64> {
        let clone = self.bench.clone_ms(self.repository, &[])?;
        let mut shell = outside::command("sh");
        let inside = self.bench.path("clone");
        Ok(clone + outside::timed(shell.args(["-c", "true"]).current_dir(inside))?)
    }
}
