//! Budgets hold: against races, within a stream, without usage, in tokens, money and calls.

use cofferdam_broker::gateway::{GatewayConfig, ModelGateway, Prices, codes};
use cofferdam_broker::log::MemoryLog;
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Ended, Fault, ModelServer, Script, Turn, Usage};
use serde_json::json;

use crate::support::{DIALECTS, MODEL, code, config, door, question};

fn tokens(budget: u64) -> impl FnOnce(&mut GatewayConfig) {
    move |config| config.budgets.tokens = budget
}

fn usage(input: u64, output: u64) -> Usage {
    Usage { input, output, ..Usage::default() }
}

#[tokio::test]
async fn at_the_budget_every_dialect_refuses_and_tells_once() {
    for dialect in DIALECTS {
        let server =
            ModelServer::start(Script::new([Turn::say("hi").with_usage(usage(900, 200))])).unwrap();
        let door = door(&server, dialect, tokens(1_000)).await;
        assert_eq!(door.ask(true, &question(dialect, true, json!({}))).await.status, 200);
        door.facts(1).await;
        assert_eq!(door.log.exhausted_budgets(), ["tokens"]);
        for _ in 0..2 {
            let reply = door.ask(true, &question(dialect, true, json!({}))).await;
            assert_eq!(
                (reply.status, code(dialect, &reply.json())),
                (403, codes::BUDGET.to_owned())
            );
        }
        assert_eq!(server.requests().len(), 1);
        assert_eq!(door.log.exhausted_budgets(), ["tokens"]);
        assert_eq!(door.gateway.spend().tokens(), 1_100);
    }
}

#[tokio::test]
async fn two_racing_calls_share_the_rest_and_no_more() {
    for _ in 0..20 {
        let stall = Fault { stall_after: Some(1), ..Fault::default() };
        let server = ModelServer::start(Script::new([Turn::say("hi").with_fault(stall)])).unwrap();
        let door = door(&server, Dialect::Anthropic, tokens(1_500)).await;
        let body = question(Dialect::Anthropic, true, json!({"max_tokens": 1200}));
        let (first, second) = tokio::join!(door.begin(true, &body), door.begin(true, &body));
        assert_eq!((first.status, second.status), (200, 200));
        let granted: Vec<u64> =
            server.requests().iter().map(|r| r.json()["max_tokens"].as_u64().unwrap()).collect();
        assert!(granted.contains(&1200) && granted.iter().sum::<u64>() <= 1_500, "{granted:?}");
        first.leave();
        second.leave();
    }
}

#[tokio::test]
async fn of_two_racing_calls_that_want_everything_one_is_told_to_wait() {
    for _ in 0..20 {
        let stall = Fault { stall_after: Some(1), ..Fault::default() };
        let server = ModelServer::start(Script::new([Turn::say("hi").with_fault(stall)])).unwrap();
        let door = door(&server, Dialect::Anthropic, tokens(1_500)).await;
        let body = question(Dialect::Anthropic, true, json!({"max_tokens": 9000}));
        let (first, second) = tokio::join!(door.begin(true, &body), door.begin(true, &body));
        let (won, lost) = if first.status == 200 { (first, second) } else { (second, first) };
        assert_eq!((won.status, lost.status), (200, 429));
        let lost = lost.finish().await;
        assert_eq!(code(Dialect::Anthropic, &lost.json()), codes::RESERVED);
        assert_eq!(lost.headers["retry-after"], "1");
        assert_eq!(lost.headers["x-should-retry"], "true");
        assert_eq!(server.requests().len(), 1);
        assert!(door.log.exhausted_budgets().is_empty(), "held is not used up");
        won.leave();
    }
}

#[tokio::test]
async fn a_call_is_bounded_to_what_is_left() {
    let server =
        ModelServer::start(Script::new([Turn::say("hi").with_usage(usage(10, 10))])).unwrap();
    let door = door(&server, Dialect::Anthropic, tokens(600)).await;
    let body = question(Dialect::Anthropic, false, json!({"max_tokens": 5000}));
    assert_eq!(door.ask(false, &body).await.status, 200);
    let sent = server.requests()[0].json()["max_tokens"].as_u64().unwrap();
    assert!((500..600).contains(&sent), "{sent}");
}

#[tokio::test]
async fn a_stream_is_cut_at_the_budget_with_a_reason() {
    for dialect in DIALECTS {
        // The provider ignores the bound and goes on and on.
        let turn =
            Turn { say: "endless words ".repeat(2_000), chunk_chars: 100, ..Turn::default() };
        let server = ModelServer::start(Script::new([turn])).unwrap();
        let door = door(&server, dialect, tokens(1_000)).await;
        let reply = door.ask(true, &question(dialect, true, json!({}))).await;
        assert!(reply.broken, "{dialect:?}");
        assert!(
            reply.text.contains(codes::BUDGET),
            "{dialect:?}: {}",
            &reply.text[reply.text.len() - 300..]
        );
        assert!(reply.text.len() < 100_000);
        assert_eq!(door.log.exhausted_budgets(), ["tokens"]);
        let (status, refusal, usage) = door.only_call().await;
        assert_eq!((status, refusal.as_deref()), (200, Some(codes::BUDGET)));
        assert_eq!(usage.calls_counted_by_size, 1);
        assert!(usage.tokens() >= 900, "{usage:?}");
        let requests = server.until(|r| r[0].ended != Ended::No).await;
        assert_eq!(requests[0].ended, Ended::ClientGone, "the provider is told to stop");
    }
}

#[tokio::test]
async fn the_end_of_the_budget_cuts_the_calls_in_flight() {
    let stall = Fault { stall_after: Some(3), ..Fault::default() };
    let script = Script {
        without_tools: Some(Turn::say("big").with_usage(usage(70_000, 1))),
        ..Script::new([Turn::say("a slow answer in pieces").with_fault(stall)])
    };
    let server = ModelServer::start(script).unwrap();
    let door = door(&server, Dialect::OpenaiChat, tokens(60_000)).await;
    let tools =
        json!({"tools": [{"type": "function", "function": {"name": "x"}}], "max_tokens": 20_000});
    let mut slow = door.begin(true, &question(Dialect::OpenaiChat, true, tools)).await;
    slow.until("\n\n").await;
    let body = question(Dialect::OpenaiChat, false, json!({"max_tokens": 100}));
    assert_eq!(door.ask(false, &body).await.status, 200);
    let slow = slow.finish().await;
    assert!(slow.broken && slow.text.contains(codes::BUDGET), "{}", slow.text);
    assert_eq!(door.log.exhausted_budgets(), ["tokens"]);
}

#[tokio::test]
async fn an_answer_without_usage_is_counted_by_size() {
    for dialect in DIALECTS {
        for stream in [false, true] {
            let omit = Fault { omit_usage: true, ..Fault::default() };
            let server =
                ModelServer::start(Script::new([Turn::say("x".repeat(4_000)).with_fault(omit)]))
                    .unwrap();
            let door = door(&server, dialect, |_| {}).await;
            let reply = door.ask(stream, &question(dialect, stream, json!({}))).await;
            assert_eq!(reply.status, 200);
            let (_, _, usage) = door.only_call().await;
            assert_eq!(usage.calls_counted_by_size, 1, "{dialect:?} {stream}");
            assert!(usage.output_tokens >= 1_000 && usage.input_tokens > 10, "{usage:?}");
            assert_eq!(door.gateway.spend().calls_counted_by_size, 1);
        }
    }
}

#[tokio::test]
async fn model_calls_are_counted_and_bounded() {
    let server = ModelServer::start(Script::new([Turn::say("hi")])).unwrap();
    let door = door(&server, Dialect::OpenaiChat, |config| config.budgets.model_calls = 2).await;
    let body = question(Dialect::OpenaiChat, false, json!({}));
    assert_eq!(door.ask(false, &body).await.status, 200);
    assert_eq!(door.ask(false, &body).await.status, 200);
    assert!(door.log.exhausted_budgets().is_empty());
    let reply = door.ask(false, &body).await;
    assert_eq!(
        (reply.status, code(Dialect::OpenaiChat, &reply.json())),
        (403, codes::BUDGET.to_owned())
    );
    assert_eq!(door.log.exhausted_budgets(), ["model_calls"]);
    assert_eq!(server.requests().len(), 2);
}

/// One micro-dollar per token of input, ten per token of output.
fn prices() -> Prices {
    Prices::parse(&format!(
        r#"{{"models":{{"{MODEL}":{{"input":1000000,"cache_read":100000,"cache_write":2000000,"output":10000000}}}}}}"#
    ))
    .unwrap()
}

#[tokio::test]
async fn money_is_metered_per_class_and_bounded() {
    let usage = Usage { input: 100, cache_read: 1_000, cache_write: 50, output: 30, reasoning: 10 };
    let server = ModelServer::start(Script::new([Turn::say("hi").with_usage(usage)])).unwrap();
    let door = door(&server, Dialect::Anthropic, |config| {
        config.prices = Some(prices());
        config.budgets.micro_usd = Some(3_000);
    })
    .await;
    let body = question(Dialect::Anthropic, false, json!({"max_tokens": 5000}));
    assert_eq!(door.ask(false, &body).await.status, 200);
    // 3,000 micro-dollars buy fewer than 300 tokens of output.
    assert!(server.requests()[0].json()["max_tokens"].as_u64().unwrap() < 300);
    // 100 + 100 + 100 + 400.
    assert_eq!(door.gateway.spend().micro_usd, Some(700));
    for _ in 0..3 {
        door.ask(false, &body).await;
    }
    let reply = door.ask(false, &body).await;
    assert_eq!(code(Dialect::Anthropic, &reply.json()), codes::BUDGET);
    assert!(reply.text.contains("micro_usd"), "{}", reply.text);
    assert_eq!(door.log.exhausted_budgets(), ["money"]);
    assert!(door.gateway.spend().micro_usd.unwrap() <= 3_000);
}

#[tokio::test]
async fn a_money_budget_without_a_price_is_no_gateway() {
    let log = std::sync::Arc::new(MemoryLog::default());
    let mut unpriced = config(Dialect::Anthropic, "http://127.0.0.1:1", &log);
    unpriced.budgets.micro_usd = Some(1);
    let error = ModelGateway::new(unpriced).unwrap_err();
    assert_eq!(error.code(), "MODEL-021");
    let mut priced = config(Dialect::Anthropic, "http://127.0.0.1:1", &log);
    priced.budgets.micro_usd = Some(1);
    priced.prices = Some(prices());
    assert!(ModelGateway::new(priced).is_ok());
}

#[tokio::test]
async fn huge_usage_ends_the_run_and_overflows_nothing() {
    let huge = usage(u64::MAX, 0);
    let server = ModelServer::start(Script::new([Turn::say("hi").with_usage(huge)])).unwrap();
    let door = door(&server, Dialect::Anthropic, |config| config.prices = Some(prices())).await;
    assert_eq!(door.ask(false, &question(Dialect::Anthropic, false, json!({}))).await.status, 200);
    door.facts(1).await;
    assert_eq!(door.gateway.spend().tokens(), u64::MAX);
    assert_eq!(door.log.exhausted_budgets(), ["tokens"]);
}

#[tokio::test]
async fn a_refused_call_costs_no_tokens() {
    let fault = Fault { status: Some(529), ..Fault::default() };
    let server = ModelServer::start(Script::new([Turn::say("hi").with_fault(fault)])).unwrap();
    let door = door(&server, Dialect::Anthropic, |_| {}).await;
    assert_eq!(door.ask(false, &question(Dialect::Anthropic, false, json!({}))).await.status, 529);
    let spend = door.gateway.spend();
    assert_eq!((spend.tokens(), spend.model_calls), (0, 1));
}
