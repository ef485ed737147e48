//! Bytes through the egress door over the link, and the time to the first one, beside a direct
//! loopback connection. The link runs over a pair of pipes, as it does with the native engine.
//!
//! It opens sockets on loopback only.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use cofferdam_broker::egress::{EgressConfig, EgressDoor, Limits, SystemResolver, TcpDialler};
use cofferdam_broker::log::MemoryLog;
use cofferdam_broker::{RunToken, Secret, Tokens};
use cofferdam_link::{Incoming, Link, LinkStream, join};
use cofferdam_policy::{EgressPolicy, Services};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::net::unix::pipe::pipe;
use tokio::task::JoinSet;

use crate::outside::{self, Watch};
use crate::report::{RowId, Table, Unit};

/// Mebibytes per sample, over all connections together.
const MIB: u64 = 256;
const ROUNDS: usize = 7;
const FIRST_BYTES: usize = 300;
const REQUEST: &[u8] = b"CONNECT sink.internal:80 HTTP/1.1\r\nHost: sink.internal:80\r\n\
    Proxy-Authorization: Basic cnVuOnRva2Vu\r\n\r\n";
/// Headers of the link's streams: through the door, or straight to the sink.
const THROUGH_DOOR: &[u8] = b"door";
const TO_SINK: &[u8] = b"sink";

/// Where a sample's bytes go.
#[derive(Clone)]
enum Way {
    Direct(SocketAddr),
    LinkAlone(Link),
    Door(Link),
}

pub(crate) async fn measure() -> anyhow::Result<Table> {
    let sink = sink().await?;
    let (guest, _host) = link(door(sink)?).await?;
    let mut table = Table::new(
        "broker-connect",
        format!("{MIB} MiB to a loopback server; CONNECT by the door, over pipes"),
    );
    let ways = [Way::Direct(sink), Way::LinkAlone(guest.clone()), Way::Door(guest.clone())];
    for (connections, what) in [(1, "1 connection"), (32, "32 connections")] {
        let rows = rows(&mut table, what, Unit::MibPerS);
        for _ in 0..ROUNDS {
            for (way, row) in ways.iter().zip(rows) {
                table.add(row, throughput(way, connections).await?);
            }
        }
    }
    let rows = rows(&mut table, "first byte", Unit::Us);
    for _ in 0..FIRST_BYTES {
        for (way, row) in ways.iter().zip(rows) {
            table.add(row, first_byte(way).await?);
        }
    }
    Ok(table)
}

fn rows(table: &mut Table, what: &str, unit: Unit) -> [RowId; 3] {
    let direct = table.row(format!("direct loopback, {what}"), unit);
    let link = table.beside(direct, format!("link alone, {what}"), unit);
    [direct, link, table.beside(direct, format!("link and door, {what}"), unit)]
}

/// Mebibytes per second over that many connections at once.
async fn throughput(way: &Way, connections: u64) -> anyhow::Result<f64> {
    let mut ready = Vec::new();
    for _ in 0..connections {
        ready.push(way.open().await?);
    }
    let share = (MIB << 20) / connections;
    let watch = Watch::start();
    let mut work = JoinSet::new();
    for stream in ready {
        work.spawn(send(stream, share));
    }
    while let Some(done) = work.join_next().await {
        done??;
    }
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let rate = MIB as f64 / watch.seconds();
    Ok(rate)
}

async fn send(mut stream: Box<dyn Stream>, bytes: u64) -> anyhow::Result<()> {
    let piece = vec![7; 64 << 10];
    let mut left = bytes;
    while left > 0 {
        let next = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(piece.get(..next).unwrap_or_default()).await?;
        left -= next as u64;
    }
    stream.shutdown().await?;
    let arrived = stream.read_u64().await?;
    anyhow::ensure!(arrived == bytes, "{arrived} of {bytes} bytes arrived");
    Ok(())
}

/// Microseconds from nothing, over the connection and one byte sent, to the first byte back.
async fn first_byte(way: &Way) -> anyhow::Result<f64> {
    let watch = Watch::start();
    let mut stream = way.open().await?;
    stream.write_all(b"x").await?;
    stream.shutdown().await?;
    let _count = stream.read_u8().await?;
    let us = watch.us();
    // The rest, so that the connection ends as it should.
    let _ = stream.read_to_end(&mut Vec::new()).await;
    Ok(us)
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Way {
    async fn open(&self) -> anyhow::Result<Box<dyn Stream>> {
        match self {
            Self::Direct(sink) => Ok(Box::new(outside::connect(*sink).await?)),
            Self::LinkAlone(link) => Ok(Box::new(link.open(TO_SINK).await?)),
            Self::Door(link) => {
                let mut stream = link.open(THROUGH_DOOR).await?;
                stream.write_all(REQUEST).await?;
                stream.flush().await?;
                let mut answer = Vec::new();
                while !answer.ends_with(b"\r\n\r\n") {
                    answer.push(stream.read_u8().await?);
                }
                anyhow::ensure!(
                    answer.starts_with(b"HTTP/1.1 200 "),
                    "the door answers {:?}",
                    String::from_utf8_lossy(&answer)
                );
                Ok(Box::new(stream))
            }
        }
    }
}

/// Counts what arrives and answers with the count when the sender has finished.
async fn count(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut buf = vec![0; 256 << 10];
    let mut total = 0_u64;
    while let Ok(read @ 1..) = stream.read(&mut buf).await {
        total += read as u64;
    }
    // A sender that has gone fails on its own side.
    let _ = stream.write_u64(total).await;
    let _ = stream.shutdown().await;
}

async fn sink() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let at = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(count(stream));
        }
    });
    Ok(at)
}

fn door(sink: SocketAddr) -> anyhow::Result<Arc<EgressDoor>> {
    let services = BTreeMap::from([("sink.internal".to_owned(), sink.to_string())]);
    Ok(EgressDoor::new(EgressConfig {
        policy: EgressPolicy::load(&["sink.internal:80".to_owned()], &[])?,
        services: Services::load(services)?,
        gatewayed: Vec::new(),
        tokens: Tokens::one(RunToken::new(Secret::new("token".to_owned()))),
        bytes_out: u64::MAX,
        log: Arc::new(MemoryLog::default()),
        resolver: Arc::new(SystemResolver),
        dialler: Arc::new(TcpDialler),
        limits: Limits::default(),
    }))
}

/// The guest's end of a link whose host serves the door and the sink. Both ends are kept alive by
/// what is returned.
async fn link(door: Arc<EgressDoor>) -> anyhow::Result<(Link, (Link, Incoming))> {
    let ((to_guest, from_host), (to_host, from_guest)) = (pipe()?, pipe()?);
    let (host, guest) =
        tokio::join!(Link::host(join(from_guest, to_guest)), Link::guest(join(from_host, to_host)));
    let (host, mut streams) = host.context("the host's end of the link")?;
    let (guest, incoming) = guest.context("the guest's end of the link")?;
    tokio::spawn(async move {
        while let Some((header, stream)) = streams.next().await {
            tokio::spawn(serve(Arc::clone(&door), header, stream));
        }
    });
    Ok((guest, (host, incoming)))
}

async fn serve(door: Arc<EgressDoor>, header: Vec<u8>, stream: LinkStream) {
    if header == TO_SINK {
        count(stream).await;
    } else {
        door.serve(stream).await;
    }
}
