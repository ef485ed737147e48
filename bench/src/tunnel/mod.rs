//! `CONNECT` through the whole product (a run of the native engine: guest, link, broker) beside what
//! Debian and PyPI carry as proxies, a direct connection, and two bare relays that pass the same kinds
//! of kernel channels and do nothing else: a bound for anything of this shape.
//!
//! One client program measures in all places; inside the sandbox it is the agent. The samples of a
//! round are taken one after the other. It opens sockets on loopback only and stops what it started.

mod client;
mod clients;
mod parts;
mod peers;
mod processes;

use std::path::Path;

pub(crate) use parts::{Part, run as run_part};

use self::clients::{Client, Sandboxed};
use self::peers::Peers;
use self::processes::Own;
use crate::report::{RowId, Table, Unit};
use crate::world::World;

/// Mebibytes per sample, over all connections together.
const MIB: u64 = 512;
const ROUNDS: usize = 5;
/// Seconds of one latency sample, and requests per second of each of its 32 connections: a pace at
/// which no proxy here is busy, so that what is measured is the way and not a queue.
const LATENCY_S: u64 = 4;
const LATENCY_HZ: u64 = 20;
const LATENCY_ROUNDS: usize = 3;
/// Connections, one after the other or 32 at once, each with one byte there and back.
const CONNECTIONS: u64 = 10_000;
/// Connections before memory is looked at for the first time.
const WARM_UP: u64 = 1_000;

/// One way to the sink.
struct Way {
    name: String,
    client: Client,
    /// Processes that work for it, besides sink and client.
    between: Vec<u32>,
}

pub(crate) async fn measure(world: &World) -> anyhow::Result<Table> {
    let dir = world.directory()?;
    let mut own = Own::default();
    let result = rounds(world, dir.path(), &mut own).await;
    own.stop();
    result
}

async fn rounds(world: &World, dir: &Path, own: &mut Own) -> anyhow::Result<Table> {
    let mut table = Table::new(
        "tunnel",
        format!("CONNECT to a loopback server, native engine, {MIB} MiB a sample"),
    );
    let (sink_pid, sink) = own.listening(&["sink"])?;
    let mut ways = vec![Way {
        name: "direct loopback".to_owned(),
        client: Client::start(own, None, sink).await?,
        between: Vec::new(),
    }];
    let sandboxed = Sandboxed::start(own, world, dir, sink).await?;
    let host = sandboxed.host;
    ways.push(Way { name: "cofferdam".to_owned(), client: sandboxed.client, between: vec![host] });
    for (name, kind) in [("bare relay, copying", "copy"), ("bare relay, splicing", "splice")] {
        let (pid, at) = own.listening(&["relay", &sink.to_string(), kind])?;
        let client = Client::start(own, None, at).await?;
        ways.push(Way { name: name.to_owned(), client, between: vec![pid] });
    }
    let peers = Peers::start(own, dir)?;
    for peer in peers.there {
        let client = Client::start(own, Some(peer.at), sink).await?;
        ways.push(Way { name: peer.name.to_owned(), client, between: vec![peer.pid] });
    }

    throughput(&mut table, &mut ways, sink_pid).await?;
    latency(&mut table, &mut ways).await?;
    memory(&mut table, &mut ways, host).await?;
    for (name, why) in peers.missing {
        table.absent(name, why);
    }
    for way in &mut ways {
        way.client.quit().await;
    }
    Ok(table)
}

fn rows(table: &mut Table, ways: &[Way], what: &str, unit: Unit) -> Vec<RowId> {
    let mut rows: Vec<RowId> = Vec::new();
    for way in ways {
        let what = format!("{what}: {}", way.name);
        rows.push(match rows.first() {
            None => table.row(what, unit),
            Some(direct) => table.beside(*direct, what, unit),
        });
    }
    rows
}

async fn throughput(table: &mut Table, ways: &mut [Way], sink: u32) -> anyhow::Result<()> {
    for (connections, what) in [(1, "1 connection"), (32, "32 connections")] {
        let speed = rows(table, ways, what, Unit::MibPerS);
        let cost = rows(table, ways, &format!("{what}, processor time per GiB"), Unit::Ms);
        for _ in 0..ROUNDS {
            for ((way, speed), cost) in ways.iter_mut().zip(&speed).zip(&cost) {
                let all: Vec<u32> =
                    way.between.iter().copied().chain([sink, way.client.pid]).collect();
                let before = processes::cpu_ms(&all);
                table.add(*speed, way.client.throughput(connections, MIB).await?);
                #[expect(clippy::cast_precision_loss, reason = "figures for people")]
                let gib = MIB as f64 / 1024.0;
                table.add(*cost, (processes::cpu_ms(&all) - before) / gib);
            }
        }
    }
    Ok(())
}

async fn latency(table: &mut Table, ways: &mut [Way]) -> anyhow::Result<()> {
    let what = format!("answer, 32 connections at {LATENCY_HZ}/s each");
    let half = rows(table, ways, &format!("{what}, p50"), Unit::Us);
    let most = rows(table, ways, &format!("{what}, p99"), Unit::Us);
    for _ in 0..LATENCY_ROUNDS {
        for ((way, half), most) in ways.iter_mut().zip(&half).zip(&most) {
            let (p50, p99) = way.client.latency(32, LATENCY_S, LATENCY_HZ).await?;
            table.add(*half, p50);
            table.add(*most, p99);
        }
    }
    Ok(())
}

async fn memory(table: &mut Table, ways: &mut [Way], host: u32) -> anyhow::Result<()> {
    let rate = rows(table, ways, "new connections, 32 at once", Unit::PerS);
    for (way, rate) in ways.iter_mut().zip(&rate) {
        if way.between != [host] {
            table.add(*rate, way.client.connections(WARM_UP, 32).await?);
        }
    }
    let begin = table.row("host's memory after 1,000 connections", Unit::KiB);
    let end = table.beside(begin, "after 10,000 more, one at a time", Unit::KiB);
    let last = table.beside(begin, "after 10,000 more, 32 at once", Unit::KiB);
    for (way, rate) in ways.iter_mut().zip(&rate).filter(|(way, _)| way.between == [host]) {
        way.client.connections(WARM_UP, 32).await?;
        table.add(begin, processes::resident_kib(host)?);
        way.client.connections(CONNECTIONS, 1).await?;
        table.add(end, processes::resident_kib(host)?);
        table.add(*rate, way.client.connections(CONNECTIONS, 32).await?);
        table.add(last, processes::resident_kib(host)?);
    }
    Ok(())
}
