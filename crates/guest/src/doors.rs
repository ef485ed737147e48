//! The loopback doors: each connection to the proxy or model port becomes a stream to the host.
//!
//! Carries bytes only. The guest never parses them, decides about them, or keeps more than a buffer
//! of them; all that is the host's.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_link::Link;
use cofferdam_wire::StreamOpen;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, copy_buf, split,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::limits::{
    AFTER_ANSWER, AFTER_ANSWER_CROWDED, AFTER_ANSWER_IDLE, DOOR_BUFFER, MODEL_CONNECTIONS,
    PROXY_CONNECTIONS,
};
use crate::places::Places;
use crate::talk;

/// The open doors. Dropping them shuts them and cuts every connection.
#[derive(Debug)]
pub(crate) struct Doors {
    tasks: JoinSet<()>,
    /// Where the proxy listens.
    pub(crate) proxy: SocketAddr,
}

/// Opens both doors.
pub(crate) async fn open(places: &Places, link: &Link) -> io::Result<Doors> {
    let [proxy, model] = places.ports;
    let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, proxy)).await?;
    let model = TcpListener::bind((Ipv4Addr::LOCALHOST, model)).await?;
    if let Some(file) = &places.ports_file {
        tell_ports(file, &proxy, &model)?;
    }
    let at = proxy.local_addr()?;
    let mut doors = JoinSet::new();
    doors.spawn(serve(proxy, link.clone(), StreamOpen::Egress, PROXY_CONNECTIONS));
    doors.spawn(serve(model, link.clone(), StreamOpen::Model, MODEL_CONNECTIONS));
    Ok(Doors { tasks: doors, proxy: at })
}

impl Doors {
    /// Opens the shell's own door, in whatever network namespace `proxy` listens.
    pub(crate) fn open_shells(&mut self, proxy: TcpListener, link: &Link) {
        self.tasks.spawn(serve(proxy, link.clone(), StreamOpen::ShellEgress, PROXY_CONNECTIONS));
    }
}

fn tell_ports(file: &Path, proxy: &TcpListener, model: &TcpListener) -> io::Result<()> {
    std::fs::write(file, format!("{} {}", proxy.local_addr()?.port(), model.local_addr()?.port()))
}

async fn serve(listener: TcpListener, link: Link, kind: StreamOpen, limit: usize) {
    let slots = Arc::new(Semaphore::new(limit));
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        let Ok((connection, _)) = listener.accept().await else {
            // Out of descriptors, most likely; a connection that ends makes room.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (link, kind, slots) = (link.clone(), kind.clone(), Arc::clone(&slots));
        connections.spawn(async move {
            let crowded = || slots.available_permits() < limit / 2;
            connect(connection, &link, &kind, crowded).await;
            drop(slot);
        });
    }
}

async fn connect(
    mut connection: TcpStream,
    link: &Link,
    kind: &StreamOpen,
    crowded: impl Fn() -> bool,
) {
    let patience = || Patience {
        idle: if crowded() { AFTER_ANSWER_CROWDED } else { AFTER_ANSWER_IDLE },
        whole: AFTER_ANSWER,
    };
    let carried = match talk::open_stream(link, kind).await {
        Ok(stream) => {
            let _ = connection.set_nodelay(true);
            carry(&mut connection, stream, patience).await
        }
        Err(error) => Err(io::Error::other(error)),
    };
    if carried.is_err() {
        // The agent's end must see a reset: a plain end would pass for a whole answer.
        let _ = connection.set_zero_linger();
    }
}

/// How long the agent's half is kept once the host has ended its own.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Without a byte from the agent.
    idle: Duration,
    /// In all.
    whole: Duration,
}

/// Carries both ways, each with its own end, until both have ended or one has failed. Once the
/// host has ended its half, the agent has to end its own within `patience`, asked for then: a reset
/// by the host cannot be seen while nothing is written, and connections that were refused and
/// forgotten must not hold the door's slots.
async fn carry<A, B>(agent: &mut A, host: B, patience: impl FnOnce() -> Patience) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (from_agent, mut to_agent) = split(agent);
    let (from_host, mut to_host) = split(host);
    let moved = AtomicU64::new(0);
    let up = async {
        let mut from_agent = BufReader::with_capacity(DOOR_BUFFER, from_agent);
        loop {
            let bytes = from_agent.fill_buf().await?;
            let len = bytes.len();
            if len == 0 {
                return to_host.shutdown().await;
            }
            to_host.write_all(bytes).await?;
            from_agent.consume(len);
            moved.fetch_add(1, Ordering::Relaxed);
        }
    };
    let down = async {
        copy_buf(&mut BufReader::with_capacity(DOOR_BUFFER, from_host), &mut to_agent).await?;
        to_agent.shutdown().await
    };
    tokio::pin!(up, down);
    tokio::select! {
        up = &mut up => {
            up?;
            return down.await;
        }
        down = &mut down => down?,
    }
    let patience = patience();
    let rest = async {
        loop {
            let before = moved.load(Ordering::Relaxed);
            match timeout(patience.idle, &mut up).await {
                Ok(up) => return up,
                Err(_) if moved.load(Ordering::Relaxed) == before => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(_) => {}
            }
        }
    };
    timeout(patience.whole, rest).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    const LONG: Patience =
        Patience { idle: Duration::from_secs(60), whole: Duration::from_secs(60) };

    #[tokio::test]
    async fn each_half_ends_by_itself() {
        let (mut near, mut agent) = duplex(64);
        let (host, mut far) = duplex(64);
        let carried = tokio::spawn(async move { carry(&mut near, host, || LONG).await });
        agent.write_all(b"ask").await.unwrap();
        agent.shutdown().await.unwrap();
        let mut asked = String::new();
        far.read_to_string(&mut asked).await.unwrap();
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        let mut answered = String::new();
        agent.read_to_string(&mut answered).await.unwrap();
        assert_eq!((asked.as_str(), answered.as_str()), ("ask", "answer"));
        carried.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn connection_that_the_agent_forgets_after_the_answer_is_cut() {
        let (mut near, mut agent) = duplex(64);
        let (host, mut far) = duplex(64);
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        let short = Patience { idle: Duration::from_millis(1), ..LONG };
        let carried = carry(&mut near, host, || short).await;
        assert_eq!(carried.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let mut answered = [0; 6];
        agent.read_exact(&mut answered).await.unwrap();
        assert_eq!(&answered, b"answer");
    }

    #[tokio::test]
    async fn agent_that_still_sends_after_the_answer_is_heard_to_its_end() {
        let (mut near, mut agent) = duplex(64);
        let (host, mut far) = duplex(64);
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        let carried = tokio::spawn(async move { carry(&mut near, host, || LONG).await });
        let mut answered = String::new();
        agent.read_to_string(&mut answered).await.unwrap();
        for _ in 0..100 {
            agent.write_all(b".").await.unwrap();
        }
        drop(agent);
        let mut heard = String::new();
        far.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, ".".repeat(100));
        carried.await.unwrap().unwrap();
    }
}
