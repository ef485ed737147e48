//! The client of every way, told over a control connection what to measure. Inside a sandbox it is
//! the agent: its proxy is the one that the environment names, and control goes through it as well.
//!
//! It must never connect to anything but loopback.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::parts::{BULK, SMALL};
use crate::outside::{self, Watch};

/// Bytes of a small request and of its answer.
pub(super) const REQUEST: usize = 100;
pub(super) const ANSWER: usize = 1000;

/// Where to.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The sink, as `host:port`.
    #[arg(long)]
    target: String,
    /// Where to ask what to do.
    #[arg(long)]
    control: String,
    /// The proxy; without one the target is an address.
    #[arg(long)]
    proxy: Option<SocketAddr>,
    /// Take the proxy from the environment, for control too.
    #[arg(long)]
    sandboxed: bool,
}

#[derive(Debug, Clone)]
struct Way {
    proxy: Option<(SocketAddr, String)>,
    target: String,
}

impl Way {
    /// From `http://user:password@address:port`.
    fn of_environment(target: String) -> anyhow::Result<Self> {
        let url = outside::proxy_variable().context("no http_proxy")?;
        let rest = url.strip_prefix("http://").context("an odd http_proxy")?;
        let (credential, address) = rest.split_once('@').context("no credential in http_proxy")?;
        let field = format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(credential));
        Ok(Self { proxy: Some((address.trim_end_matches('/').parse()?, field)), target })
    }

    async fn open(&self) -> anyhow::Result<TcpStream> {
        let Some((proxy, credential)) = &self.proxy else {
            return outside::connect(self.target.parse()?).await;
        };
        let mut stream = outside::connect(*proxy).await?;
        let Self { target, .. } = self;
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{credential}\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            ensure!(answer.len() < 4096, "the proxy's answer does not end");
            answer.push(stream.read_u8().await.context("the proxy closed")?);
        }
        let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
        ensure!(line.split(' ').nth(1) == Some("200"), "the proxy answers {line:?}");
        Ok(stream)
    }
}

/// Measures until told to stop.
pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let (way, control) = if options.sandboxed {
        let control = Way::of_environment(options.control)?;
        (Way::of_environment(options.target)?, control)
    } else {
        let proxy = options.proxy.map(|proxy| (proxy, String::new()));
        let control = Way { proxy: None, target: options.control };
        (Way { proxy, target: options.target }, control)
    };
    let mut control = BufReader::new(control.open().await?);
    let mut line = String::new();
    while control.read_line(&mut line).await? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
        let done = match words.first() {
            Some(&"throughput") => throughput(&way, number(1), number(2)).await,
            Some(&"latency") => latency(&way, number(1), number(2), number(3)).await,
            Some(&"connections") => connections(&way, number(1), number(2)).await,
            _ => return Ok(()),
        };
        let said = match done {
            Ok(figures) => figures,
            Err(error) => format!("error {error:#}").replace('\n', " "),
        };
        control.write_all(format!("{said}\n").as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

async fn all<T: 'static>(mut work: JoinSet<anyhow::Result<T>>) -> anyhow::Result<Vec<T>> {
    let mut done = Vec::new();
    while let Some(result) = work.join_next().await {
        done.push(result??);
    }
    Ok(done)
}

/// Mebibytes per second from the first byte to the sink's word that all has arrived.
async fn throughput(way: &Way, connections: u64, mib: u64) -> anyhow::Result<String> {
    let mut ready = Vec::new();
    for _ in 0..connections {
        let mut stream = way.open().await?;
        stream.write_u8(BULK).await?;
        ready.push(stream);
    }
    let share = (mib << 20) / connections.max(1);
    let watch = Watch::start();
    let mut work = JoinSet::new();
    for stream in ready {
        work.spawn(send(stream, share));
    }
    all(work).await?;
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let rate = mib as f64 / watch.seconds();
    Ok(rate.to_string())
}

async fn send(mut stream: TcpStream, bytes: u64) -> anyhow::Result<()> {
    stream.write_u64(bytes).await?;
    let piece = vec![7; 64 << 10];
    let mut left = bytes;
    while left > 0 {
        let next = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(piece.get(..next).unwrap_or_default()).await?;
        left -= next as u64;
    }
    let arrived = stream.read_u64().await?;
    ensure!(arrived == bytes, "{arrived} of {bytes} bytes arrived");
    Ok(())
}

/// Median and 99th percentile of request to answer, microseconds, at an even pace.
async fn latency(way: &Way, connections: u64, seconds: u64, hz: u64) -> anyhow::Result<String> {
    let pause = Duration::from_micros(1_000_000 / hz.max(1));
    let mut work = JoinSet::new();
    for number in 0..connections {
        let mut stream = way.open().await?;
        // Spread over the pace, or all would ask at the same moment.
        let first = pause.mul_f64(f64::from(u32::try_from(number).unwrap_or(0)) / 32.0);
        work.spawn(async move {
            stream.write_u8(SMALL).await?;
            ask(&mut stream).await?;
            tokio::time::sleep(first).await;
            let mut beat = tokio::time::interval(pause);
            let mut times = Vec::new();
            for _ in 0..seconds * hz {
                beat.tick().await;
                times.push(ask(&mut stream).await?);
            }
            Ok(times)
        });
    }
    let mut times: Vec<f64> = all(work).await?.into_iter().flatten().collect();
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times.get(times.len() * percent / 100).copied();
    match (at(50), at(99)) {
        (Some(half), Some(most)) => Ok(format!("{half} {most}")),
        _ => bail!("nothing was asked"),
    }
}

async fn ask(stream: &mut TcpStream) -> anyhow::Result<f64> {
    let watch = Watch::start();
    stream.write_all(&[2; REQUEST]).await?;
    stream.read_exact(&mut [0; ANSWER]).await?;
    Ok(watch.us())
}

/// So many connections with one request each; connections per second.
async fn connections(way: &Way, total: u64, at_once: u64) -> anyhow::Result<String> {
    let watch = Watch::start();
    let mut work = JoinSet::new();
    for lane in 0..at_once {
        let way = way.clone();
        let share = total / at_once + u64::from(lane < total % at_once);
        work.spawn(async move {
            for _ in 0..share {
                let mut stream = way.open().await?;
                stream.write_u8(SMALL).await?;
                ask(&mut stream).await?;
                // The end, so that connections do not pile up behind.
                stream.shutdown().await?;
                let _ = stream.read(&mut [0; 1]).await;
            }
            Ok(())
        });
    }
    all(work).await?;
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let rate = total as f64 / watch.seconds();
    Ok(rate.to_string())
}
