//! The programs around a measurement, all in this one binary: `cofferdam-bench part …`. Each is a
//! process of its own, as in life.
//!
//! A part must end when its standard input does, so that none outlives the benchmark.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

use clap::Subcommand;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::client;
use crate::outside;

/// Which part.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    /// Counts what arrives and answers with the count; echoes small requests.
    Sink,
    /// Passes bytes on through two threads and a pipe, as guest and host do, and nothing else.
    Relay {
        /// Where to.
        to: SocketAddr,
        /// `copy` or `splice`.
        how: String,
    },
    /// Connects, sends and measures what it is told to.
    Client(client::Options),
}

/// Runs a part to its end.
pub(crate) async fn run(part: Part) -> anyhow::Result<()> {
    match part {
        Part::Client(options) => client::run(options).await,
        Part::Sink => {
            until_input_ends();
            sink().await
        }
        Part::Relay { to, how } => {
            until_input_ends();
            relay(to, how == "splice")
        }
    }
}

/// The benchmark holds the other end, and lets go of it however it ends.
fn until_input_ends() {
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        outside::leave();
    });
}

fn tell(at: SocketAddr) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{at}")?;
    Ok(out.flush()?)
}

/// First byte of a connection: bulk, or small requests.
pub(super) const BULK: u8 = b'B';
/// Requests of [`client::REQUEST`] bytes, answered with [`client::ANSWER`] bytes.
pub(super) const SMALL: u8 = b'S';

async fn sink() -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    tell(listener.local_addr()?)?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A sender that has gone fails on its own side.
        tokio::spawn(async move {
            let _ = serve(stream).await;
        });
    }
}

async fn serve(mut stream: tokio::net::TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    match stream.read_u8().await? {
        BULK => {
            // Told beforehand: some proxies drop the answer once one side has finished.
            let expected = stream.read_u64().await?;
            let mut buf = vec![0; 256 << 10];
            let mut total = 0_u64;
            while total < expected {
                match stream.read(&mut buf).await? {
                    0 => break,
                    read => total += read as u64,
                }
            }
            stream.write_u64(total).await?;
            stream.shutdown().await
        }
        _ => {
            let (mut request, answer) = ([0; client::REQUEST], [1; client::ANSWER]);
            while stream.read_exact(&mut request).await.is_ok() {
                stream.write_all(&answer).await?;
            }
            stream.shutdown().await
        }
    }
}

fn relay(to: SocketAddr, splice: bool) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    tell(listener.local_addr()?)?;
    for near in listener.incoming() {
        let near = near?;
        thread::spawn(move || {
            // A connection that fails is seen by the client.
            let _ = carry(&near, to, splice);
        });
    }
    Ok(())
}

fn carry(near: &TcpStream, to: SocketAddr, splice: bool) -> std::io::Result<()> {
    let far = outside::connect_now(to)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(|| one_way(near, &far, splice));
        one_way(&far, near, splice)
    })
}

/// Through a pipe in the middle, with a thread on each side of it.
fn one_way(from: &TcpStream, to: &TcpStream, splice: bool) -> std::io::Result<()> {
    let (out, into) = rustix::pipe::pipe()?;
    // Without the larger size the bound would be lower, not higher.
    let _ = rustix::pipe::fcntl_setpipe_size(&into, 1 << 20);
    thread::scope(|scope| {
        scope.spawn(move || pass(from, into, splice));
        pass(&out, to, splice)
    })?;
    to.shutdown(Shutdown::Write)
}

fn pass(from: impl AsFd, to: impl AsFd, splice: bool) -> std::io::Result<()> {
    if splice {
        return pass_spliced(&from, &to);
    }
    let mut from = File::from(from.as_fd().try_clone_to_owned()?);
    let mut to = File::from(to.as_fd().try_clone_to_owned()?);
    let mut buf = vec![0; 64 << 10];
    loop {
        match from.read(&mut buf)? {
            0 => return Ok(()),
            read => to.write_all(buf.get(..read).unwrap_or_default())?,
        }
    }
}

/// A splice that waited for its input would hold the pipe's lock meanwhile, and keep the other end from
/// taking out what is in it. So readiness is waited for before.
fn pass_spliced(from: &impl AsFd, to: &impl AsFd) -> std::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::pipe::{SpliceFlags, splice};
    loop {
        poll(&mut [PollFd::new(from, PollFlags::IN)], None)?;
        poll(&mut [PollFd::new(to, PollFlags::OUT)], None)?;
        match splice(from, None, to, None, 1 << 20, SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
