//! Throughput of the link against a plain copy over the same stream. Run by hand, in release:
//! `cargo run --release -p cofferdam-link --example throughput`.
//!
//! Never part of a test: figures depend on the machine.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "a benchmark run by hand")]

use std::time::Instant;

use cofferdam_link::{Link, join};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

const BYTES: usize = 1 << 30;
const CHUNK: usize = 64 << 10;

async fn send(mut writer: impl AsyncWrite + Unpin, bytes: usize) {
    let chunk = vec![7; CHUNK];
    for _ in 0..bytes / CHUNK {
        writer.write_all(&chunk).await.expect("write");
    }
    writer.shutdown().await.expect("shutdown");
    drop(writer);
}

async fn receive(mut reader: impl AsyncRead + Unpin) -> usize {
    let mut buf = vec![0; CHUNK];
    let mut total = 0;
    loop {
        match reader.read(&mut buf).await.expect("read") {
            0 => return total,
            len => total += len,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}

fn report(what: &str, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    println!("{what:<44} {:>8.0} MiB/s", (BYTES >> 20) as f64 / seconds);
}

async fn over_link<T>(what: &str, a: T, b: T, streams: usize)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (host, guest) = tokio::join!(Link::host(a), Link::guest(b));
    let ((_host, mut incoming), (guest, _)) = (host.expect("host"), guest.expect("guest"));
    let start = now();
    let mut work = tokio::task::JoinSet::new();
    for _ in 0..streams {
        let stream = guest.open(b"").await.expect("open");
        work.spawn(async move {
            send(stream, BYTES / streams).await;
        });
        let (_, stream) = incoming.next().await.expect("stream");
        work.spawn(async move {
            receive(stream).await;
        });
    }
    work.join_all().await;
    report(what, start);
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let pipe = || tokio::net::unix::pipe::pipe().expect("pipe");

    let (a, b) = tokio::io::duplex(CHUNK);
    let start = now();
    tokio::join!(tokio::spawn(send(a, BYTES)), tokio::spawn(receive(b))).1.expect("copy");
    report("plain duplex", start);

    let (writer, reader) = pipe();
    let start = now();
    tokio::join!(tokio::spawn(send(writer, BYTES)), tokio::spawn(receive(reader))).1.expect("copy");
    report("plain pipe", start);

    for streams in [1, 16] {
        let (a, b) = tokio::io::duplex(CHUNK);
        over_link(&format!("link over duplex, {streams} streams"), a, b, streams).await;
        let ((to_guest, from_host), (to_host, from_guest)) = (pipe(), pipe());
        let (a, b) = (join(from_guest, to_guest), join(from_host, to_host));
        over_link(&format!("link over pipes, {streams} streams"), a, b, streams).await;
    }
}
