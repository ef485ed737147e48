//! The played outside: lookups, dials and origins that answer as the vector says.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_policy::{DialTarget, NamePermit, Stage};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::sleep;

use super::vector::Vector;
use crate::egress::net::{BoxStream, Dialler, ResolveError, Resolver};

/// Resolver and dialler in one, with a memory.
pub(super) struct Stub {
    first: Vec<IpAddr>,
    next: Vec<IpAddr>,
    failures: usize,
    errors: Vec<(IpAddr, String)>,
    delay: Duration,
    tunnel: bool,
    memory: Arc<Mutex<Memory>>,
}

#[derive(Debug, Default)]
struct Memory {
    queries: usize,
    tried: Vec<IpAddr>,
    connected: Vec<IpAddr>,
    upstream: Vec<u8>,
}

fn addresses(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stub {
    pub(super) fn new(vector: &Vector, faster: u32) -> Arc<Self> {
        let first = addresses(&vector.resolves_to);
        let next = vector.resolves_to_next.as_deref().map_or_else(|| first.clone(), addresses);
        let errors = vector
            .dial_error
            .iter()
            .filter_map(|(address, error)| Some((canonical(address)?, error.clone())))
            .collect();
        Arc::new(Self {
            first,
            next,
            failures: vector.resolve_failures_first,
            errors,
            delay: Duration::from_millis(vector.dial_delay_ms) / faster,
            tunnel: vector.request.kind == "connect",
            memory: Arc::default(),
        })
    }

    /// Compares the memory with what must have happened.
    pub(super) fn check(&self, vector: &Vector, stage: Option<Stage>, faults: &mut Vec<String>) {
        let memory = lock(&self.memory);
        if let Some(queries) = vector.dns_queries
            && memory.queries != queries
        {
            faults.push(format!("{} lookups, must be {queries}", memory.queries));
        }
        if let Some(dial) = &vector.dial
            && memory.connected.last().copied() != canonical(dial)
        {
            faults.push(format!("connected to {:?}, must be {dial}", memory.connected));
        }
        for never in &vector.never_dial {
            if canonical(never).is_some_and(|address| memory.tried.contains(&address)) {
                faults.push(format!("{never} was dialled"));
            }
        }
        let alone = vector.sequence.is_none() && !vector.after_headers;
        let textual = matches!(stage, Some(Stage::Parse | Stage::Auth | Stage::Policy));
        if alone && textual && memory.queries > 0 {
            faults.push("a refused name was looked up".to_owned());
        }
        if alone && (textual || stage == Some(Stage::Resolve)) && !memory.tried.is_empty() {
            faults.push("dialled although refused".to_owned());
        }
        if stage == Some(Stage::Relay) && memory.connected.is_empty() {
            faults.push("answered without an origin".to_owned());
        }
        let upstream = String::from_utf8_lossy(&memory.upstream);
        let lower = upstream.to_ascii_lowercase();
        for text in &vector.upstream.must_contain {
            if !upstream.contains(text.as_str()) {
                faults.push(format!("the origin did not get {text:?}"));
            }
        }
        for text in &vector.upstream.must_not_contain {
            if lower.contains(&text.to_ascii_lowercase()) {
                faults.push(format!("the origin got {text:?}"));
            }
        }
        if !self.tunnel && lower.contains("proxy-authorization") {
            faults.push("the origin got the proxy credential".to_owned());
        }
        if stage == Some(Stage::Tls) && !memory.upstream.is_empty() {
            faults.push("the origin got bytes of a refused tunnel".to_owned());
        }
    }
}

/// The address in the form in which it is dialled.
fn canonical(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[async_trait]
impl Resolver for Stub {
    async fn resolve(&self, _name: &NamePermit) -> Result<Vec<IpAddr>, ResolveError> {
        let mut memory = lock(&self.memory);
        memory.queries += 1;
        match memory.queries.checked_sub(self.failures + 1) {
            None => Err(ResolveError::Temporary("played".to_owned())),
            Some(0) => Ok(self.first.clone()),
            Some(_) => Ok(self.next.clone()),
        }
    }
}

#[async_trait]
impl Dialler for Stub {
    async fn dial(&self, target: DialTarget) -> io::Result<BoxStream> {
        let address = target.address().ip();
        lock(&self.memory).tried.push(address);
        sleep(self.delay).await;
        if let Some((_, error)) = self.errors.iter().find(|(at, _)| *at == address) {
            return match error.as_str() {
                // Nobody answers: the door's own clock must end it.
                "timeout" => std::future::pending().await,
                "refused" => Err(io::ErrorKind::ConnectionRefused.into()),
                "unreachable" => Err(io::ErrorKind::HostUnreachable.into()),
                other => Err(io::Error::other(other.to_owned())),
            };
        }
        lock(&self.memory).connected.push(address);
        let (near, far) = tokio::io::duplex(1 << 20);
        tokio::spawn(origin(far, self.tunnel, Arc::clone(&self.memory)));
        Ok(Box::new(near))
    }
}

/// Sends tunnel bytes back; answers a plain request once it is complete.
async fn origin(mut io: DuplexStream, tunnel: bool, memory: Arc<Mutex<Memory>>) {
    let mut buf = Vec::new();
    loop {
        let from = buf.len();
        match io.read_buf(&mut buf).await {
            Ok(1..) => {}
            _ => return,
        }
        lock(&memory).upstream.extend_from_slice(&buf[from..]);
        if tunnel {
            if io.write_all(&buf[from..]).await.is_err() {
                return;
            }
        } else if is_complete(&buf) {
            let body = if buf.starts_with(b"HEAD ") { "" } else { "ok" };
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{body}");
            let _ = io.write_all(answer.as_bytes()).await;
            let _ = io.shutdown().await;
            return;
        }
    }
}

fn is_complete(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let body = &request[end + 4..];
    if head.contains("\r\ntransfer-encoding: chunked") {
        return body.ends_with(b"0\r\n\r\n");
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|length| length.trim().parse().ok())
        .unwrap_or(0);
    body.len() >= length
}
