//! Failures that users of comparable systems met, each as a test that carries its number in
//! `docs/failure-cases.md`.

use std::time::Duration;

use bytes::Bytes;
use cofferdam_broker::Secret;
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Fault, ModelServer, Script, Turn};
use http::Request;
use http_body_util::Full;
use serde_json::json;

use crate::support::{DIALECTS, KEY, PLACEHOLDER, door, path, post, question};

/// Whatever the guest calls the host, key and request go to the configured provider.
#[tokio::test]
async fn s11_the_key_goes_to_the_configured_provider_whatever_host_is_named() {
    for dialect in DIALECTS {
        let server = ModelServer::start(Script::new([Turn::say("hi")])).unwrap();
        server.require_key(KEY);
        let door = door(&server, dialect, |_| {}).await;
        let evil = ModelServer::start(Script::new([Turn::say("hi")])).unwrap();
        let body = question(dialect, false, json!({}));
        let mut request = post(dialect, false, &body);
        request.headers_mut().insert("host", evil.address().to_string().parse().unwrap());
        for name in ["x-forwarded-host", "forwarded", "x-original-host"] {
            request.headers_mut().insert(name, "host=evil.example".parse().unwrap());
        }
        let reply = door.raw(request).await;
        assert_eq!(reply.status, 200, "{dialect:?}: {}", reply.text);
        assert!(evil.requests().is_empty());
        let seen = &server.requests()[0];
        assert_eq!(seen.header("host"), server.address().to_string());
        assert!(!format!("{seen:?}").contains("evil.example"), "{seen:?}");
    }
}

#[tokio::test]
async fn s13_an_endpoint_behind_dots_or_escapes_is_no_endpoint() {
    for dialect in DIALECTS {
        let server = ModelServer::start(Script::new([Turn::say("hi")])).unwrap();
        let door = door(&server, dialect, |_| {}).await;
        let good = path(dialect, false);
        for bad in [
            format!("/v1/files/..{good}"),
            format!("/v1/%2e%2e{good}"),
            good.replacen("/v1", "/v1/.", 1),
            good.replacen("/v1", "//v1", 1),
            good.replacen("/v1", "/%76%31", 1),
            format!("{good}/../files"),
            format!("{good}%2f..%2ffiles"),
            format!("{good};x"),
        ] {
            let body = question(dialect, false, json!({})).to_string();
            let request = Request::post(&bad)
                .header("content-type", "application/json")
                .body(Full::from(Bytes::from(body)))
                .unwrap();
            let reply = door.raw(request).await;
            assert!(reply.status >= 400, "{dialect:?} {bad}: {}", reply.text);
        }
        assert!(server.requests().is_empty(), "{dialect:?}: {:?}", server.requests());
    }
}

#[tokio::test]
async fn s26_a_model_stream_lives_while_bytes_flow_and_ends_at_its_total() {
    let slow = Fault { delay_ms: 100, ..Fault::default() };
    let turn =
        Turn { say: "many words to stream slowly ".repeat(9), chunk_chars: 2, ..Turn::default() };
    let server = ModelServer::start(Script::new([turn.with_fault(slow)])).unwrap();
    let begin = tokio::time::Instant::now();
    let door = door(&server, Dialect::Anthropic, |config| {
        config.timeouts.answer_idle = Duration::from_millis(1_000);
        config.timeouts.call = Duration::from_millis(3_000);
    })
    .await;
    let reply = door.ask(true, &question(Dialect::Anthropic, true, json!({}))).await;
    // Alive for three times the idle bound, since each piece starts it anew.
    assert!(begin.elapsed() >= Duration::from_millis(3_000));
    assert!(reply.broken && reply.text.contains("content_block_delta"), "{}", reply.text);
    assert!(!reply.text.contains("message_stop"));
}

/// A placeholder that nobody replaces fails at the gateway's provider as a request without a key; the
/// placeholder itself never leaves.
#[tokio::test]
async fn s37_a_placeholder_never_stands_where_a_key_would() {
    for dialect in DIALECTS {
        let server = ModelServer::start(Script::new([Turn::say("hi")])).unwrap();
        server.require_key(KEY);
        // A gateway that was given no key at all.
        let door = door(&server, dialect, |config| config.key = Secret::new(String::new())).await;
        let mut request = post(dialect, false, &question(dialect, false, json!({})));
        for name in ["authorization", "x-api-key", "x-goog-api-key", "api-key"] {
            request.headers_mut().insert(name, PLACEHOLDER.parse().unwrap());
        }
        let reply = door.raw(request).await;
        assert!(reply.status >= 400, "{dialect:?}: {}", reply.text);
        for seen in server.requests() {
            assert!(!format!("{seen:?}").contains(PLACEHOLDER), "{seen:?}");
        }
    }
}
