//! The key is nowhere but in the request to the provider.

use std::sync::Arc;

use cofferdam_broker::Secret;
use cofferdam_broker::gateway::ModelGateway;
use cofferdam_broker::log::MemoryLog;
use cofferdam_testkit::model::{Fault, ModelServer, Script, Turn};
use serde_json::json;

use crate::support::{DIALECTS, KEY, config, door, question};

#[tokio::test]
async fn a_provider_that_sends_the_key_back_does_not_get_it_to_the_guest() {
    for dialect in DIALECTS {
        for stream in [false, true] {
            for chunk_chars in [1, 5, 1000] {
                let turn = Turn {
                    say: format!("key {KEY} and {KEY}{KEY}"),
                    chunk_chars,
                    ..Turn::default()
                };
                let odd = Fault { split_bytes: Some(11), ..Fault::default() };
                let server = ModelServer::start(Script::new([turn.with_fault(odd)])).unwrap();
                let door = door(&server, dialect, |_| {}).await;
                let reply = door.ask(stream, &question(dialect, stream, json!({}))).await;
                assert_eq!(reply.status, 200);
                assert!(!reply.text.contains(KEY), "{dialect:?}");
                assert!(!format!("{:?}", door.facts(1).await).contains(KEY));
            }
        }
    }
}

#[tokio::test]
async fn error_bodies_and_headers_are_scrubbed() {
    for dialect in DIALECTS {
        let fault = Fault {
            status: Some(400),
            body: Some(format!("you sent {KEY}")),
            location: Some(format!("/?key={KEY}")),
            ..Fault::default()
        };
        let server = ModelServer::start(Script::new([Turn::default().with_fault(fault)])).unwrap();
        let door = door(&server, dialect, |_| {}).await;
        let reply = door.ask(false, &question(dialect, false, json!({}))).await;
        assert_eq!(reply.status, 400);
        assert!(!format!("{reply:?}").contains(KEY), "{reply:?}");
        assert!(reply.text.starts_with("you sent ****"));
    }
}

#[tokio::test]
async fn nothing_prints_the_key() {
    for dialect in DIALECTS {
        let log = Arc::new(MemoryLog::default());
        let config = config(dialect, "http://127.0.0.1:1", &log);
        assert!(!format!("{config:?}").contains(KEY));
        let gateway = ModelGateway::new(config).unwrap();
        assert!(!format!("{gateway:?}").contains(KEY));
    }
}

#[tokio::test]
async fn a_key_with_a_line_break_is_refused_without_being_shown() {
    for dialect in DIALECTS {
        let log = Arc::new(MemoryLog::default());
        let mut config = config(dialect, "http://127.0.0.1:1", &log);
        config.key = Secret::new(format!("{KEY}\r\nx-evil: 1"));
        let error = ModelGateway::new(config).unwrap_err();
        assert_eq!(error.code(), "MODEL-022");
        assert!(!format!("{error} {error:?}").contains(KEY));
    }
}
