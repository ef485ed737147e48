//! The server: accepts, records, checks the key, finds the turn, lets the fault happen, answers.
//!
//! It records whatever it was sent, keys included, because tests ask for exactly that; so it must
//! never see a real key.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::script::{Fault, Script, Turn, tokens};
use super::stream::{Answer, Body, body};
use super::{anthropic, chat, gemini, responses};

/// Largest request body taken, bytes; larger ones get 413.
pub const MAX_REQUEST_BYTES: usize = 64 << 20;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// Turn that was answered, when one was found.
    pub turn: Option<usize>,
    /// Status answered; zero while unanswered.
    pub status: u16,
    /// Bytes of the answer's body handed to the socket.
    pub sent: usize,
    /// How it ended.
    pub ended: Ended,
}

impl Recorded {
    /// The body as JSON; `null` when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// A header's text; empty when absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It has not.
    No,
    /// The whole answer was handed over.
    Complete,
    /// The script broke it.
    Cut,
    /// The client went away first.
    ClientGone,
}

#[derive(Debug)]
struct Shared {
    script: Script,
    key: Mutex<Option<String>>,
    requests: Mutex<Vec<Recorded>>,
    faults: Mutex<HashMap<usize, u32>>,
    connections: Mutex<usize>,
    changed: watch::Sender<()>,
}

impl Shared {
    fn requests(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, index: usize, change: impl FnOnce(&mut Recorded)) {
        if let Some(entry) = self.requests().get_mut(index) {
            change(entry);
        }
        self.changed.send_replace(());
    }
}

/// Writes into one recorded request; dropped before the end means that the client went away.
#[derive(Debug)]
pub(super) struct Note {
    shared: Arc<Shared>,
    index: usize,
}

impl Note {
    pub(super) fn sent(&self, bytes: usize) {
        self.shared.update(self.index, |r| r.sent += bytes);
    }

    pub(super) fn complete(&self) {
        self.shared.update(self.index, |r| r.ended = Ended::Complete);
    }

    pub(super) fn cut(&self) {
        self.shared.update(self.index, |r| r.ended = Ended::Cut);
    }

    fn answered(&self, status: u16) {
        self.shared.update(self.index, |r| r.status = status);
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        self.shared.update(self.index, |r| {
            if r.ended == Ended::No {
                r.ended = Ended::ClientGone;
            }
        });
    }
}

/// A running server; stops listening when dropped.
#[derive(Debug)]
pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    accept: JoinHandle<()>,
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

impl ModelServer {
    /// Listens on a free loopback port. Needs a Tokio runtime.
    ///
    /// # Errors
    /// No socket could be had.
    pub fn start(script: Script) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script,
            key: Mutex::default(),
            requests: Mutex::default(),
            faults: Mutex::default(),
            connections: Mutex::default(),
            changed: watch::channel(()).0,
        });
        let accepted = Arc::clone(&shared);
        let accept = tokio::spawn(async move {
            // A failed accept concerns one connection; the listener itself stays good.
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    // Small events must not wait for the peer's delayed acknowledgement.
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(connection(Arc::clone(&accepted), stream));
                }
            }
        });
        Ok(Self { address, shared, accept })
    }

    /// Serves one connection that came another way, for example through TLS.
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        connection(Arc::clone(&self.shared), io).await;
    }

    /// Refuses requests without this key, in each provider's own way.
    pub fn require_key(&self, key: impl Into<String>) {
        *self.shared.key.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.into());
    }

    /// Address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`, without a trailing slash.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that arrived so far, in order of arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.requests().clone()
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the recorded requests satisfy `wanted`, and returns them. Waits for ever otherwise:
    /// the test's own bound ends it.
    pub async fn until(&self, wanted: impl Fn(&[Recorded]) -> bool) -> Vec<Recorded> {
        let mut changed = self.shared.changed.subscribe();
        loop {
            let now = self.requests();
            if wanted(&now) {
                return now;
            }
            // The sender lives in `self.shared`, so this cannot fail while `self` exists.
            let _ = changed.changed().await;
        }
    }
}

async fn connection(shared: Arc<Shared>, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    *shared.connections.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, io::Error>(exchange(shared, request).await) }
    });
    // A client that breaks HTTP only loses its own connection.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(io), service)
        .await;
}

/// What a path asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted<'a> {
    Anthropic,
    AnthropicCount,
    Chat,
    Responses,
    Gemini { model: &'a str, stream: bool, sse: bool },
    Models,
    GeminiModels,
    Nothing,
}

fn wanted<'a>(method: &str, path: &'a str, query: &str) -> Wanted<'a> {
    match (method, path) {
        ("POST", "/v1/messages") => Wanted::Anthropic,
        ("POST", "/v1/messages/count_tokens") => Wanted::AnthropicCount,
        ("POST", "/v1/chat/completions") => Wanted::Chat,
        ("POST", "/v1/responses") => Wanted::Responses,
        ("GET", "/v1/models") => Wanted::Models,
        ("GET", "/v1beta/models") => Wanted::GeminiModels,
        ("POST", path) => match path
            .strip_prefix("/v1beta/models/")
            .and_then(|r| r.rsplit_once(':'))
        {
            Some((model, "generateContent")) => Wanted::Gemini { model, stream: false, sse: false },
            Some((model, "streamGenerateContent")) => Wanted::Gemini {
                model,
                stream: true,
                sse: query.split('&').any(|p| p == "alt=sse"),
            },
            _ => Wanted::Nothing,
        },
        _ => Wanted::Nothing,
    }
}

impl Wanted<'_> {
    fn error(self, status: u16, message: &str) -> Value {
        match self {
            Self::Anthropic | Self::AnthropicCount => anthropic::error(status, message),
            Self::Gemini { .. } | Self::GeminiModels => gemini::error(status, message),
            Self::Chat | Self::Responses | Self::Models | Self::Nothing => {
                chat::error(status, message)
            }
        }
    }

    /// Status and message for a request without the right key; as the providers answer.
    fn unauthorised(
        self,
        headers: &HeaderMap,
        query: &str,
        key: &str,
    ) -> Option<(u16, &'static str)> {
        let plain = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let bearer = plain("authorization").and_then(|v| v.strip_prefix("Bearer "));
        let (given, refusal) = match self {
            Self::Anthropic | Self::AnthropicCount => {
                (plain("x-api-key").or(bearer), (401, "invalid x-api-key"))
            }
            Self::Gemini { .. } | Self::GeminiModels => {
                let in_query = query.split('&').find_map(|p| p.strip_prefix("key="));
                let given = plain("x-goog-api-key").or(in_query);
                let refusal = match given {
                    Some(_) => (400, "API key not valid. Please pass a valid API key."),
                    None => (403, "Method doesn't allow unregistered callers. Please use API Key."),
                };
                (given, refusal)
            }
            Self::Chat | Self::Responses | Self::Models | Self::Nothing => {
                (bearer, (401, "Incorrect API key provided."))
            }
        };
        (given != Some(key)).then_some(refusal)
    }
}

async fn exchange(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let (parts, incoming) = request.into_parts();
    let index = {
        let mut requests = shared.requests();
        requests.push(Recorded {
            method: parts.method.to_string(),
            path: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            headers: parts.headers.clone(),
            body: Bytes::new(),
            turn: None,
            status: 0,
            sent: 0,
            ended: Ended::No,
        });
        requests.len() - 1
    };
    let note = Note { shared: Arc::clone(&shared), index };
    let query = parts.uri.query().unwrap_or("");
    let wanted = wanted(parts.method.as_str(), parts.uri.path(), query);

    let body = match Limited::new(incoming, MAX_REQUEST_BYTES).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(_) => return whole(413, &wanted.error(413, "Request exceeds the maximum size"), note),
    };
    shared.update(index, |r| r.body = body.clone());

    let key = shared.key.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some((status, message)) =
        key.and_then(|key| wanted.unauthorised(&parts.headers, query, &key))
    {
        return whole(status, &wanted.error(status, message), note);
    }
    if parts.headers.contains_key(header::UPGRADE) {
        return whole(426, &wanted.error(426, "WebSocket is not spoken here"), note);
    }
    let json: Value = match serde_json::from_slice(&body) {
        Ok(json) => json,
        Err(_) if parts.method == http::Method::GET => Value::Null,
        Err(e) => {
            return whole(
                400,
                &wanted.error(400, &format!("We could not parse the JSON body: {e}")),
                note,
            );
        }
    };
    if matches!(wanted, Wanted::Anthropic | Wanted::AnthropicCount)
        && !parts.headers.contains_key("anthropic-version")
    {
        return whole(400, &wanted.error(400, "anthropic-version: header is required"), note);
    }
    let read = match wanted {
        Wanted::Anthropic => anthropic::read(&json),
        Wanted::AnthropicCount => anthropic::count(&json),
        Wanted::Chat => chat::read(&json),
        Wanted::Responses => responses::read(&json),
        Wanted::Gemini { .. } => gemini::read(&json),
        Wanted::Models => return whole(200, &models(&parts.headers), note),
        Wanted::GeminiModels => {
            let model = json!({"name": "models/scripted", "supportedGenerationMethods": ["generateContent"]});
            return whole(200, &json!({"models": [model]}), note);
        }
        Wanted::Nothing => return whole(404, &wanted.error(404, "Not found"), note),
    };
    let number = match read {
        Ok(number) => number,
        Err(message) => return whole(400, &wanted.error(400, &message), note),
    };
    if wanted == Wanted::AnthropicCount {
        return whole(200, &json!({"input_tokens": tokens(body.len())}), note);
    }
    shared.update(index, |r| r.turn = Some(number));

    let offers_tools = json["tools"].as_array().is_some_and(|t| !t.is_empty());
    let turn = match &shared.script.without_tools {
        Some(turn) if !offers_tools => turn.clone(),
        _ => shared.script.turn(number),
    };
    let fault = due_fault(&shared, number, &turn);
    if fault.hang {
        // Dropped with the connection; the note then says that the client went away.
        std::future::pending::<()>().await;
    }
    if let Some(status) = fault.status {
        return faulty(status, &fault, &wanted.error(status, "scripted fault"), note);
    }
    let counted = (!fault.omit_usage).then(|| turn.counted(body.len()));
    let answer = match wanted {
        Wanted::Anthropic => anthropic::answer(&json, &turn, number, counted),
        Wanted::Chat => chat::answer(&json, &turn, number, counted),
        Wanted::Responses => responses::answer(&json, &turn, number, counted),
        Wanted::Gemini { model, stream, .. } => {
            gemini::answer(model, stream, &turn, number, counted)
        }
        Wanted::AnthropicCount | Wanted::Models | Wanted::GeminiModels | Wanted::Nothing => {
            unreachable!("answered above")
        }
    };
    let as_array = matches!(wanted, Wanted::Gemini { stream: true, sse: false, .. });
    let (kind, pieces) = match answer {
        Answer::Whole(document) => ("application/json", vec![Bytes::from(document.to_string())]),
        Answer::Events(events) if as_array => ("application/json", array(&events)),
        Answer::Events(events) => {
            ("text/event-stream", events.into_iter().map(Bytes::from).collect())
        }
    };
    note.answered(200);
    respond(200, kind, self::body(pieces, fault, note))
}

fn due_fault(shared: &Shared, number: usize, turn: &Turn) -> Fault {
    let Some(fault) = turn.fault.clone() else { return Fault::default() };
    let mut counts = shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
    let met = counts.entry(number).or_insert(0);
    *met += 1;
    if fault.times.is_some_and(|times| *met > times) { Fault::default() } else { fault }
}

/// Without `alt=sse` Gemini streams one JSON array.
fn array(events: &[String]) -> Vec<Bytes> {
    let documents = events.iter().map(|e| e.trim_start_matches("data: ").trim_end());
    let mut out: Vec<Bytes> = documents
        .enumerate()
        .map(|(at, d)| Bytes::from(format!("{}{d}", if at == 0 { "[" } else { ",\r\n" })))
        .collect();
    out.push(Bytes::from_static(b"]"));
    out
}

fn models(headers: &HeaderMap) -> Value {
    if headers.contains_key("anthropic-version") {
        let model = json!({
            "type": "model", "id": "scripted", "display_name": "Scripted", "created_at": "2026-01-01T00:00:00Z",
        });
        return json!({"data": [model], "has_more": false, "first_id": "scripted", "last_id": "scripted"});
    }
    let model = json!({"id": "scripted", "object": "model", "created": 1_790_000_000, "owned_by": "testkit"});
    json!({"object": "list", "data": [model]})
}

fn whole(status: u16, document: &Value, note: Note) -> Response<Body> {
    note.answered(status);
    let pieces = vec![Bytes::from(document.to_string())];
    respond(status, "application/json", body(pieces, Fault::default(), note))
}

fn faulty(status: u16, fault: &Fault, document: &Value, note: Note) -> Response<Body> {
    let text = fault.body.clone().unwrap_or_else(|| document.to_string());
    note.answered(status);
    let mut response =
        respond(status, "application/json", body(vec![Bytes::from(text)], Fault::default(), note));
    let headers = response.headers_mut();
    if let Some(seconds) = fault.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if let Some(value) = fault.location.as_deref().and_then(|l| l.parse().ok()) {
        headers.insert(header::LOCATION, value);
    }
    response
}

fn respond(status: u16, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}
