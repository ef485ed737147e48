//! Whoever ends a call ends all of it: the guest, the supervisor, or time.

use std::time::Duration;

use cofferdam_broker::gateway::codes;
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Ended, Fault, ModelServer, Script, Turn};
use serde_json::json;

use crate::support::{DIALECTS, code, door, post, question, send};

#[tokio::test]
async fn a_guest_that_leaves_within_a_stream_cancels_the_call() {
    for dialect in DIALECTS {
        let stall = Fault { stall_after: Some(2), ..Fault::default() };
        let server = ModelServer::start(Script::new([Turn::say(
            "some words to stream, and then some more",
        )
        .with_fault(stall)]))
        .unwrap();
        let door = door(&server, dialect, |_| {}).await;
        let mut arriving = door.begin(true, &question(dialect, true, json!({}))).await;
        arriving.until("data: ").await;
        arriving.leave();
        let requests = server.until(|r| r[0].ended != Ended::No).await;
        assert_eq!(requests[0].ended, Ended::ClientGone);
        // Nobody knows what it cost: what was reserved is spent.
        let (status, _, usage) = door.only_call().await;
        assert_eq!((status, usage.calls_counted_by_size), (200, 1));
        assert!(usage.output_tokens >= 1_000, "{usage:?}");
    }
}

#[tokio::test]
async fn a_guest_that_leaves_before_the_answer_cancels_the_call() {
    let hang = Fault { hang: true, ..Fault::default() };
    let server = ModelServer::start(Script::new([Turn::default().with_fault(hang)])).unwrap();
    let door = door(&server, Dialect::Anthropic, |_| {}).await;
    let request = post(Dialect::Anthropic, false, &question(Dialect::Anthropic, false, json!({})));
    let client = tokio::spawn(send(door.address, request));
    server.until(|r| r.len() == 1 && r[0].turn.is_some()).await;
    client.abort();
    let requests = server.until(|r| r[0].ended != Ended::No).await;
    assert_eq!(requests[0].ended, Ended::ClientGone);
    let (status, _, usage) = door.only_call().await;
    assert_eq!((status, usage.calls_counted_by_size), (499, 1));
}

#[tokio::test]
async fn a_client_that_leaves_after_the_last_event_pays_what_was_reported() {
    // The count arrives, the stream stays open: many clients leave right then.
    let server = ModelServer::start(Script::new([
        Turn::say("hi").with_fault(Fault { stall_after: Some(7), ..Fault::default() })
    ]))
    .unwrap();
    let door = door(&server, Dialect::Anthropic, |_| {}).await;
    let mut arriving = door.begin(true, &question(Dialect::Anthropic, true, json!({}))).await;
    arriving.until("message_stop").await;
    arriving.leave();
    let (_, _, usage) = door.only_call().await;
    assert_eq!((usage.calls_counted_by_size, usage.output_tokens), (0, 1));
}

#[tokio::test]
async fn cut_ends_streams_at_once_and_admits_nothing_more() {
    let stall = Fault { stall_after: Some(2), ..Fault::default() };
    let server =
        ModelServer::start(Script::new([
            Turn::say("some words to stream, and then some more").with_fault(stall)
        ]))
        .unwrap();
    let door = door(&server, Dialect::OpenaiChat, |_| {}).await;
    let mut arriving = door.begin(true, &question(Dialect::OpenaiChat, true, json!({}))).await;
    arriving.until("data: ").await;
    door.gateway.cut();
    assert!(arriving.finish().await.broken);
    assert_eq!(server.until(|r| r[0].ended != Ended::No).await[0].ended, Ended::ClientGone);
    door.gateway.settled().await;
    assert_eq!(door.log.facts().len(), 1, "once all has settled each call has its fact");
    assert_eq!(door.gateway.spend().calls_counted_by_size, 1);
    door.gateway.cut();
    // A connection after the end is closed without an answer.
    #[expect(clippy::disallowed_methods, reason = "the client side of a test")]
    let mut late = tokio::net::TcpStream::connect(door.address).await.unwrap();
    let mut rest = Vec::new();
    tokio::io::AsyncWriteExt::write_all(&mut late, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .ok();
    tokio::io::AsyncReadExt::read_to_end(&mut late, &mut rest).await.ok();
    assert!(rest.is_empty());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn silence_is_bounded_and_bytes_start_the_bound_anew() {
    // Slower than the bound as a whole, never slower between two pieces.
    let slow = Fault { delay_ms: 100, ..Fault::default() };
    let turn =
        Turn { say: "some words to stream slowly".into(), chunk_chars: 2, ..Turn::default() };
    let server = ModelServer::start(Script::new([turn.with_fault(slow)])).unwrap();
    let idle = Duration::from_millis(1_500);
    let patient =
        door(&server, Dialect::Anthropic, |config| config.timeouts.answer_idle = idle).await;
    let reply = patient.ask(true, &question(Dialect::Anthropic, true, json!({}))).await;
    assert!(!reply.broken && reply.text.contains("message_stop"));

    let stall = Fault { stall_after: Some(2), ..Fault::default() };
    let silent =
        ModelServer::start(Script::new([
            Turn::say("some words, and then some more words").with_fault(stall)
        ]))
        .unwrap();
    let door = door(&silent, Dialect::Anthropic, |config| config.timeouts.answer_idle = idle).await;
    let reply = door.ask(true, &question(Dialect::Anthropic, true, json!({}))).await;
    assert!(reply.broken && reply.text.contains(codes::SILENT), "{}", reply.text);
}

#[tokio::test]
async fn a_provider_that_never_answers_is_given_up() {
    let hang = Fault { hang: true, ..Fault::default() };
    let server = ModelServer::start(Script::new([Turn::default().with_fault(hang)])).unwrap();
    let door = door(&server, Dialect::Gemini, |config| {
        config.timeouts.answer_head = Duration::from_millis(50);
    })
    .await;
    let reply = door.ask(false, &question(Dialect::Gemini, false, json!({}))).await;
    assert_eq!(
        (reply.status, code(Dialect::Gemini, &reply.json())),
        (504, codes::SILENT.to_owned())
    );
    let (_, _, usage) = door.only_call().await;
    assert_eq!(usage.calls_counted_by_size, 1, "it may have been billed");
}
