//! The client's side of a vector: sends the bytes, reads the answers, looks into the tunnel.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, split};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::vector::{Pace, Vector, decode};

/// How long the client waits for an answer when the vector does not say, before it is sped up.
const PATIENCE: Duration = Duration::from_secs(200);

pub(super) struct Client<'a> {
    pub(super) vector: &'a Vector,
    pub(super) bytes: Vec<u8>,
    pub(super) faster: u32,
}

/// What the client saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Status of each answer, in order.
    pub(super) statuses: Vec<u16>,
    /// The door closed the connection.
    pub(super) closed: bool,
    /// The tunnel ended before what was sent came back.
    pub(super) tunnel_short: bool,
    /// Something that must not be, whatever the vector says.
    pub(super) fault: Option<String>,
}

impl Client<'_> {
    pub(super) async fn run(&self, io: DuplexStream) -> Seen {
        let mut seen = Seen::default();
        let most = self.vector.request.pace.as_ref().map(|pace| Duration::from_secs(pace.max_s));
        let patience = most.unwrap_or(PATIENCE) / self.faster;
        if timeout(patience, self.talk(io, &mut seen)).await.is_err() {
            seen.fault = Some("no end in time".to_owned());
        }
        seen
    }

    async fn talk(&self, io: DuplexStream, seen: &mut Seen) {
        let (read, write) = split(io);
        let mut answers = Answers { io: read, buf: Vec::new() };
        let (queue, queued) = unbounded_channel();
        let mut sender = JoinSet::new();
        sender.spawn(send(write, queued, self.vector.request.pace.clone(), self.faster));

        let wanted = self.vector.sequence.as_ref().map_or(1, Vec::len);
        let parts = if self.vector.wait_between {
            requests(&self.bytes, usize::MAX)
        } else {
            vec![self.bytes.as_slice()]
        };
        let mut parts = parts.into_iter();
        for _ in 0..wanted {
            if let Some(part) = parts.next() {
                let _ = queue.send(part.to_vec());
            }
            match answers.next().await {
                Some(status) => seen.statuses.push(status),
                None => {
                    seen.closed = true;
                    return;
                }
            }
        }
        let tunnel = self.vector.request.kind == "connect" && seen.statuses.last() == Some(&200);
        if tunnel {
            return self.tunnel(answers, &queue, wanted, seen).await;
        }
        if self.vector.close {
            // Whatever still comes would be an answer to what had to be thrown away.
            seen.closed = true;
            if answers.next().await.is_some() {
                seen.fault = Some("an answer to bytes that had to be thrown away".to_owned());
            }
        }
    }

    /// The origin sends back what it gets, so what comes out is what went through.
    async fn tunnel(
        &self,
        mut answers: Answers,
        queue: &UnboundedSender<Vec<u8>>,
        wanted: usize,
        seen: &mut Seen,
    ) {
        let heads: usize = requests(&self.bytes, wanted).iter().map(|part| part.len()).sum();
        let mut through = self.bytes[heads..].to_vec();
        if let Some(first) = &self.vector.tunnel_first {
            match decode(first) {
                Ok(first) => {
                    through.extend_from_slice(&first);
                    let _ = queue.send(first);
                }
                Err(why) => seen.fault = Some(why),
            }
        }
        while answers.buf.len() < through.len() {
            if answers.fill().await == 0 {
                seen.closed = true;
                seen.tunnel_short = true;
                break;
            }
        }
        if !through.starts_with(&answers.buf) {
            seen.fault = Some("the tunnel changed its bytes".to_owned());
        }
    }
}

/// Cuts bodiless requests apart, at most `most` of them.
fn requests(bytes: &[u8], most: usize) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while parts.len() < most
        && let Some(at) = rest.windows(4).position(|window| window == b"\r\n\r\n")
    {
        let (part, after) = rest.split_at(at + 4);
        parts.push(part);
        rest = after;
    }
    parts
}

/// Sends what is queued, at the client's pace.
async fn send(
    mut write: WriteHalf<DuplexStream>,
    mut queued: UnboundedReceiver<Vec<u8>>,
    pace: Option<Pace>,
    faster: u32,
) {
    while let Some(bytes) = queued.recv().await {
        let size = pace.as_ref().map_or(bytes.len(), |pace| pace.chunk).max(1);
        for chunk in bytes.chunks(size) {
            if write.write_all(chunk).await.is_err() {
                return;
            }
            match &pace {
                Some(Pace { interval_ms: 0, .. }) => yield_now().await,
                Some(pace) => sleep(Duration::from_millis(pace.interval_ms) / faster).await,
                None => {}
            }
        }
    }
}

struct Answers {
    io: ReadHalf<DuplexStream>,
    buf: Vec<u8>,
}

impl Answers {
    async fn fill(&mut self) -> usize {
        self.io.read_buf(&mut self.buf).await.unwrap_or(0)
    }

    /// Status of the next final answer; `None` when the connection is closed.
    async fn next(&mut self) -> Option<u16> {
        let head = loop {
            if let Some(at) = self.buf.windows(4).position(|window| window == b"\r\n\r\n") {
                break self.buf.drain(..at + 4).collect::<Vec<u8>>();
            }
            if self.fill().await == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let status = head.get(9..12)?.parse().ok()?;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .and_then(|length| length.trim().parse::<usize>().ok())
            .unwrap_or(0);
        while self.buf.len() < length {
            if self.fill().await == 0 {
                return None;
            }
        }
        self.buf.drain(..length);
        Some(status)
    }
}
