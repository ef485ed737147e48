//! Bounds of the loop: circles, long conversations, many calls, nobody listening.

use cofferdam_agent::builtin::run_with;
use cofferdam_agent::{AgentOutcome, Event, EventKind, Sink, limits};
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Fault, Turn};
use serde_json::json;

use crate::fixture::{DIALECTS, Fixture, finish, shell};

#[tokio::test]
async fn going_in_circles_ends_the_run_with_its_cause() {
    let turns = (0..50).map(|n| shell(["echo a", "echo b"][n % 2]));
    let mut f = Fixture::new(Dialect::Anthropic, turns);
    f.config.max_steps = 50;
    let ran = f.run().await;
    let (code, message) = ran.failure();
    assert_eq!(code, "AGENT-007");
    assert!(message.contains("run_shell echo"), "{message}");
    assert_eq!(f.server.requests().len(), 2 + limits::NO_PROGRESS_STOP as usize);
    assert!(f.last_request().to_string().contains("try something else"), "the model was warned");
}

#[tokio::test]
async fn a_long_conversation_keeps_the_task_and_the_newest_results() {
    for dialect in DIALECTS {
        let mut turns: Vec<Turn> = (0..8)
            .map(|n| {
                shell(&format!(
                    "echo begin{n}; head -c 20000 /dev/zero | tr '\\0' {n}; echo end{n}"
                ))
            })
            .collect();
        turns.push(finish("done"));
        let mut f = Fixture::new(dialect, turns);
        f.config.task = "The one task. ".repeat(100);
        f.tuning = f.tuning.clone().with_context_bytes(60_000);
        let ran = f.run().await;
        assert_eq!(ran.report(), "done", "{dialect:?}");
        assert!(ran.texts(EventKind::Message).iter().any(|m| m.contains("were shortened")));
        for request in f.server.requests() {
            assert!(request.body.len() < 85_000, "{dialect:?}: {} bytes", request.body.len());
        }
        let last = f.last_request().to_string();
        assert!(
            last.contains(f.config.task.trim()) && last.contains(&"7".repeat(20_000)),
            "{dialect:?}"
        );
        assert!(
            !last.contains(&"0".repeat(1_000)) && last.contains("begin0") && last.contains("end0")
        );
        assert!(last.contains("bytes of this old text were removed"));
    }
}

#[tokio::test]
async fn a_provider_that_finds_the_conversation_too_long_gets_a_shorter_one() {
    let body = json!({"type": "error", "error": {"type": "invalid_request_error",
        "message": "prompt is too long: 215000 tokens > 200000 maximum"}});
    let too_long = Fault {
        status: Some(400),
        body: Some(body.to_string()),
        times: Some(1),
        ..Fault::default()
    };
    let output = |n| shell(&format!("head -c 30000 /dev/zero | tr '\\0' {n}"));
    let f = Fixture::new(
        Dialect::Anthropic,
        [
            output(1),
            output(2),
            output(3),
            Turn::call("list_files", json!({})).with_fault(too_long.clone()),
            finish("done"),
        ],
    );
    assert_eq!(f.run().await.report(), "done");
    let requests = f.server.requests();
    assert!(requests[4].body.len() < requests[3].body.len());

    let always = Fault { times: None, ..too_long };
    let f = Fixture::new(Dialect::Anthropic, [Turn::say("x").with_fault(always)]);
    let ran = f.run().await;
    assert_eq!(ran.failure().0, "AGENT-009");
    assert!(ran.failure().1.contains("215000 tokens"));
}

#[tokio::test]
async fn calls_over_the_bound_of_a_turn_are_answered_but_not_carried_out() {
    let mut turn = Turn::default();
    for n in 0..limits::CALLS_PER_TURN_MAX + 2 {
        turn = turn.and_call("run_shell", json!({"command": format!("echo {n} >> ran")}));
    }
    let f = Fixture::new(Dialect::OpenaiResponses, [turn, finish("done")]);
    assert_eq!(f.run().await.report(), "done");
    let ran = std::fs::read_to_string(f.dir.path().join("ran")).unwrap();
    assert_eq!(ran.lines().count(), limits::CALLS_PER_TURN_MAX);
    assert_eq!(f.last_request().to_string().matches("calls are taken in one turn").count(), 2);
}

struct Deaf(usize);

impl Sink for Deaf {
    fn event(&mut self, _event: Event) -> std::io::Result<()> {
        self.0 += 1;
        Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe))
    }
}

#[tokio::test]
async fn an_agent_that_nobody_hears_stops() {
    let f = Fixture::new(Dialect::Gemini, (0..9).map(|n| shell(&format!("echo {n} >> ran"))));
    let outcome = run_with(f.config.clone(), f.tuning.clone(), &mut Deaf(0)).await;
    let AgentOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.code, "AGENT-011");
    assert!(!f.dir.path().join("ran").exists());
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused_before_any_call() {
    let f = Fixture::new(Dialect::Gemini, []);
    let check = async |change: fn(&mut cofferdam_agent::BuiltinConfig), code: &str| {
        let mut config = f.config.clone();
        change(&mut config);
        let mut events = Vec::new();
        let outcome = run_with(config, f.tuning.clone(), &mut events).await;
        let AgentOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
        assert_eq!(failure.code, code);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].kind, EventKind::Error);
    };
    check(|c| c.task = " ".into(), "AGENT-001").await;
    check(|c| c.model = String::new(), "AGENT-001").await;
    check(|c| c.cwd = "/nonexistent".into(), "AGENT-001").await;
    check(|c| c.base_url = "https://api.openai.com/v1".into(), "AGENT-002").await;
    check(|c| c.base_url = "http://192.0.2.1:80".into(), "AGENT-002").await;
    assert!(f.server.requests().is_empty());
}
