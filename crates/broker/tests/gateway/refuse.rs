//! What is not admitted never reaches the provider, and is told in the provider's own shape.

use cofferdam_broker::gateway::limits::{
    MAX_CALLS_IN_FLIGHT, MAX_CONNECTIONS, MAX_REFUSAL_FACTS, MAX_REQUEST_BYTES,
};
use cofferdam_broker::gateway::{GatewayPolicy, codes};
use cofferdam_run::fact::Fact;
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Fault, ModelServer, Script, Turn};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::support::{DIALECTS, code, door, post, question};

/// In each dialect: something that the provider would do outside the sandbox, and its harmless twin.
fn twins(dialect: Dialect) -> Vec<(Value, Value, &'static str)> {
    match dialect {
        Dialect::Anthropic => vec![
            (
                json!({"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}),
                json!({"tools": [{"name": "web_fetch", "input_schema": {}}]}),
                codes::TOOL,
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x"}}]}]}),
                json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}]}]}),
                codes::CONTENT,
            ),
            (json!({"mcp_servers": []}), json!({"metadata": {}}), codes::TOOL),
            (json!({"model": "other"}), json!({}), codes::MODEL),
        ],
        Dialect::OpenaiChat => vec![
            (json!({"web_search_options": {}}), json!({"temperature": 1}), codes::TOOL),
            (json!({"n": 4}), json!({"n": 1}), codes::FIELD),
            (json!({"model": "other"}), json!({}), codes::MODEL),
        ],
        Dialect::OpenaiResponses => vec![
            (
                json!({"tools": [{"type": "mcp"}]}),
                json!({"tools": [{"type": "function", "name": "mcp"}]}),
                codes::TOOL,
            ),
            (json!({"background": true}), json!({"background": false}), codes::STORED),
            (
                json!({"previous_response_id": "resp_1"}),
                json!({"previous_response_id": null}),
                codes::STORED,
            ),
            (json!({"model": "other"}), json!({}), codes::MODEL),
        ],
        Dialect::Gemini => vec![
            (
                json!({"tools": [{"google_search": {}}]}),
                json!({"tools": [{"function_declarations": []}]}),
                codes::TOOL,
            ),
            (
                json!({"cachedContent": "cachedContents/1"}),
                json!({"safetySettings": []}),
                codes::STORED,
            ),
        ],
    }
}

#[tokio::test]
async fn each_refusal_stops_at_the_gateway_and_its_twin_passes() {
    for dialect in DIALECTS {
        let server = ModelServer::start(Script::new([Turn::say("hi")])).unwrap();
        let door = door(&server, dialect, |_| {}).await;
        for (refused, twin, expect) in twins(dialect) {
            let before = server.requests().len();
            let reply = door.ask(false, &question(dialect, false, refused.clone())).await;
            assert!(reply.status >= 400, "{refused}");
            assert_eq!(code(dialect, &reply.json()), expect, "{refused}");
            assert!(reply.json()["error"]["message"].as_str().unwrap().contains(expect));
            assert_eq!(reply.headers["x-should-retry"], "false");
            assert_eq!(server.requests().len(), before, "{refused} reached the provider");
            let reply = door.ask(false, &question(dialect, false, twin.clone())).await;
            assert_eq!(reply.status, 200, "{twin}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn unknown_endpoints_are_refused_whatever_the_provider_has() {
    for dialect in DIALECTS {
        let server = ModelServer::start(Script::new([Turn::say("hi")])).unwrap();
        let door = door(&server, dialect, |_| {}).await;
        for path in [
            "/v1/files",
            "/v1/messages/batches",
            "/v1/batches",
            "/v1/embeddings",
            "/",
            "/v1beta/cachedContents",
        ] {
            let reply = door.raw(Request::post(path).body(Full::from("{}")).unwrap()).await;
            assert_eq!(
                (reply.status, code(dialect, &reply.json())),
                (404, codes::ENDPOINT.to_owned())
            );
        }
        // Another dialect's endpoint, which this very server would answer.
        let other =
            if dialect == Dialect::OpenaiChat { Dialect::Anthropic } else { Dialect::OpenaiChat };
        let reply = door.raw(post(other, false, &question(other, false, json!({})))).await;
        assert_eq!(code(dialect, &reply.json()), codes::ENDPOINT);
        assert!(server.requests().is_empty());
    }
}

#[tokio::test]
async fn a_websocket_is_answered_426_at_once() {
    let server = ModelServer::start(Script::default()).unwrap();
    let door = door(&server, Dialect::OpenaiResponses, |_| {}).await;
    let request = Request::get("/v1/responses")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let reply = door.raw(request.body(Full::default()).unwrap()).await;
    assert_eq!(
        (reply.status, code(Dialect::OpenaiResponses, &reply.json())),
        (426, codes::UPGRADE.to_owned())
    );
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn bodies_that_can_be_read_in_two_ways_are_refused() {
    let server = ModelServer::start(Script::new([Turn::say("hi")])).unwrap();
    let door = door(&server, Dialect::OpenaiChat, |_| {}).await;
    let deep =
        format!(r#"{{"model":"scripted-1","messages":{}{}}}"#, "[".repeat(500), "]".repeat(500));
    for body in [
        r#"{"model":"scripted-1","model":"other","messages":[]}"#,
        r#"{"model":"scripted-1","tools":[],"\u0074ools":[{"type":"mcp"}],"messages":[]}"#,
        r#"{"model":"scripted-1","messages":[]} {"model":"other"}"#,
        r#"["model"]"#,
        "",
        &deep,
    ] {
        let request =
            Request::post("/v1/chat/completions").body(Full::from(body.to_owned())).unwrap();
        let reply = door.raw(request).await;
        assert_eq!(
            (reply.status, code(Dialect::OpenaiChat, &reply.json())),
            (400, codes::MALFORMED.to_owned())
        );
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn an_oversized_body_is_refused_by_its_announced_length() {
    let server = ModelServer::start(Script::default()).unwrap();
    let door = door(&server, Dialect::OpenaiChat, |_| {}).await;
    let request = Request::post("/v1/chat/completions")
        .body(Full::from(vec![b' '; MAX_REQUEST_BYTES + 1]))
        .unwrap();
    let reply = door.raw(request).await;
    assert_eq!(
        (reply.status, code(Dialect::OpenaiChat, &reply.json())),
        (413, codes::TOO_LARGE.to_owned())
    );
}

#[tokio::test]
async fn the_operators_policy_opens_by_name() {
    let server = ModelServer::start(Script::new([Turn::say("hi")])).unwrap();
    let policy = GatewayPolicy {
        types: ["web_search_20250305".to_owned()].into(),
        models: ["side-1".to_owned()].into(),
        ..GatewayPolicy::default()
    };
    let door = door(&server, Dialect::Anthropic, |config| config.policy = policy).await;
    let open = json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]});
    assert_eq!(door.ask(false, &question(Dialect::Anthropic, false, open)).await.status, 200);
    let side = question(Dialect::Anthropic, false, json!({"model": "side-1"}));
    assert_eq!(door.ask(false, &side).await.status, 200);
    let closed = json!({"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]});
    assert_eq!(door.ask(false, &question(Dialect::Anthropic, false, closed)).await.status, 403);
}

#[tokio::test]
async fn refusals_are_recorded_but_cannot_flood_the_record() {
    let server = ModelServer::start(Script::default()).unwrap();
    let door = door(&server, Dialect::Anthropic, |_| {}).await;
    let over = 7;
    for _ in 0..MAX_REFUSAL_FACTS + over {
        door.raw(Request::post("/v1/files?key=secret%0a").body(Full::default()).unwrap()).await;
    }
    door.gateway.cut();
    let facts = door.log.facts();
    assert_eq!(facts.len() as u64, MAX_REFUSAL_FACTS + 1);
    let Fact::ModelCall { request, status, refusal, .. } = &facts[0] else { panic!() };
    assert_eq!((request.as_str(), *status), ("POST /v1/files", 404));
    assert_eq!(refusal.as_deref(), Some(codes::ENDPOINT));
    assert_eq!(facts.last(), Some(&Fact::Truncated { kind: "model_call".to_owned(), count: over }));
}

#[tokio::test]
async fn calls_in_flight_are_bounded() {
    let stall = Fault { stall_after: Some(1), ..Fault::default() };
    let server = ModelServer::start(Script::new([Turn::say("hi").with_fault(stall)])).unwrap();
    let door = door(&server, Dialect::Anthropic, |_| {}).await;
    let body = question(Dialect::Anthropic, true, json!({}));
    let mut open = Vec::new();
    for _ in 0..MAX_CALLS_IN_FLIGHT {
        open.push(door.begin(true, &body).await);
    }
    let reply = door.ask(true, &body).await;
    assert_eq!(
        (reply.status, code(Dialect::Anthropic, &reply.json())),
        (429, codes::BUSY.to_owned())
    );
    assert_eq!(reply.headers["retry-after"], "1");
    open.pop().unwrap().leave();
    door.facts(2).await;
    assert_eq!(door.begin(true, &body).await.status, 200, "one that has ended makes room");
}

#[tokio::test]
async fn connections_are_bounded() {
    let server = ModelServer::start(Script::default()).unwrap();
    let door = door(&server, Dialect::Anthropic, |_| {}).await;
    let mut open = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let (guest, host) = tokio::io::duplex(64);
        let gateway = door.gateway.clone();
        let mut serving = Box::pin(async move { gateway.serve(host).await });
        assert!(futures::poll!(serving.as_mut()).is_pending());
        open.push((guest, serving));
    }
    let (_guest, host) = tokio::io::duplex(64);
    door.gateway.serve(host).await;
    open.pop();
    let (_guest, host) = tokio::io::duplex(64);
    let mut serving = Box::pin(door.gateway.serve(host));
    assert!(futures::poll!(serving.as_mut()).is_pending(), "one that has ended makes room");
}
