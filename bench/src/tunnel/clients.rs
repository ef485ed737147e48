//! The benchmark's end of the clients: starts them, on the host or as the agent of a run, and tells
//! them what to measure.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::processes::Own;
use crate::outside;
use crate::repository::Bench;
use crate::world::World;

/// For a client to come up, a whole sandbox with it, and for one sample.
const PATIENCE: Duration = Duration::from_secs(120);
/// Layers that need cgroups, which an ordinary person may not have.
const NOT_ROOT: &str = "memory_limit,pids_limit,cpu_limit";

/// A client that waits for the next measurement.
pub(super) struct Client {
    control: BufReader<TcpStream>,
    /// The process that was started for it: the client, or what leads to it.
    pub(super) pid: u32,
}

/// A client that is the agent of a run.
pub(super) struct Sandboxed {
    pub(super) client: Client,
    /// The process of `cofferdam run`.
    pub(super) host: u32,
}

async fn accept(listener: &TcpListener, pid: u32) -> anyhow::Result<Client> {
    let (stream, _) = timeout(PATIENCE, listener.accept()).await.context("no client came")??;
    stream.set_nodelay(true)?;
    Ok(Client { control: BufReader::new(stream), pid })
}

impl Client {
    pub(super) async fn start(
        own: &mut Own,
        proxy: Option<SocketAddr>,
        target: SocketAddr,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let mut args = vec!["client".to_owned(), "--target".to_owned(), target.to_string()];
        args.extend(["--control".to_owned(), listener.local_addr()?.to_string()]);
        args.extend(proxy.into_iter().flat_map(|at| ["--proxy".to_owned(), at.to_string()]));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let pid = own.part(&args)?;
        accept(&listener, pid).await
    }

    async fn ask(&mut self, what: &str) -> anyhow::Result<Vec<f64>> {
        let mut line = String::new();
        self.control.write_all(format!("{what}\n").as_bytes()).await?;
        timeout(PATIENCE, self.control.read_line(&mut line)).await.context("no figure came")??;
        if let Some(error) = line.strip_prefix("error ") {
            bail!("{what}: {}", error.trim());
        }
        ensure!(!line.is_empty(), "{what}: the client has gone");
        line.split_whitespace().map(|word| Ok(word.parse()?)).collect()
    }

    async fn figure(&mut self, what: &str) -> anyhow::Result<f64> {
        self.ask(what).await?.first().copied().context("no figure")
    }

    pub(super) async fn throughput(&mut self, connections: u64, mib: u64) -> anyhow::Result<f64> {
        self.figure(&format!("throughput {connections} {mib}")).await
    }

    pub(super) async fn connections(&mut self, total: u64, at_once: u64) -> anyhow::Result<f64> {
        self.figure(&format!("connections {total} {at_once}")).await
    }

    pub(super) async fn latency(
        &mut self,
        connections: u64,
        seconds: u64,
        hz: u64,
    ) -> anyhow::Result<(f64, f64)> {
        match self.ask(&format!("latency {connections} {seconds} {hz}")).await?[..] {
            [half, most] => Ok((half, most)),
            _ => bail!("no figures"),
        }
    }

    pub(super) async fn quit(&mut self) {
        // One that has gone needs no telling.
        let _ = self.control.write_all(b"quit\n").await;
        let _ = timeout(PATIENCE, self.control.read_line(&mut String::new())).await;
    }
}

impl Sandboxed {
    /// Starts a run whose agent is this program, out of the repository.
    pub(super) async fn start(
        own: &mut Own,
        world: &World,
        dir: &Path,
        sink: SocketAddr,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let control = listener.local_addr()?;
        let bench = Bench::new(dir)?;
        let repository = bench.repository("repository", 5, 1)?;
        let program = std::env::current_exe()?;
        std::fs::copy(program, repository.join("client"))?;
        let config = format!(
            "[run]\negress_bytes_out = \"8192GiB\"\n[services]\n\"sink.internal\" = \"{sink}\"\n\
             \"control.internal\" = \"{control}\"\n"
        );
        std::fs::write(bench.path("config.toml"), config)?;
        let mut command = outside::command(world.cofferdam());
        command.current_dir(&repository).env_clear();
        command.env("PATH", outside::search_path()).env("HOME", bench.path("home"));
        command.env("COFFERDAM_CONFIG", bench.path("config.toml"));
        command.env("COFFERDAM_DATA_DIR", bench.path("data"));
        command.env("COFFERDAM_BIN_DIR", world.bin_dir());
        command.args(["run", "--engine", "native"]);
        command.args(["--allow", "sink.internal:80", "--allow", "control.internal:80"]);
        if !outside::is_root() {
            command.args(["--accept-degraded", NOT_ROOT]);
        }
        command.args(["--", "./client", "part", "client", "--sandboxed"]);
        command.args(["--target", "sink.internal:80", "--control", "control.internal:80"]);
        let log = std::fs::File::create(bench.path("log"))?;
        command.stdout(log.try_clone()?).stderr(log);
        let host = own.start(&mut command)?;
        let client = accept(&listener, host).await.with_context(|| {
            let said = std::fs::read_to_string(bench.path("log")).unwrap_or_default();
            format!("the run said: {said}")
        })?;
        Ok(Self { client, host })
    }
}
