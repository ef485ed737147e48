//! A provider that refuses, redirects, breaks or is not there.

use cofferdam_broker::gateway::codes;
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Fault, ModelServer, Script, Turn};
use serde_json::json;

use crate::support::{DIALECTS, KEY, code, door, door_to, question};

async fn with_fault(
    dialect: Dialect,
    fault: Fault,
    stream: bool,
) -> (crate::support::Reply, ModelServer) {
    let server =
        ModelServer::start(Script::new([
            Turn::say("some words, and then some more words").with_fault(fault)
        ]))
        .unwrap();
    let door = door(&server, dialect, |_| {}).await;
    let reply = door.ask(stream, &question(dialect, stream, json!({}))).await;
    (reply, server)
}

#[tokio::test]
async fn the_providers_refusals_pass_with_their_retry_after() {
    for dialect in DIALECTS {
        for status in [400, 403, 429, 500, 503, 529] {
            let body = format!(r#"{{"error":{{"message":"scripted {status}"}}}}"#);
            let fault = Fault {
                status: Some(status),
                body: Some(body.clone()),
                retry_after: Some(7),
                ..Fault::default()
            };
            let (reply, server) = with_fault(dialect, fault, true).await;
            assert_eq!((reply.status, &reply.text), (status, &body));
            assert_eq!(reply.headers["retry-after"], "7");
            assert_eq!(server.requests().len(), 1, "retrying is the client's to do");
        }
    }
}

#[tokio::test]
async fn a_key_that_the_provider_refuses_is_told_without_its_text() {
    let quoting =
        format!(r#"{{"error":{{"message":"Incorrect API key provided: {}***cdef"}}}}"#, &KEY[..8]);
    let fault = Fault { status: Some(401), body: Some(quoting), ..Fault::default() };
    let (reply, _server) = with_fault(Dialect::OpenaiChat, fault, false).await;
    assert_eq!(
        (reply.status, code(Dialect::OpenaiChat, &reply.json())),
        (401, codes::KEY.to_owned())
    );
    assert!(!reply.text.contains(&KEY[..8]));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = ModelServer::start(Script::new([Turn::say("gotcha")])).unwrap();
    for status in [301, 302, 307, 308] {
        let fault = Fault {
            status: Some(status),
            location: Some(elsewhere.base_url()),
            ..Fault::default()
        };
        let (reply, server) = with_fault(Dialect::Anthropic, fault, false).await;
        assert_eq!(
            (reply.status, code(Dialect::Anthropic, &reply.json())),
            (502, codes::BROKEN.to_owned())
        );
        assert!(!reply.headers.contains_key("location"));
        assert_eq!(server.requests().len(), 1);
    }
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn a_broken_answer_breaks_and_says_why() {
    for dialect in DIALECTS {
        let cut = Fault { cut_after: Some(2), ..Fault::default() };
        let (reply, _server) = with_fault(dialect, cut, true).await;
        assert!(reply.broken && reply.text.contains(codes::BROKEN), "{dialect:?}: {}", reply.text);
    }
}

#[tokio::test]
async fn an_unreachable_provider_is_told_in_the_dialects_shape() {
    // A port that was free a moment ago and belongs to nobody now.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for dialect in DIALECTS {
        let door = door_to(&format!("http://{free}"), dialect, |_| {}).await;
        let reply = door.ask(false, &question(dialect, false, json!({}))).await;
        assert_eq!(
            (reply.status, code(dialect, &reply.json())),
            (502, codes::UNREACHABLE.to_owned())
        );
        let (_, refusal, usage) = door.only_call().await;
        assert_eq!(refusal.as_deref(), Some(codes::UNREACHABLE));
        assert_eq!(usage.tokens(), 0, "nothing left the host");
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_provider_closed_is_replaced() {
    let cut = Fault { cut_after: Some(0), times: Some(1), ..Fault::default() };
    let server = ModelServer::start(Script::new([Turn::say("hi").with_fault(cut)])).unwrap();
    let door = door(&server, Dialect::OpenaiChat, |_| {}).await;
    let body = question(Dialect::OpenaiChat, true, json!({}));
    door.ask(true, &body).await;
    for _ in 0..3 {
        assert_eq!(door.ask(true, &body).await.status, 200);
    }
    assert_eq!(server.connections(), 2, "a broken connection is not used again, a good one is");
}
