//! A gateway behind a loopback socket, a client of it, and requests in each dialect.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_broker::gateway::{GatewayConfig, ModelGateway};
use cofferdam_broker::log::MemoryLog;
use cofferdam_broker::{BrokerLog, Secret};
use cofferdam_run::fact::Fact;
use cofferdam_run::limits::{Budgets, Spend};
use cofferdam_run::spec::{Dialect, ModelSpec};
use cofferdam_testkit::model::ModelServer;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The key that must never be seen.
pub(crate) const KEY: &str = "sk-host-secret-0123456789abcdef";
/// What the guest has in its place.
pub(crate) const PLACEHOLDER: &str = "guest-placeholder";
pub(crate) const MODEL: &str = "scripted-1";

pub(crate) const DIALECTS: [Dialect; 4] =
    [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini];

/// A gateway that takes connections like the guest's.
pub(crate) struct Door {
    pub(crate) gateway: ModelGateway,
    pub(crate) log: Arc<MemoryLog>,
    pub(crate) address: SocketAddr,
    dialect: Dialect,
    accept: JoinHandle<()>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

pub(crate) fn config(dialect: Dialect, base_url: &str, log: &Arc<MemoryLog>) -> GatewayConfig {
    let model = ModelSpec {
        provider: "scripted".to_owned(),
        dialect,
        model: MODEL.to_owned(),
        base_url: base_url.to_owned(),
    };
    let log: Arc<dyn BrokerLog> = Arc::clone(log) as Arc<dyn BrokerLog>;
    let mut config =
        GatewayConfig::new(model, Secret::new(KEY.to_owned()), Budgets::default(), log);
    config.local = true;
    config
}

/// A gateway to `server`, adjusted.
pub(crate) async fn door(
    server: &ModelServer,
    dialect: Dialect,
    adjust: impl FnOnce(&mut GatewayConfig),
) -> Door {
    door_to(&server.base_url(), dialect, adjust).await
}

pub(crate) async fn door_to(
    base_url: &str,
    dialect: Dialect,
    adjust: impl FnOnce(&mut GatewayConfig),
) -> Door {
    let log = Arc::new(MemoryLog::default());
    let mut config = config(dialect, base_url, &log);
    adjust(&mut config);
    let gateway = ModelGateway::new(config).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = gateway.clone();
    let accept = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let gateway = served.clone();
            tokio::spawn(async move { gateway.serve(stream).await });
        }
    });
    Door { gateway, log, address, dialect, accept }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// The connection broke before the end.
    pub(crate) broken: bool,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }
}

/// An answer that is still arriving.
pub(crate) struct Arriving {
    pub(crate) status: u16,
    headers: HeaderMap,
    body: Incoming,
    text: Vec<u8>,
    sender: Option<hyper::client::conn::http1::SendRequest<Full<Bytes>>>,
    connection: JoinHandle<()>,
}

impl Arriving {
    /// Reads until the text so far contains `wanted`.
    pub(crate) async fn until(&mut self, wanted: &str) {
        while !String::from_utf8_lossy(&self.text).contains(wanted) {
            let frame = self.body.frame().await.expect("ended early").expect("broke early");
            self.text.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    pub(crate) async fn finish(mut self) -> Reply {
        let mut broken = false;
        while let Some(frame) = self.body.frame().await {
            match frame {
                Ok(frame) => self.text.extend_from_slice(&frame.into_data().unwrap()),
                Err(_) => broken = true,
            }
        }
        drop(self.sender.take());
        Reply {
            status: self.status,
            headers: self.headers,
            text: String::from_utf8(self.text).unwrap(),
            broken,
        }
    }

    /// Goes away without reading the rest.
    pub(crate) fn leave(self) {
        self.connection.abort();
    }
}

pub(crate) async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Arriving {
    #[expect(clippy::disallowed_methods, reason = "the client side of a test")]
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(async move {
        let _ = connection.await;
    });
    let response = sender.send_request(request).await.unwrap();
    Arriving {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: response.into_body(),
        text: Vec::new(),
        sender: Some(sender),
        connection,
    }
}

impl Door {
    /// Posts to the dialect's endpoint.
    pub(crate) async fn ask(&self, stream: bool, body: &Value) -> Reply {
        self.begin(stream, body).await.finish().await
    }

    pub(crate) async fn begin(&self, stream: bool, body: &Value) -> Arriving {
        send(self.address, post(self.dialect, stream, body)).await
    }

    pub(crate) async fn raw(&self, request: Request<Full<Bytes>>) -> Reply {
        send(self.address, request).await.finish().await
    }

    /// The facts once there are `count` of them.
    pub(crate) async fn facts(&self, count: usize) -> Vec<Fact> {
        loop {
            let facts = self.log.facts();
            if facts.len() >= count {
                return facts;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Usage of the only call.
    pub(crate) async fn only_call(&self) -> (u16, Option<String>, Spend) {
        let facts = self.facts(1).await;
        let [Fact::ModelCall { status, refusal, usage, .. }] = facts.as_slice() else {
            panic!("{facts:?}")
        };
        (*status, refusal.clone(), usage.clone())
    }
}

pub(crate) fn path(dialect: Dialect, stream: bool) -> String {
    match dialect {
        Dialect::Anthropic => "/v1/messages".to_owned(),
        Dialect::OpenaiChat => "/v1/chat/completions".to_owned(),
        Dialect::OpenaiResponses => "/v1/responses".to_owned(),
        Dialect::Gemini if stream => {
            format!("/v1beta/models/{MODEL}:streamGenerateContent?alt=sse")
        }
        Dialect::Gemini => format!("/v1beta/models/{MODEL}:generateContent"),
    }
}

/// A request as a client with a placeholder key makes it.
pub(crate) fn post(dialect: Dialect, stream: bool, body: &Value) -> Request<Full<Bytes>> {
    let request = Request::post(path(dialect, stream)).header("content-type", "application/json");
    let request = match dialect {
        Dialect::Anthropic => {
            request.header("x-api-key", PLACEHOLDER).header("anthropic-version", "2023-06-01")
        }
        Dialect::OpenaiChat | Dialect::OpenaiResponses => {
            request.header("authorization", format!("Bearer {PLACEHOLDER}"))
        }
        Dialect::Gemini => request.header("x-goog-api-key", PLACEHOLDER),
    };
    request.body(Full::from(body.to_string())).unwrap()
}

/// A conversation of one question, with `extra` fields.
pub(crate) fn question(dialect: Dialect, stream: bool, extra: Value) -> Value {
    let mut body = match dialect {
        Dialect::Anthropic => json!({
            "model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": "go"}],
        }),
        Dialect::OpenaiChat => {
            json!({"model": MODEL, "messages": [{"role": "user", "content": "go"}]})
        }
        Dialect::OpenaiResponses => {
            json!({"model": MODEL, "input": [{"role": "user", "content": "go"}]})
        }
        Dialect::Gemini => json!({"contents": [{"role": "user", "parts": [{"text": "go"}]}]}),
    };
    if dialect != Dialect::Gemini && stream {
        body["stream"] = json!(true);
    }
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The code in an error of the dialect's shape; panics when there is none.
pub(crate) fn code(dialect: Dialect, error: &Value) -> String {
    let place = match dialect {
        Dialect::Anthropic | Dialect::OpenaiChat | Dialect::OpenaiResponses => "/error/code",
        Dialect::Gemini => "/error/details/0/reason",
    };
    error
        .pointer(place)
        .and_then(Value::as_str)
        .unwrap_or_else(|| panic!("no code in {error}"))
        .to_owned()
}
