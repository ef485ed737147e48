//! What goes wrong on the way to the model, and what the model gets wrong.

use std::time::Duration;

use cofferdam_agent::EventKind;
use cofferdam_agent::builtin::Tuning;
use cofferdam_agent::limits;
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Fault, Turn};
use serde_json::{Value, json};

use crate::fixture::{DIALECTS, Fixture, finish, raw, shell};

fn first(turn: Turn, fault: Fault) -> [Turn; 2] {
    [turn.with_fault(fault), finish("done")]
}

fn status(status: u16, times: Option<u32>) -> Fault {
    Fault { status: Some(status), times, ..Fault::default() }
}

#[tokio::test]
async fn a_rate_limit_is_waited_out_as_long_as_it_says() {
    let runs = DIALECTS.map(async |dialect| {
        let fault = Fault { retry_after: Some(1), ..status(429, Some(1)) };
        let f = Fixture::new(dialect, first(shell("true"), fault));
        let ran = f.run().await;
        assert_eq!(ran.report(), "done", "{dialect:?}");
        let notes = ran.texts(EventKind::Message);
        assert!(notes[0].contains("next attempt in 1000 ms"), "{dialect:?}: {notes:?}");
        assert_eq!(f.server.requests().len(), 3);
    });
    futures::future::join_all(runs).await;
}

#[tokio::test]
async fn a_rate_limit_longer_than_the_budget_is_not_waited_out() {
    let fault = Fault { retry_after: Some(3_600), ..status(429, None) };
    let f = Fixture::new(Dialect::Anthropic, first(shell("true"), fault));
    let ran = f.run().await;
    let (code, message) = ran.failure();
    assert_eq!(code, "AGENT-005");
    assert!(message.contains("rate_limit_error: scripted fault"), "{message}");
    assert_eq!(f.server.requests().len(), 1);
}

#[tokio::test]
async fn a_rate_limit_that_asks_for_no_wait_is_bounded_all_the_same() {
    for code in [429, 503] {
        let fault = Fault { retry_after: Some(0), ..status(code, None) };
        let mut f = Fixture::new(Dialect::Anthropic, first(shell("true"), fault));
        let ms = Duration::from_millis;
        f.tuning = Tuning::with_times(ms(5), ms(60_000), ms(60_000), ms(50));
        let ran = f.run().await;
        let (code, requests) = match code {
            429 => ("AGENT-005", 11),
            _ => ("AGENT-004", limits::MODEL_ATTEMPTS_MAX as usize),
        };
        assert_eq!((ran.failure().0, f.server.requests().len()), (code, requests));
    }
}

#[tokio::test]
async fn rate_limits_do_not_use_up_attempts() {
    let times = limits::MODEL_ATTEMPTS_MAX + 3;
    let f = Fixture::new(Dialect::OpenaiChat, first(shell("true"), status(529, Some(times))));
    assert_eq!(f.run().await.report(), "done");
}

#[tokio::test]
async fn a_storm_of_server_errors_ends_the_run_after_the_attempts() {
    for dialect in DIALECTS {
        let f = Fixture::new(dialect, first(shell("true"), status(500, None)));
        let ran = f.run().await;
        let (code, message) = ran.failure();
        assert_eq!(code, "AGENT-004", "{dialect:?}");
        assert!(message.contains("HTTP 500") && message.contains("scripted fault"), "{message}");
        assert_eq!(f.server.requests().len(), limits::MODEL_ATTEMPTS_MAX as usize);
        assert_eq!(ran.outcome.exit_code(), 1);
        assert_eq!(ran.texts(EventKind::Error).len(), 1);
    }
}

#[tokio::test]
async fn a_server_error_that_passes_is_forgotten() {
    let times = limits::MODEL_ATTEMPTS_MAX - 1;
    let f = Fixture::new(Dialect::Gemini, first(shell("true"), status(503, Some(times))));
    assert_eq!(f.run().await.report(), "done");
}

#[tokio::test]
async fn a_refusal_is_final_and_shown() {
    for dialect in DIALECTS {
        let f = Fixture::new(dialect, first(shell("true"), status(403, None)));
        let ran = f.run().await;
        let (code, message) = ran.failure();
        assert_eq!(code, "AGENT-003", "{dialect:?}");
        assert!(message.contains("HTTP 403") && message.contains("scripted fault"), "{message}");
        assert_eq!(f.server.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_refusal_of_the_gateway_is_final_whatever_its_status() {
    for code in [403, 429, 502] {
        let body =
            json!({"error": {"code": "MODEL-010", "message": "the token budget is used up"}});
        let fault = Fault { body: Some(body.to_string()), ..status(code, None) };
        let f = Fixture::new(Dialect::OpenaiResponses, first(shell("true"), fault));
        let ran = f.run().await;
        assert_eq!(ran.failure().0, "MODEL-010");
        assert!(ran.failure().1.contains("the token budget is used up"));
        assert_eq!(f.server.requests().len(), 1);
    }
}

#[tokio::test]
async fn nobody_at_the_model_door_ends_the_run_after_the_attempts() {
    let mut f = Fixture::new(Dialect::Anthropic, []);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    f.config.base_url = format!("http://{closed}");
    let ran = f.run().await;
    assert_eq!(ran.failure().0, "AGENT-004");
    assert!(ran.failure().1.contains("cannot reach the model door"));
}

#[tokio::test]
async fn a_stream_that_is_cut_is_asked_for_again_and_nothing_of_it_is_carried_out() {
    for dialect in DIALECTS {
        let turn = shell("echo x >> ran");
        let fault = Fault { cut_after: Some(2), times: Some(2), ..Fault::default() };
        let f = Fixture::new(dialect, first(turn, fault));
        let ran = f.run().await;
        // Gemini sends a call and the end of its turn in one piece, so that a cut after it is none.
        assert_eq!(ran.report(), "done", "{dialect:?}");
        assert_eq!(std::fs::read_to_string(f.dir.path().join("ran")).unwrap(), "x\n");
    }
}

#[tokio::test]
async fn a_stream_that_is_always_cut_ends_the_run() {
    let fault = Fault { cut_after: Some(1), ..Fault::default() };
    for dialect in DIALECTS {
        let f =
            Fixture::new(dialect, first(Turn::say("A long answer. ".repeat(20)), fault.clone()));
        let ran = f.run().await;
        assert_eq!(ran.failure().0, "AGENT-004", "{dialect:?}");
        assert!(ran.failure().1.contains("cut off"), "{}", ran.failure().1);
    }
}

fn times(idle_ms: u64, total_ms: u64) -> Tuning {
    let ms = Duration::from_millis;
    Tuning::with_times(ms(1), ms(idle_ms), ms(total_ms), ms(60_000))
}

#[tokio::test]
async fn a_silent_model_is_given_up_after_the_idle_time() {
    let hang = Fault { hang: true, times: Some(1), ..Fault::default() };
    let stall = Fault { stall_after: Some(2), times: Some(1), ..Fault::default() };
    for (fault, words) in [(hang, "no answer for 300 ms"), (stall, "no byte for 300 ms")] {
        let turn = Turn::say("A long answer. ".repeat(9))
            .and_call("run_shell", json!({"command": "true"}));
        let mut f = Fixture::new(Dialect::Anthropic, first(turn, fault));
        f.tuning = times(300, 60_000);
        let ran = f.run().await;
        assert_eq!(ran.report(), "done");
        assert!(ran.texts(EventKind::Message)[0].contains(words), "{:?}", ran.events);
    }
}

#[tokio::test]
async fn a_model_that_dawdles_for_ever_is_given_up_after_the_total_time() {
    let slow = Fault { delay_ms: 20, times: Some(1), ..Fault::default() };
    let mut f = Fixture::new(Dialect::OpenaiChat, first(Turn::say("x".repeat(40_000)), slow));
    f.config.max_steps = 1;
    f.tuning = times(60_000, 400);
    let ran = f.run().await;
    let notes = ran.texts(EventKind::Message);
    assert!(notes[0].contains("no complete answer in 400 ms"), "{notes:?}");
}

#[tokio::test]
async fn an_answer_without_end_is_dropped_at_its_bound() {
    let line = format!("data: {}\n\n", "x".repeat(limits::STREAM_BYTES_MAX + 1));
    let f = Fixture::new(Dialect::OpenaiChat, [raw(line)]);
    let ran = f.run().await;
    assert_eq!(ran.failure().0, "AGENT-004");
    assert!(ran.failure().1.contains("the answer is over"), "{}", ran.failure().1);
}

fn events(events: &[Value]) -> Turn {
    raw(events.iter().map(|e| format!("data: {e}\n\n")).collect::<String>())
}

fn chat(calls: &[(&str, &str)], finish: &str) -> Turn {
    let calls: Vec<Value> = calls
        .iter()
        .zip(0..)
        .map(|((name, arguments), n)| {
            json!({"index": n, "id": format!("c{n}"), "type": "function",
                "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    events(&[
        json!({"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": null}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}),
    ])
}

#[tokio::test]
async fn malformed_arguments_and_unknown_tools_are_answered_to_the_model() {
    let turn = chat(
        &[
            ("run_shell", "{\"command\": \"touch a"),
            ("run_shell", "[\"touch b\"]"),
            ("launch", "{}"),
            ("run_shell", "{\"command\": \"touch c\"}"),
        ],
        "tool_calls",
    );
    let f = Fixture::new(Dialect::OpenaiChat, [turn, finish("done")]);
    let ran = f.run().await;
    assert_eq!(ran.report(), "done");
    let request = f.last_request();
    let answers: Vec<&str> = request["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "tool")
        .map(|m| m["content"].as_str().unwrap())
        .collect();
    assert!(
        answers[0].contains("could not be read") && answers[0].contains("{\"command\": \"touch a")
    );
    assert!(answers[1].contains("not a JSON object"));
    assert!(answers[2].contains("There is no tool `launch`"));
    assert_eq!(answers[3], "[exit code 0]");
    let left = ["a", "b", "c"].map(|name| f.dir.path().join(name).exists());
    assert_eq!(left, [false, false, true]);
    let sent = request["messages"][2]["tool_calls"][0]["function"]["arguments"].as_str();
    assert_eq!(sent, Some("{}"), "what was malformed is not sent back");
}

#[tokio::test]
async fn calls_of_an_answer_that_hit_the_output_limit_are_not_carried_out() {
    let cut = chat(
        &[("run_shell", "{\"command\": \"touch a\"}"), ("write_file", "{\"path\": \"b")],
        "length",
    );
    let f = Fixture::new(Dialect::OpenaiChat, [cut, finish("done")]);
    let ran = f.run().await;
    assert_eq!(ran.report(), "done");
    assert!(!f.dir.path().join("a").exists());
    assert_eq!(f.last_request().to_string().matches("was not carried out").count(), 2);
}

#[tokio::test]
async fn answers_that_cannot_be_used_end_the_run() {
    let cut = || {
        events(&[
            json!({"choices": [{"index": 0, "delta": {"content": "I"}, "finish_reason": "length"}]}),
        ])
    };
    let f = Fixture::new(Dialect::OpenaiChat, (0..9).map(|_| cut()));
    let ran = f.run().await;
    assert_eq!(ran.failure().0, "AGENT-010");
    assert_eq!(f.server.requests().len(), limits::FAULTY_TURNS_MAX as usize);

    let empty = || {
        events(&[
            json!({"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP"}]}),
        ])
    };
    let f = Fixture::new(Dialect::Gemini, (0..9).map(|_| empty()));
    assert_eq!(f.run().await.failure().0, "AGENT-010");
    assert!(f.last_request().to_string().contains("Your answer was empty"));
}

#[tokio::test]
async fn a_model_that_declines_ends_the_run_with_its_words() {
    let declined = events(&[
        json!({"candidates": [{"finishReason": "SAFETY", "finishMessage": "no such thing"}]}),
    ]);
    let f = Fixture::new(Dialect::Gemini, [declined]);
    let ran = f.run().await;
    assert_eq!(ran.failure().0, "AGENT-006");
    assert!(ran.failure().1.contains("SAFETY no such thing"));
}

#[tokio::test]
async fn an_error_inside_a_stream_is_tried_again_when_it_may_pass() {
    let overloaded = Fault {
        status: Some(200),
        body: Some("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n".into()),
        times: Some(2),
        ..Fault::default()
    };
    let f = Fixture::new(Dialect::Anthropic, first(shell("true"), overloaded));
    let ran = f.run().await;
    assert_eq!(ran.report(), "done");
    assert!(ran.texts(EventKind::Message)[0].contains("overloaded_error: Overloaded"));
}

#[tokio::test]
async fn an_optional_feature_that_is_refused_is_left_out() {
    let body = json!({"error": {"message": "Encrypted content is not supported with this model.",
        "type": "invalid_request_error", "param": "include", "code": null}});
    let fault = Fault { body: Some(body.to_string()), ..status(400, Some(1)) };
    let f = Fixture::new(Dialect::OpenaiResponses, first(shell("true"), fault));
    assert_eq!(f.run().await.report(), "done");
    let requests = f.server.requests();
    assert!(requests[0].json().get("include").is_some());
    assert!(requests[1..].iter().all(|r| r.json().get("include").is_none()));
}
