//! Model calls through the gateway, beside the same calls straight to the scripted model server.
//!
//! No model is involved: the server answers at once from a script, so what is measured is only
//! what this project adds. Calls stream, as those of agents do.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_broker::Secret;
use cofferdam_broker::gateway::{GatewayConfig, ModelGateway};
use cofferdam_broker::log::MemoryLog;
use cofferdam_run::limits::Budgets;
use cofferdam_run::spec::{Dialect, ModelSpec};
use cofferdam_testkit::model::{ModelServer, Script, Turn};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::outside::{self, Watch};
use crate::report::{RowId, Table, Unit};

const MODEL: &str = "scripted-1";
const ANSWER_CHARS: usize = 2048;
/// Bytes of the conversation in each size of call.
const SIZES: [(&str, usize); 2] = [("1 KiB request", 1 << 10), ("256 KiB request", 256 << 10)];
const CALLS: usize = 200;
const ROUNDS: usize = 7;
/// Connections at once, and calls on each, in a sample of the rate.
const AT_ONCE: usize = 8;
const CALLS_EACH: usize = 25;

pub(crate) async fn measure() -> anyhow::Result<Table> {
    let mut answer = Turn::say("word ".repeat(ANSWER_CHARS / 5));
    answer.chunk_chars = 20;
    let server = Arc::new(ModelServer::start(Script::new([answer]))?);
    let model = front(move |stream| {
        let server = Arc::clone(&server);
        async move { server.serve(stream).await }
    })
    .await?;
    let gateway = gateway(&format!("http://{model}"))?;
    let door = front(move |stream| {
        let gateway = gateway.clone();
        async move { gateway.serve(stream).await }
    })
    .await?;
    let mut table = Table::new(
        "gateway",
        format!("streamed calls, {ANSWER_CHARS} characters in about 100 events back, no model"),
    );
    let ways = [model, door];
    for (size, bytes) in SIZES {
        let request = body(bytes);
        let rows = rows(&mut table, &format!("{size}, whole call"), Unit::Us);
        let mut clients = [client(ways[0]).await?, client(ways[1]).await?];
        for client in &mut clients {
            call(client, &request).await?;
        }
        for _ in 0..CALLS {
            for (client, row) in clients.iter_mut().zip(rows) {
                let watch = Watch::start();
                call(client, &request).await?;
                table.add(row, watch.us());
            }
        }
    }
    for (size, bytes) in SIZES {
        let request = body(bytes);
        let rows = rows(&mut table, &format!("{size}, {AT_ONCE} at once"), Unit::PerS);
        for _ in 0..ROUNDS {
            for (way, row) in ways.into_iter().zip(rows) {
                table.add(row, rate(way, &request).await?);
            }
        }
    }
    Ok(table)
}

fn rows(table: &mut Table, what: &str, unit: Unit) -> [RowId; 2] {
    let direct = table.row(format!("direct, {what}"), unit);
    [direct, table.beside(direct, format!("gateway, {what}"), unit)]
}

fn gateway(base_url: &str) -> anyhow::Result<ModelGateway> {
    let model = ModelSpec {
        provider: "scripted".to_owned(),
        dialect: Dialect::Anthropic,
        model: MODEL.to_owned(),
        base_url: base_url.to_owned(),
    };
    let budgets =
        Budgets { tokens: u64::MAX, model_calls: u64::MAX, micro_usd: None, ..Budgets::default() };
    let key = Secret::new("bench-key-of-no-value".to_owned());
    let mut config = GatewayConfig::new(model, key, budgets, Arc::new(MemoryLog::default()));
    config.local = true;
    Ok(ModelGateway::new(config)?)
}

/// A loopback listener. Small writes are sent at once, as providers do and the guest's door does:
/// otherwise delayed acknowledgements, 40 ms each, would be all that is measured.
async fn front<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> anyhow::Result<SocketAddr>
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let at = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if stream.set_nodelay(true).is_ok() {
                tokio::spawn(serve(stream));
            }
        }
    });
    Ok(at)
}

fn body(bytes: usize) -> Bytes {
    let text = "A line of a conversation that goes on. ".repeat(bytes / 39 + 1);
    let body = json!({
        "model": MODEL, "max_tokens": 1000, "stream": true,
        "messages": [{"role": "user", "content": text}],
    });
    Bytes::from(body.to_string())
}

type Client = SendRequest<Full<Bytes>>;

/// A connection that is kept for many calls.
async fn client(to: SocketAddr) -> anyhow::Result<Client> {
    let stream = outside::connect(to).await?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// One call, read to its end.
async fn call(client: &mut Client, body: &Bytes) -> anyhow::Result<()> {
    let request = Request::post("/v1/messages")
        .header("host", "model")
        .header("content-type", "application/json")
        .header("x-api-key", "placeholder")
        .header("anthropic-version", "2023-06-01")
        .body(Full::new(body.clone()))?;
    client.ready().await?;
    let response = client.send_request(request).await?;
    let status = response.status();
    let answer = response.into_body().collect().await?.to_bytes();
    anyhow::ensure!(
        status.is_success() && answer.len() > ANSWER_CHARS,
        "{status}: {}",
        String::from_utf8_lossy(&answer)
    );
    Ok(())
}

/// Calls per second over [`AT_ONCE`] connections.
async fn rate(to: SocketAddr, body: &Bytes) -> anyhow::Result<f64> {
    let mut clients = Vec::new();
    for _ in 0..AT_ONCE {
        clients.push(client(to).await?);
    }
    let watch = Watch::start();
    let mut work = JoinSet::new();
    for mut client in clients {
        let body = body.clone();
        work.spawn(async move {
            for _ in 0..CALLS_EACH {
                call(&mut client, &body).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = work.join_next().await {
        done??;
    }
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let rate = (AT_ONCE * CALLS_EACH) as f64 / watch.seconds();
    Ok(rate)
}
