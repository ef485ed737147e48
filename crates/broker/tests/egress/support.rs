//! A door with a played outside, and a client that speaks raw bytes.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_broker::egress::{
    BoxStream, Dialler, EgressConfig, EgressDoor, Limits, ResolveError, Resolver,
};
use cofferdam_broker::log::MemoryLog;
use cofferdam_broker::{RunToken, Secret, Tokens};
use cofferdam_policy::{DialTarget, EgressPolicy, NamePermit, Services};
use cofferdam_run::Fact;
use cofferdam_run::spec::Principal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::timeout;

pub(crate) const PUBLIC: &str = "93.184.216.34";
/// How long a test waits for an end that must come. Only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(10);
/// `run:secret-token`.
pub(crate) const AUTH: &str = "Proxy-Authorization: Basic cnVuOnNlY3JldC10b2tlbg==\r\n";

/// What the outside was asked, and what it answers.
#[derive(Default)]
pub(crate) struct Outside {
    /// Names looked up, in order.
    pub(crate) lookups: Mutex<Vec<String>>,
    /// Addresses tried, in order.
    pub(crate) dials: Mutex<Vec<String>>,
    /// Lookups to answer with a temporary failure before the first answer.
    pub(crate) failures: Mutex<usize>,
    /// Answers to lookups; the last one stays.
    pub(crate) answers: Mutex<VecDeque<Vec<IpAddr>>>,
    /// Host ends of connections that were dialled and not yet taken by the test.
    pub(crate) hosts: Mutex<VecDeque<DuplexStream>>,
}

#[async_trait]
impl Resolver for Outside {
    async fn resolve(&self, name: &NamePermit) -> Result<Vec<IpAddr>, ResolveError> {
        self.lookups.lock().unwrap().push(name.authority().to_string());
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err(ResolveError::Temporary("played".to_owned()));
        }
        let mut answers = self.answers.lock().unwrap();
        match answers.len() {
            0 => Ok(vec![PUBLIC.parse().unwrap()]),
            1 => Ok(answers[0].clone()),
            _ => Ok(answers.pop_front().unwrap()),
        }
    }
}

#[async_trait]
impl Dialler for Outside {
    async fn dial(&self, target: DialTarget) -> io::Result<BoxStream> {
        self.dials.lock().unwrap().push(target.address().to_string());
        let (near, far) = tokio::io::duplex(1 << 20);
        self.hosts.lock().unwrap().push_back(far);
        Ok(Box::new(near))
    }
}

/// What a test may change about a door.
pub(crate) struct Setup {
    pub(crate) allow: Vec<&'static str>,
    pub(crate) deny: Vec<&'static str>,
    pub(crate) services: Vec<(&'static str, String)>,
    pub(crate) gatewayed: Vec<&'static str>,
    pub(crate) bytes_out: u64,
    pub(crate) limits: Limits,
    pub(crate) dialler: Option<Arc<dyn Dialler>>,
    pub(crate) resolver: Option<Arc<dyn Resolver>>,
    pub(crate) tokens: Tokens,
}

/// A token of that text.
pub(crate) fn token(text: &str) -> RunToken {
    RunToken::new(Secret::new(text.to_owned()))
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            allow: vec!["a.example:80", "a.example:443", "a.example:8443", "*.w.example:443"],
            deny: Vec::new(),
            services: Vec::new(),
            gatewayed: Vec::new(),
            bytes_out: 1 << 30,
            limits: Limits { linger: Duration::from_millis(50), ..Limits::default() },
            dialler: None,
            resolver: None,
            tokens: Tokens::one(token("secret-token")),
        }
    }
}

pub(crate) struct World {
    pub(crate) door: Arc<EgressDoor>,
    pub(crate) outside: Arc<Outside>,
    pub(crate) log: Arc<MemoryLog>,
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let outside = Arc::new(Outside::default());
        let log = Arc::new(MemoryLog::default());
        let services = setup.services.into_iter().map(|(name, at)| (name.to_owned(), at)).collect();
        let door = EgressDoor::new(EgressConfig {
            policy: EgressPolicy::load(&owned(&setup.allow), &owned(&setup.deny)).unwrap(),
            services: Services::load(services).unwrap(),
            gatewayed: setup.gatewayed.iter().map(|text| text.parse().unwrap()).collect(),
            tokens: setup.tokens,
            bytes_out: setup.bytes_out,
            log: log.clone(),
            resolver: setup.resolver.unwrap_or_else(|| outside.clone()),
            dialler: setup.dialler.unwrap_or_else(|| outside.clone()),
            limits: setup.limits,
        });
        Self { door, outside, log }
    }

    pub(crate) fn plain() -> Self {
        Self::new(Setup::default())
    }

    /// Opens a connection to the door; the server side runs as a task.
    pub(crate) fn open(&self) -> DuplexStream {
        self.open_at(Principal::Agent)
    }

    /// The same at the door of `at`.
    pub(crate) fn open_at(&self, at: Principal) -> DuplexStream {
        let (guest, inside) = tokio::io::duplex(1 << 20);
        let door = Arc::clone(&self.door);
        tokio::spawn(async move { door.serve_at(inside, at).await });
        guest
    }

    /// Sends bytes, half-closes, and returns everything that comes back.
    pub(crate) async fn ask(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut guest = self.open();
        guest.write_all(bytes.as_ref()).await.unwrap();
        guest.shutdown().await.unwrap();
        read_all(&mut guest).await
    }

    /// Opens a tunnel and takes the host's end of it.
    pub(crate) async fn tunnel(&self, target: &str) -> (DuplexStream, DuplexStream) {
        let mut guest = self.open();
        guest.write_all(connect(target).as_bytes()).await.unwrap();
        let answer = read_head(&mut guest).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        (guest, self.host())
    }

    /// The host's end of the oldest connection that no test has taken yet.
    pub(crate) fn host(&self) -> DuplexStream {
        self.outside.hosts.lock().unwrap().pop_front().unwrap()
    }

    /// Waits for the door to dial, then takes the host's end.
    pub(crate) async fn next_host(&self) -> DuplexStream {
        for _ in 0..10_000 {
            if let Some(host) = self.outside.hosts.lock().unwrap().pop_front() {
                return host;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("nothing was dialled");
    }

    /// Waits until that many facts were told.
    pub(crate) async fn facts(&self, count: usize) -> Vec<Fact> {
        for _ in 0..10_000 {
            let facts = self.log.facts();
            if facts.len() >= count {
                return facts;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("only {:?}", self.log.facts());
    }

    pub(crate) fn untouched(&self) -> bool {
        self.outside.lookups.lock().unwrap().is_empty()
            && self.outside.dials.lock().unwrap().is_empty()
    }
}

pub(crate) fn connect(target: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{AUTH}\r\n")
}

pub(crate) fn get(path: &str) -> String {
    format!("GET http://a.example{path} HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n")
}

pub(crate) async fn read_all(io: &mut DuplexStream) -> String {
    let mut bytes = Vec::new();
    let reading = timeout(PATIENCE, io.read_to_end(&mut bytes));
    assert!(reading.await.is_ok(), "open after {:?}", String::from_utf8_lossy(&bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads up to the end of a header, byte by byte so that nothing is lost.
pub(crate) async fn read_head(io: &mut DuplexStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        match io.read_u8().await {
            Ok(byte) => bytes.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// The refusal code in an answer.
pub(crate) fn code(answer: &str) -> Option<&str> {
    answer.lines().find_map(|line| line.strip_prefix("X-Cofferdam-Refusal: "))
}

/// `(target, admitted, reason, address, out, in, outcome)` of an egress fact.
pub(crate) fn egress(fact: &Fact) -> (&str, bool, &str, Option<&str>, u64, u64, &str) {
    match fact {
        Fact::Egress {
            target, admitted, reason, address, bytes_out, bytes_in, outcome, ..
        } => (target, *admitted, reason, address.as_deref(), *bytes_out, *bytes_in, outcome),
        other => panic!("{other:?}"),
    }
}
