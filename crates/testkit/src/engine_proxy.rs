//! A proxy in front of an engine's socket that can hang, drop, delay, refuse and cut, call by call.
//!
//! It stands between the product and a real engine: what it lets through is the engine's own answer.
//! It must never answer for the engine but with a fault that a test asked for.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes of a request head that are read before the connection is given up.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Between two looks of a hanging call at whether it is still to hang.
const LOOK: Duration = Duration::from_millis(20);

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No answer, and nothing reaches the engine, until the fault is lifted; then the call is dropped.
    Hang,
    /// The engine does it, and nobody hears of it: the answer never comes.
    Deaf,
    /// The connection is closed without an answer.
    Drop,
    /// The call goes through after this time.
    Delay(Duration),
    /// `500` with a text of our own.
    Refuse,
    /// The answer ends after that many bytes.
    Cut(usize),
}

/// Which calls a fault meets.
#[derive(Debug, Clone)]
struct Rule {
    method: &'static str,
    part: &'static str,
    fault: Fault,
}

#[derive(Debug, Default)]
struct Shared {
    rules: Mutex<Vec<Rule>>,
    open: Mutex<Vec<UnixStream>>,
    seen: Mutex<Vec<String>>,
    closed: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A test that panicked elsewhere: what is in there is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The proxy. Ends with this value.
#[derive(Debug)]
pub struct EngineProxy {
    socket: PathBuf,
    shared: Arc<Shared>,
}

impl EngineProxy {
    /// Listens at `socket` (short: the kernel takes some 100 bytes) for the engine at `engine`.
    ///
    /// # Errors
    /// What binding says.
    pub fn start(socket: &Path, engine: &Path) -> std::io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let shared = Arc::new(Shared::default());
        let (of_thread, engine) = (Arc::clone(&shared), engine.to_owned());
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if of_thread.closed.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, engine) = (Arc::clone(&of_thread), engine.clone());
                thread::spawn(move || serve(&shared, client, &engine));
            }
        });
        Ok(Self { socket: socket.to_owned(), shared })
    }

    /// As `DOCKER_HOST` names it.
    #[must_use]
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// From now on calls of `method` (empty: any) whose target holds `part` meet this fault.
    pub fn fault(&self, method: &'static str, part: &'static str, fault: Fault) {
        lock(&self.shared.rules).push(Rule { method, part, fault });
    }

    /// Every fault is lifted. What hangs is dropped.
    pub fn heal(&self) {
        lock(&self.shared.rules).clear();
    }

    /// Every open connection is cut, as when the engine is restarted.
    pub fn cut_all(&self) {
        for stream in lock(&self.shared.open).drain(..) {
            // Closed already is fine.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// What was asked so far, as `METHOD TARGET`.
    #[must_use]
    pub fn seen(&self) -> Vec<String> {
        lock(&self.shared.seen).clone()
    }
}

impl Drop for EngineProxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.heal();
        self.cut_all();
        // Wakes the listener, which then ends.
        let _ = UnixStream::connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Shared {
    fn fault_for(&self, line: &str) -> Option<Fault> {
        let (method, target) = line.split_once(' ')?;
        let rules = lock(&self.rules);
        let fits = |rule: &&Rule| {
            (rule.method.is_empty() || rule.method == method) && target.contains(rule.part)
        };
        rules.iter().find(fits).map(|rule| rule.fault)
    }

    fn hang(&self, line: &str) {
        while self.fault_for(line).is_some() && !self.closed.load(Ordering::SeqCst) {
            thread::sleep(LOOK);
        }
    }
}

/// One connection carries one call: the head is rewritten so that both ends close after it.
fn serve(shared: &Arc<Shared>, mut client: UnixStream, engine: &Path) {
    let Some((head, rest)) = read_head(&mut client) else { return };
    let text = String::from_utf8_lossy(&head).into_owned();
    let line = text.lines().next().unwrap_or_default();
    let line = line.rsplit_once(' ').map_or(line, |(line, _version)| line).to_owned();
    lock(&shared.seen).push(line.clone());
    let mut cut = usize::MAX;
    match shared.fault_for(&line) {
        None => {}
        Some(Fault::Hang) => return shared.hang(&line),
        Some(Fault::Drop) => return,
        Some(Fault::Delay(time)) => thread::sleep(time),
        Some(Fault::Refuse) => {
            let body = r#"{"message":"broken on purpose"}"#;
            let answer = format!(
                "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            // The client may have gone.
            let _ = client.write_all(answer.as_bytes());
            return;
        }
        Some(Fault::Cut(bytes)) => cut = bytes,
        Some(Fault::Deaf) => cut = 0,
    }
    let Ok(mut server) = UnixStream::connect(engine) else { return };
    for stream in [&client, &server] {
        if let Ok(stream) = stream.try_clone() {
            lock(&shared.open).push(stream);
        }
    }
    if server.write_all(&one_call(&text)).and_then(|()| server.write_all(&rest)).is_err() {
        return;
    }
    if let (Ok(mut from), Ok(mut to)) = (client.try_clone(), server.try_clone()) {
        thread::spawn(move || {
            // Either end may go at any time.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    let _ = relay(&mut server, &mut client, cut);
    if matches!(shared.fault_for(&line), Some(Fault::Deaf)) {
        shared.hang(&line);
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// Copies at most `most` bytes.
fn relay(from: &mut UnixStream, to: &mut UnixStream, most: usize) -> std::io::Result<()> {
    let mut left = most;
    let mut piece = vec![0; 64 << 10];
    loop {
        let n = from.read(&mut piece)?;
        let give = n.min(left);
        to.write_all(&piece[..give])?;
        left -= give;
        if n == 0 || left == 0 {
            return Ok(());
        }
    }
}

/// The head and what came with it.
fn read_head(client: &mut UnixStream) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let rest = bytes.split_off(at + 4);
            return Some((bytes, rest));
        }
        let n = client.read(&mut piece).ok()?;
        if n == 0 || bytes.len() > MAX_HEAD_BYTES {
            return None;
        }
        bytes.extend_from_slice(&piece[..n]);
    }
}

/// The same head with `Connection: close`, unless it asks for an upgrade.
fn one_call(head: &str) -> Vec<u8> {
    let upgrade = head.lines().any(|l| l.to_ascii_lowercase().starts_with("upgrade:"));
    if upgrade {
        return head.as_bytes().to_vec();
    }
    let mut lines: Vec<&str> = head
        .trim_end()
        .split("\r\n")
        .filter(|l| !l.to_ascii_lowercase().starts_with("connection:"))
        .collect();
    lines.insert(1, "Connection: close");
    format!("{}\r\n\r\n", lines.join("\r\n")).into_bytes()
}
