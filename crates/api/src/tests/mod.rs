//! The service over real sockets: who gets in, what they get, and that nothing is missed.

#![expect(clippy::disallowed_methods, reason = "tests are clients of the service")]

mod door;
mod follow;
mod rows;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;

use cofferdam_daemon::config::Config;
use cofferdam_daemon::{Host, HostOptions};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;

use crate::place::Place;
use crate::server::{Bound, ServeOptions, Server};

/// A service on a free port, with a data directory of its own.
struct Lab {
    dir: tempfile::TempDir,
    host: Arc<Host>,
    bound: Bound,
    stop: Option<oneshot::Sender<()>>,
    served: tokio::task::JoinHandle<()>,
}

async fn host(dir: &std::path::Path) -> Arc<Host> {
    // Empty until a test puts something there.
    let options = HostOptions {
        data_dir: dir.to_path_buf(),
        bin_dirs: vec![dir.join("parts")],
        engine_hosts: Default::default(),
        config: Config::default(),
    };
    Arc::new(Host::open(options).await.unwrap())
}

fn free_port() -> ServeOptions {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    ServeOptions { listen, names: vec!["Box.Example:8443".to_owned()], ..ServeOptions::default() }
}

impl Lab {
    async fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap()).await
    }

    /// With files where guest and launcher are looked for. They are no programs: runs are armed and
    /// fail when their sandbox is made.
    async fn with_parts() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("parts")).unwrap();
        for name in [cofferdam_daemon::host::GUEST, cofferdam_daemon::host::LAUNCHER] {
            std::fs::write(dir.path().join("parts").join(name), "no program").unwrap();
        }
        Self::at(dir).await
    }

    async fn at(dir: tempfile::TempDir) -> Self {
        let host = host(dir.path()).await;
        let (server, bound) =
            Server::bind(Arc::clone(&host), Box::new(|_| None), free_port()).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { dir, host, bound, stop: Some(stop), served }
    }

    fn place(&self) -> Place {
        Place::of(self.dir.path())
    }

    fn address(&self) -> SocketAddr {
        self.bound.address.unwrap()
    }

    fn token(&self) -> String {
        std::fs::read_to_string(self.place().token()).unwrap().trim().to_owned()
    }

    /// A request over TCP: method and path, then header lines, then a body.
    async fn tcp(&self, line: &str, headers: &[String], body: &str) -> Reply {
        let stream = tokio::net::TcpStream::connect(self.address()).await.unwrap();
        exchange(stream, line, headers, body).await
    }

    /// The same with everything that an honest client sends.
    async fn honest(&self, line: &str, body: &str) -> Reply {
        let headers = [self.host_line(), self.bearer_line(), JSON.to_owned()];
        self.tcp(line, &headers, body).await
    }

    async fn socket(&self, line: &str, headers: &[String], body: &str) -> Reply {
        let stream = tokio::net::UnixStream::connect(self.place().socket()).await.unwrap();
        exchange(stream, line, headers, body).await
    }

    fn host_line(&self) -> String {
        format!("Host: {}", self.address())
    }

    fn bearer_line(&self) -> String {
        format!("Authorization: Bearer {}", self.token())
    }

    async fn end(self) {
        self.stop_serving().await;
    }

    /// Ends the service; the data directory lives as long as what is given back.
    async fn stop_serving(mut self) -> tempfile::TempDir {
        let _ = self.stop.take().unwrap().send(());
        self.served.await.unwrap();
        self.dir
    }

    /// Another process, as far as anyone can tell, over the same data directory.
    async fn restart(self) -> Self {
        Self::at(self.stop_serving().await).await
    }
}

const JSON: &str = "Content-Type: application/json";

/// An answer.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    line: &str,
    headers: &[String],
    body: &str,
) -> Reply {
    let mut text = format!("{line} HTTP/1.1\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    text.push_str(&format!("Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()));
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    // A refused upload may be reset once the answer is out: what was read until then counts.
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        dechunk(body)
    } else {
        body.to_owned()
    };
    Reply { status, head: head.to_owned(), body }
}

fn dechunk(mut rest: &str) -> String {
    let mut out = String::new();
    while let Some((size, tail)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { break };
        if size == 0 || tail.len() < size {
            break;
        }
        out.push_str(&tail[..size]);
        rest = tail[size..].trim_start_matches("\r\n");
    }
    out
}
