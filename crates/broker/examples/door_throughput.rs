//! Measures how fast bytes pass through the egress door, against a direct loopback connection.
//!
//! Run by hand: `cargo run --release -p cofferdam-broker --example door_throughput [MIB]`. It
//! opens sockets on loopback only.

#![expect(clippy::print_stdout, reason = "prints its figures")]
#![expect(clippy::unwrap_used, reason = "a measurement that fails has no figures")]
#![expect(clippy::disallowed_methods, reason = "measures time and opens its own connections")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use cofferdam_broker::egress::{EgressConfig, EgressDoor, Limits, SystemResolver, TcpDialler};
use cofferdam_broker::log::MemoryLog;
use cofferdam_broker::{RunToken, Secret};
use cofferdam_link::Link;
use cofferdam_policy::{EgressPolicy, Services};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const REQUEST: &[u8] = b"CONNECT sink.internal:80 HTTP/1.1\r\nHost: sink.internal:80\r\n\
    Proxy-Authorization: Basic cnVuOnRva2Vu\r\n\r\n";

/// Counts what arrives and answers with the count when the sender has finished.
async fn sink() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buf = vec![0; 256 * 1024];
                let mut total = 0_u64;
                while let Ok(read @ 1..) = stream.read(&mut buf).await {
                    total += read as u64;
                }
                let _ = stream.write_u64(total).await;
            });
        }
    });
    at
}

fn door(sink: SocketAddr) -> Arc<EgressDoor> {
    let services = BTreeMap::from([("sink.internal".to_owned(), sink.to_string())]);
    EgressDoor::new(EgressConfig {
        policy: EgressPolicy::load(&["sink.internal:80".to_owned()], &[]).unwrap(),
        services: Services::load(services).unwrap(),
        gatewayed: Vec::new(),
        token: RunToken::new(Secret::new("token".to_owned())),
        bytes_out: u64::MAX,
        log: Arc::new(MemoryLog::default()),
        resolver: Arc::new(SystemResolver),
        dialler: Arc::new(TcpDialler),
        limits: Limits::default(),
    })
}

/// Sends `mib` mebibytes and waits until all have arrived. Prints the rate.
async fn measure<S: AsyncRead + AsyncWrite + Unpin>(what: &str, mut io: S, mib: u64, tunnel: bool) {
    if tunnel {
        io.write_all(REQUEST).await.unwrap();
        io.flush().await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(io.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
    }
    let piece = vec![7; 64 * 1024];
    let start = Instant::now();
    for _ in 0..mib * 16 {
        io.write_all(&piece).await.unwrap();
    }
    io.shutdown().await.unwrap();
    assert_eq!(io.read_u64().await.unwrap(), mib << 20);
    let seconds = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let rate = mib as f64 / seconds;
    println!("{what:<44} {rate:>8.0} MiB/s");
}

/// Time from CONNECT to 200, including the dial.
async fn latency(door: &Arc<EgressDoor>) {
    let rounds = 500;
    let start = Instant::now();
    for _ in 0..rounds {
        let (mut guest, inside) = tokio::io::duplex(64 * 1024);
        let door = Arc::clone(door);
        tokio::spawn(async move { door.serve(inside).await });
        guest.write_all(REQUEST).await.unwrap();
        let mut byte = [0; 12];
        guest.read_exact(&mut byte).await.unwrap();
    }
    println!(
        "{:<44} {:>8.0} µs",
        "CONNECT to 200 with dial, mean",
        start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
    );
}

#[tokio::main]
async fn main() {
    let mib = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1024);
    let sink = sink().await;
    let door = door(sink);

    for _ in 0..2 {
        measure("direct loopback", TcpStream::connect(sink).await.unwrap(), mib, false).await;

        let front = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let client = TcpStream::connect(front.local_addr().unwrap()).await.unwrap();
        let (inside, _) = front.accept().await.unwrap();
        let serving = Arc::clone(&door);
        tokio::spawn(async move { serving.serve(inside).await });
        measure("door over loopback", client, mib, true).await;

        let (near, far) = tokio::net::UnixStream::pair().unwrap();
        let (guest, host) = tokio::join!(Link::guest(near), Link::host(far));
        let ((guest, _keep), (_host, mut incoming)) = (guest.unwrap(), host.unwrap());
        let serving = Arc::clone(&door);
        tokio::spawn(async move {
            while let Some((_, stream)) = incoming.next().await {
                let serving = Arc::clone(&serving);
                tokio::spawn(async move { serving.serve(stream).await });
            }
        });
        measure("door over the link on a socket pair", guest.open(b"").await.unwrap(), mib, true)
            .await;
    }
    latency(&door).await;
}
