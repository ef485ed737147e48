//! What is admitted arrives, is answered byte for byte, and is counted.

use cofferdam_run::limits::Spend;
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Fault, ModelServer, Script, Turn, Usage};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::support::{DIALECTS, KEY, MODEL, PLACEHOLDER, door, post, question, send};

const USAGE: Usage = Usage { input: 100, cache_read: 40, cache_write: 0, output: 20, reasoning: 5 };

fn turn() -> Turn {
    let turn = Turn { say: "Reading, größer".into(), think: "hm".into(), ..Turn::default() };
    turn.and_call("read_file", json!({"path": "src/a.rs"})).with_usage(USAGE)
}

fn spent() -> Spend {
    Spend {
        input_tokens: 100,
        cache_read_tokens: 40,
        cache_write_tokens: 0,
        output_tokens: 25,
        calls_counted_by_size: 0,
        model_calls: 1,
        micro_usd: None,
    }
}

#[tokio::test]
async fn every_dialect_is_carried_byte_for_byte_and_counted() {
    for dialect in DIALECTS {
        for stream in [false, true] {
            let server = ModelServer::start(Script::new([turn()])).unwrap();
            let door = door(&server, dialect, |_| {}).await;
            // What the gateway makes of the request, so that the direct answer is comparable.
            let mut body = question(dialect, stream, json!({}));
            if dialect == Dialect::OpenaiChat && stream {
                body["stream_options"] = json!({"include_usage": true});
            }
            if dialect == Dialect::OpenaiResponses {
                body["store"] = json!(false);
            }
            let direct = send(server.address(), post(dialect, stream, &body)).await.finish().await;
            let carried = door.ask(stream, &body).await;
            assert_eq!(
                (carried.status, carried.broken),
                (200, false),
                "{dialect:?} {}",
                carried.text
            );
            assert_eq!(carried.text, direct.text, "{dialect:?} {stream}");
            assert_eq!(carried.headers["content-type"], direct.headers["content-type"]);
            assert_eq!(door.only_call().await, (200, None, spent()), "{dialect:?} {stream}");
            assert_eq!(door.gateway.spend(), spent());
        }
    }
}

#[tokio::test]
async fn the_hosts_key_is_added_and_the_guests_own_is_stripped() {
    for dialect in DIALECTS {
        let server = ModelServer::start(Script::new([turn()])).unwrap();
        server.require_key(KEY);
        let door = door(&server, dialect, |_| {}).await;
        let body = question(dialect, false, json!({}));
        let mut request = post(dialect, false, &body);
        for name in
            ["authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie", "x-forwarded-for"]
        {
            request.headers_mut().insert(name, PLACEHOLDER.parse().unwrap());
        }
        if dialect == Dialect::Gemini {
            *request.uri_mut() = format!("{}?key={PLACEHOLDER}", request.uri()).parse().unwrap();
        }
        let reply = door.raw(request).await;
        assert_eq!(reply.status, 200, "{dialect:?}: {}", reply.text);
        let seen = &server.requests()[0];
        assert!(!format!("{seen:?}").contains(PLACEHOLDER), "{seen:?}");
        let name = match dialect {
            Dialect::Anthropic => "x-api-key",
            Dialect::OpenaiChat | Dialect::OpenaiResponses => "authorization",
            Dialect::Gemini => "x-goog-api-key",
        };
        assert!(seen.header(name).ends_with(KEY));
        assert_eq!(seen.header("host"), server.address().to_string());
    }
}

#[tokio::test]
async fn a_whole_conversation_with_tools_goes_through() {
    let server = ModelServer::start(Script::new([turn(), Turn::say("Done.")])).unwrap();
    let door = door(&server, Dialect::Anthropic, |_| {}).await;
    let tools = json!([{"name": "read_file", "input_schema": {"type": "object", "z": 1, "a": 2}}]);
    let first =
        door.ask(false, &question(Dialect::Anthropic, false, json!({"tools": tools}))).await.json();
    let id = first["content"][2]["id"].clone();
    let result = json!([{"type": "tool_result", "tool_use_id": id, "content": "text"}]);
    let messages = json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": result},
    ]);
    let body = question(Dialect::Anthropic, false, json!({"tools": tools, "messages": messages}));
    let second = door.ask(false, &body).await.json();
    assert_eq!(second["content"][0]["text"], "Done.");
    assert_eq!(server.requests()[1].json(), body);
    assert_eq!(server.connections(), 1, "the connection to the provider is kept");
    assert_eq!(door.gateway.spend().model_calls, 2);
}

#[tokio::test]
async fn a_stream_arrives_while_it_is_made() {
    let stall = Fault { stall_after: Some(4), ..Fault::default() };
    for dialect in DIALECTS {
        let server =
            ModelServer::start(Script::new([
                Turn::say("a stream in many pieces of text").with_fault(stall.clone())
            ]));
        let server = server.unwrap();
        let door = door(&server, dialect, |_| {}).await;
        let mut arriving = door.begin(true, &question(dialect, true, json!({}))).await;
        // The provider stays silent after its fourth piece; what it said has arrived all the same.
        arriving.until("data: ").await;
        arriving.leave();
    }
}

#[tokio::test]
async fn usage_reporting_is_forced_and_storing_is_off() {
    let server = ModelServer::start(Script::new([turn()])).unwrap();
    let chat = door(&server, Dialect::OpenaiChat, |_| {}).await;
    let body = question(
        Dialect::OpenaiChat,
        true,
        json!({"store": true, "stream_options": {"include_usage": false}}),
    );
    assert_eq!(chat.ask(true, &body).await.status, 200);
    let responses = door(&server, Dialect::OpenaiResponses, |_| {}).await;
    let body = question(Dialect::OpenaiResponses, true, json!({"store": true}));
    assert_eq!(responses.ask(true, &body).await.status, 200);
    let requests = server.requests();
    assert_eq!(requests[0].json()["stream_options"]["include_usage"], true);
    assert_eq!(requests[0].json()["store"], false);
    assert_eq!(requests[1].json()["store"], false);
    assert_eq!(chat.gateway.spend(), spent());
}

#[tokio::test]
async fn counting_tokens_is_carried_and_costs_none() {
    let server = ModelServer::start(Script::new([turn()])).unwrap();
    let door = door(&server, Dialect::Anthropic, |_| {}).await;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "go"}]});
    let request = Request::post("/v1/messages/count_tokens?beta=true")
        .body(Full::from(body.to_string()))
        .unwrap();
    let reply = door.raw(request).await;
    assert!(reply.json()["input_tokens"].is_u64(), "{}", reply.text);
    assert_eq!(server.requests()[0].path, "/v1/messages/count_tokens?beta=true");
    let (_, _, usage) = door.only_call().await;
    assert_eq!((usage.tokens(), usage.model_calls), (0, 1));
}

#[tokio::test]
async fn the_list_of_models_is_the_runs_own_and_asks_nobody() {
    for (dialect, list, place) in [
        (Dialect::Anthropic, "/v1/models", "/data/0/id"),
        (Dialect::OpenaiChat, "/v1/models", "/data/0/id"),
        (Dialect::OpenaiResponses, "/v1/models", "/data/0/id"),
        (Dialect::Gemini, "/v1beta/models", "/models/0/name"),
    ] {
        let server = ModelServer::start(Script::default()).unwrap();
        let door = door(&server, dialect, |_| {}).await;
        let get = |path: String| Request::get(path).body(Full::default()).unwrap();
        let models = door.raw(get(list.to_owned())).await.json();
        let id = models.pointer(place).and_then(Value::as_str).unwrap();
        assert!(id.ends_with(MODEL));
        assert_eq!(door.raw(get(format!("{list}/{MODEL}"))).await.status, 200);
        assert_eq!(door.raw(get(format!("{list}/other"))).await.status, 404);
        assert!(server.requests().is_empty());
    }
}
