//! The model door: one HTTP/1.1 request over a fresh loopback connection.
//!
//! Must never speak to anything but loopback, and never retry: see [`super::client`] for that.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Why a base URL is no model door.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error("`{0}` is not a URL of the form http://127.0.0.1:PORT")]
    Shape(String),
    #[error(
        "`{0}` is not on loopback; the model is reached through the door inside the sandbox only"
    )]
    NotLoopback(String),
}

/// A parsed base URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    address: SocketAddr,
    authority: String,
    prefix: String,
}

/// Why a request brought no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("cannot reach the model door at {0}: {1}")]
    Connect(SocketAddr, std::io::Error),
    #[error("the model door at {0} did not answer the connection")]
    ConnectTimeout(SocketAddr),
    #[error("the request could not be built: {0}")]
    Request(http::Error),
    #[error("the connection to the model broke: {0}")]
    Http(hyper::Error),
    #[error("no answer for {0} ms")]
    Idle(u128),
}

/// A response whose body is still to be read. Dropping it closes the connection.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Incoming,
    pub(crate) connection: Connection,
}

/// The task that moves the connection's bytes; ends with its owner.
pub(crate) struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Endpoint {
    /// Parses `http://HOST:PORT[/PREFIX]`, where the host is loopback.
    pub(crate) fn parse(base_url: &str) -> Result<Self, EndpointError> {
        let shape = || EndpointError::Shape(crate::text::clip(base_url, 200));
        let uri: Uri = base_url.parse().map_err(|_| shape())?;
        let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(shape());
        };
        let port = authority.port_u16().ok_or_else(shape)?;
        if uri.query().is_some() || authority.as_str().contains('@') {
            return Err(shape());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let ip = match host {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            other => other
                .parse()
                .map_err(|_| EndpointError::NotLoopback(crate::text::clip(base_url, 200)))?,
        };
        if !ip.is_loopback() {
            return Err(EndpointError::NotLoopback(crate::text::clip(base_url, 200)));
        }
        Ok(Self {
            address: SocketAddr::new(ip, port),
            authority: authority.as_str().to_owned(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Posts JSON to `path` and waits for the head of the response, at most `idle`.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
        connect: Duration,
        idle: Duration,
    ) -> Result<Reply, SendError> {
        let mut request = Request::post(format!("{}{path}", self.prefix))
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(SendError::Request)?;
        let stream = match tokio::time::timeout(connect, open(self.address)).await {
            Err(_) => return Err(SendError::ConnectTimeout(self.address)),
            Ok(opened) => opened.map_err(|e| SendError::Connect(self.address, e))?,
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(SendError::Http)?;
        let connection = Connection(tokio::spawn(async move {
            // The request's own future reports the fault.
            let _ = connection.await;
        }));
        let response = match tokio::time::timeout(idle, sender.send_request(request)).await {
            Err(_) => return Err(SendError::Idle(idle.as_millis())),
            Ok(response) => response.map_err(SendError::Http)?,
        };
        let (head, body) = response.into_parts();
        Ok(Reply { status: head.status, headers: head.headers, body, connection })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the agent's one connection: the model door on loopback, checked in `parse`"
)]
async fn open(address: SocketAddr) -> std::io::Result<TcpStream> {
    TcpStream::connect(address).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_a_model_door() {
        let check = |url: &str, expect: Result<(&str, &str), ()>| {
            let got = Endpoint::parse(url);
            assert_eq!(
                got.as_ref().map(|e| (e.address.to_string(), e.prefix.clone())).map_err(|_| ()),
                expect.map(|(a, p)| (a.to_owned(), p.to_owned())),
                "{url}: {got:?}"
            );
        };
        check("http://127.0.0.1:3129", Ok(("127.0.0.1:3129", "")));
        check("http://127.0.0.1:3129/", Ok(("127.0.0.1:3129", "")));
        check("http://localhost:80/a/b/", Ok(("127.0.0.1:80", "/a/b")));
        check("http://[::1]:3129", Ok(("[::1]:3129", "")));
        check("https://127.0.0.1:3129", Err(()));
        check("http://127.0.0.1", Err(()));
        check("http://10.0.0.1:80", Err(()));
        check("http://0.0.0.0:80", Err(()));
        check("http://api.example.com:80", Err(()));
        check("http://127.0.0.1.example.com:80", Err(()));
        check("http://user@127.0.0.1:80", Err(()));
        check("127.0.0.1:80", Err(()));
        check("", Err(()));
    }
}
