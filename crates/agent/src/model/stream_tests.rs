//! Streams as the real providers send them, folded into turns; whole, and split at every byte.

use bytes::Bytes;
use cofferdam_run::spec::Dialect;
use futures::{FutureExt, StreamExt, stream};
use serde_json::{Value, json};
use sse_stream::SseByteStream;

use super::{
    Arguments, Call, Conversation, Prompt, Stop, StreamFault, ToolResult, ToolSpec, Turn, protocol,
};

const ANTHROPIC: &str = include_str!("../../tests/streams/anthropic.sse");
const CHAT: &str = include_str!("../../tests/streams/chat.sse");
const RESPONSES: &str = include_str!("../../tests/streams/responses.sse");
const GEMINI: &str = include_str!("../../tests/streams/gemini.sse");

/// Folds a stream that arrives in these pieces. Nothing waits, so one poll is enough.
fn fold(dialect: Dialect, pieces: &[&[u8]]) -> Result<Turn, StreamFault> {
    let protocol = protocol(dialect, "m");
    let mut assembler = protocol.assembler(7);
    let pieces: Vec<Result<Bytes, std::io::Error>> =
        pieces.iter().map(|p| Ok(Bytes::copy_from_slice(p))).collect();
    let mut events = SseByteStream::new(stream::iter(pieces));
    let folded = async {
        while let Some(event) = events.next().await {
            let event = event.expect("the stream is well formed");
            let Some(data) = event.data.as_deref() else { continue };
            assembler.take(event.event.as_deref().unwrap_or_default(), data)?;
            if assembler.is_done() {
                break;
            }
        }
        Ok(())
    };
    folded.now_or_never().expect("nothing to wait for")?;
    assembler.turn()
}

fn call(id: &str, name: &str, arguments: Value) -> Call {
    Call { id: id.into(), name: name.into(), arguments: Arguments::from_value(arguments) }
}

fn expected(dialect: Dialect) -> Turn {
    let text = "Ich prüfe das 😀.".to_owned();
    let (calls, replay) = match dialect {
        Dialect::Anthropic => (
            vec![
                call("toolu_01A", "read_file", json!({"path": "src/grüße.rs"})),
                call("toolu_01B", "list_files", json!({})),
            ],
            vec![
                json!({"type": "thinking", "thinking": "Let me look.", "signature": "EqQBCgIYAhIM"}),
                json!({"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"}),
                json!({"type": "text", "text": text}),
                json!({"type": "tool_use", "id": "toolu_01A", "name": "read_file",
                    "input": {"path": "src/grüße.rs"}}),
                json!({"type": "tool_use", "id": "toolu_01B", "name": "list_files", "input": {}}),
            ],
        ),
        Dialect::OpenaiChat => (
            vec![
                call("call_A", "read_file", json!({"path": "src/grüße.rs"})),
                call("call_B", "list_files", json!({})),
            ],
            vec![json!({"role": "assistant", "content": text, "tool_calls": [
                {"id": "call_A", "type": "function",
                    "function": {"name": "read_file", "arguments": "{\"path\":\"src/grüße.rs\"}"}},
                {"id": "call_B", "type": "function",
                    "function": {"name": "list_files", "arguments": "{}"}},
            ]})],
        ),
        Dialect::OpenaiResponses => (
            vec![
                call("call_A", "read_file", json!({"path": "src/grüße.rs"})),
                call("call_B", "list_files", json!({})),
            ],
            vec![
                json!({"id": "rs_1", "type": "reasoning", "summary": [],
                    "encrypted_content": "gAAAAABo"}),
                json!({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
                    "content": [{"type": "output_text", "annotations": [], "text": text}]}),
                json!({"id": "fc_1", "type": "function_call", "status": "completed",
                    "arguments": "{\"path\":\"src/grüße.rs\"}", "call_id": "call_A",
                    "name": "read_file"}),
                json!({"id": "fc_2", "type": "function_call", "status": "completed",
                    "arguments": "{}", "call_id": "call_B", "name": "list_files"}),
            ],
        ),
        Dialect::Gemini => (
            vec![
                call("cofferdam-call-0", "read_file", json!({"path": "src/grüße.rs"})),
                call("fc-7", "list_files", json!({})),
            ],
            vec![
                json!({"text": "Let me look.", "thought": true}),
                json!({"text": text}),
                json!({"functionCall": {"name": "read_file", "args": {"path": "src/grüße.rs"}},
                    "thoughtSignature": "CiIBVKhc"}),
                json!({"functionCall": {"id": "fc-7", "name": "list_files", "args": {}}}),
            ],
        ),
    };
    Turn { text, calls, stop: Stop::Complete, replay }
}

const ALL: [(Dialect, &str); 4] = [
    (Dialect::Anthropic, ANTHROPIC),
    (Dialect::OpenaiChat, CHAT),
    (Dialect::OpenaiResponses, RESPONSES),
    (Dialect::Gemini, GEMINI),
];

#[test]
fn streams_of_all_providers_become_the_same_turn() {
    for (dialect, sample) in ALL {
        assert_eq!(fold(dialect, &[sample.as_bytes()]), Ok(expected(dialect)), "{dialect:?}");
        let crlf = sample.replace('\n', "\r\n");
        assert_eq!(fold(dialect, &[crlf.as_bytes()]), Ok(expected(dialect)), "{dialect:?} CRLF");
    }
}

#[test]
fn a_stream_may_be_split_at_any_byte() {
    for (dialect, sample) in ALL {
        let expected = Ok(expected(dialect));
        for at in 0..sample.len() {
            let (a, b) = sample.as_bytes().split_at(at);
            assert_eq!(fold(dialect, &[a, b]), expected, "{dialect:?} split at {at}");
        }
        let single: Vec<&[u8]> = sample.as_bytes().chunks(1).collect();
        assert_eq!(fold(dialect, &single), expected, "{dialect:?} byte by byte");
    }
}

/// No prefix of a stream may pass for a whole turn, except where only the end mark is missing.
#[test]
fn a_stream_cut_anywhere_is_no_turn() {
    for (dialect, sample) in ALL {
        let whole = expected(dialect);
        for at in 0..sample.len() {
            match fold(dialect, &[&sample.as_bytes()[..at]]) {
                Err(StreamFault::Cut) => {}
                Ok(turn) => assert_eq!(turn, whole, "{dialect:?} cut at {at}"),
                Err(other) => panic!("{dialect:?} cut at {at}: {other}"),
            }
        }
    }
}

fn sse(events: &[Value]) -> String {
    events.iter().map(|e| format!("data: {e}\n\n")).collect()
}

fn one(dialect: Dialect, events: &[Value]) -> Result<Turn, StreamFault> {
    fold(dialect, &[sse(events).as_bytes()])
}

#[test]
fn reasons_to_stop_are_told_apart() {
    let anthropic = |delta: Value| {
        let turn = one(
            Dialect::Anthropic,
            &[
                json!({"type": "content_block_start", "index": 0, "content_block":
                    {"type": "tool_use", "id": "t", "name": "write_file", "input": {}}}),
                json!({"type": "content_block_delta", "index": 0,
                    "delta": {"type": "input_json_delta", "partial_json": "{\"path\": \"a"}}),
                json!({"type": "message_delta", "delta": delta}),
                json!({"type": "message_stop"}),
            ],
        );
        turn.unwrap()
    };
    let cut = anthropic(json!({"stop_reason": "max_tokens"}));
    assert_eq!(cut.stop, Stop::OutputLimit);
    assert!(matches!(cut.calls[0].arguments, Arguments::Malformed { .. }));
    assert_eq!(cut.replay[0]["input"], json!({}), "what goes back is an object");
    let full = anthropic(json!({"stop_reason": "model_context_window_exceeded"}));
    assert_eq!(full.stop, Stop::ContextFull);
    let refused = anthropic(
        json!({"stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": "no"}}),
    );
    assert_eq!(refused.stop, Stop::Declined("no".into()));

    let chat = |delta: Value, finish: &str| {
        one(Dialect::OpenaiChat, &[json!({"choices": [{"delta": delta, "finish_reason": finish}]})])
            .unwrap()
            .stop
    };
    assert_eq!(chat(json!({"content": "x"}), "length"), Stop::OutputLimit);
    assert_eq!(chat(json!({"refusal": "I cannot"}), "stop"), Stop::Declined("I cannot".into()));
    assert!(matches!(chat(json!({}), "content_filter"), Stop::Declined(_)));
    assert_eq!(chat(json!({"content": "x"}), "stop"), Stop::Complete);

    let responses = |event: Value| one(Dialect::OpenaiResponses, &[event]).unwrap().stop;
    let incomplete = |why: &str| json!({"type": "response.incomplete", "response": {"incomplete_details": {"reason": why}}});
    assert_eq!(responses(incomplete("max_output_tokens")), Stop::OutputLimit);
    assert!(matches!(responses(incomplete("content_filter")), Stop::Declined(_)));
    let refusal = json!({"type": "response.completed", "response": {"output": [
        {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]}});
    assert_eq!(responses(refusal), Stop::Declined("no".into()));

    let gemini = |chunk: Value| one(Dialect::Gemini, &[chunk]).unwrap().stop;
    let finish = |why: &str| json!({"candidates": [{"finishReason": why}]});
    assert_eq!(gemini(finish("MAX_TOKENS")), Stop::OutputLimit);
    assert_eq!(gemini(finish("MALFORMED_FUNCTION_CALL")), Stop::MalformedCall);
    assert!(matches!(gemini(finish("SAFETY")), Stop::Declined(_)));
    assert!(matches!(
        gemini(json!({"promptFeedback": {"blockReason": "OTHER"}})),
        Stop::Declined(_)
    ));
}

#[test]
fn errors_inside_a_stream_are_the_providers_own() {
    let check = |dialect, event: Value, shown: &str, transient: bool| {
        let Err(StreamFault::Provider(error)) = one(dialect, &[event]) else {
            panic!("{dialect:?}")
        };
        assert_eq!((error.to_string().as_str(), error.is_transient()), (shown, transient));
    };
    let overloaded =
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    check(Dialect::Anthropic, overloaded, "overloaded_error: Overloaded", true);
    let failed = json!({"type": "response.failed", "response": {"status": "failed", "error":
        {"code": "server_error", "message": "The model failed"}}});
    check(Dialect::OpenaiResponses, failed, "server_error: The model failed", true);
    let error = json!({"type": "error", "code": "invalid_prompt", "message": "no", "param": null});
    check(Dialect::OpenaiResponses, error, "invalid_prompt: no", false);
    let chat = json!({"error": {"message": "Provider returned error", "code": 502}});
    check(Dialect::OpenaiChat, chat, "502: Provider returned error", true);
    let gemini = json!({"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}});
    check(Dialect::Gemini, gemini, "400/INVALID_ARGUMENT: bad", false);
}

#[test]
fn imitations_of_chat_are_understood() {
    let delta =
        |delta: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]});
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let calls = |events: &[Value]| {
        let mut all: Vec<Value> = events.iter().cloned().map(delta).collect();
        all.push(end.clone());
        one(Dialect::OpenaiChat, &all).unwrap()
    };
    // Whole calls, all with index 0 (Gemini's imitation), with a signature to send back.
    let turn = calls(&[
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "x", "arguments": "{}"},
            "extra_content": {"google": {"thought_signature": "S"}}}]}),
        json!({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "y", "arguments": "{}"}}]}),
    ]);
    assert_eq!(turn.calls, [call("a", "x", json!({})), call("b", "y", json!({}))]);
    assert_eq!(
        turn.replay[0]["tool_calls"][0]["extra_content"]["google"]["thought_signature"],
        "S"
    );
    // No index, no id, arguments as an object.
    let turn = calls(&[
        json!({"tool_calls": [{"function": {"name": "x", "arguments": {"a": 1}}}]}),
        json!({"tool_calls": [{"function": {"name": "x", "arguments": {"a": 2}}}]}),
    ]);
    assert_eq!(
        turn.calls,
        [call("call_7_0", "x", json!({"a": 1})), call("call_7_1", "x", json!({"a": 2}))]
    );
    // Reasoning that the provider wants to see again.
    let turn = calls(&[
        json!({"reasoning_content": "Hm"}),
        json!({"reasoning_content": "m"}),
        json!({"content": "x"}),
    ]);
    assert_eq!(turn.replay[0]["reasoning_content"], "Hmm");
    assert_eq!(turn.text, "x");
}

#[test]
fn reasoning_without_its_seal_is_not_sent_back() {
    let done = |at: u64, item: Value| json!({"type": "response.output_item.done", "output_index": at, "item": item});
    let turn = one(
        Dialect::OpenaiResponses,
        &[
            done(0, json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": null})),
            done(1, json!({"type": "function_call", "id": "fc_1", "call_id": "c", "name": "x", "arguments": "{"})),
            json!({"type": "response.completed", "response": {"output": []}}),
        ],
    )
    .unwrap();
    let sent = json!([{"type": "function_call", "status": "completed", "call_id": "c", "name": "x", "arguments": "{}"}]);
    assert_eq!(Value::Array(turn.replay), sent);
    assert!(matches!(turn.calls[0].arguments, Arguments::Malformed { .. }));
}

fn requests() -> impl Fn(Dialect) -> Value {
    let tools =
        [ToolSpec { name: "x", description: "d".into(), schema: json!({"type": "object"}) }];
    move |dialect| {
        let mut conversation = Conversation::new("the task".into());
        conversation.push_turn(&expected(dialect));
        let results =
            expected(dialect).calls.into_iter().zip([false, true]).map(|(call, is_error)| {
                ToolResult { id: call.id, name: call.name, text: "r".into(), is_error }
            });
        conversation.push_results(results.collect());
        conversation.push_user("a word");
        let prompt = Prompt { system: "sys", conversation: &conversation, tools: &tools };
        protocol(dialect, "m").body(&prompt)
    }
}

#[test]
fn requests_repeat_what_the_provider_sent() {
    let request = requests();
    let anthropic = request(Dialect::Anthropic);
    assert_eq!(anthropic["messages"][1]["content"], json!(expected(Dialect::Anthropic).replay));
    assert_eq!(anthropic["messages"].as_array().unwrap().len(), 3, "the roles alternate");
    assert_eq!(anthropic["messages"][2]["content"][1]["is_error"], true);
    assert_eq!(anthropic["tools"][0]["input_schema"], json!({"type": "object"}));

    let chat = request(Dialect::OpenaiChat);
    assert_eq!(chat["messages"][2], expected(Dialect::OpenaiChat).replay[0]);
    assert_eq!(
        chat["messages"][3],
        json!({"role": "tool", "tool_call_id": "call_A", "content": "r"})
    );
    assert_eq!(chat["stream_options"]["include_usage"], true);

    let responses = request(Dialect::OpenaiResponses);
    let input = responses["input"].as_array().unwrap();
    assert_eq!(input[1..5], expected(Dialect::OpenaiResponses).replay);
    assert_eq!(
        input[5],
        json!({"type": "function_call_output", "call_id": "call_A", "output": "r"})
    );
    assert_eq!(responses["store"], false);
    assert_eq!(responses["tools"][0]["strict"], false);

    let gemini = request(Dialect::Gemini);
    assert_eq!(gemini["contents"][1]["parts"], json!(expected(Dialect::Gemini).replay));
    assert_eq!(
        gemini["contents"][2]["parts"],
        json!([
            {"functionResponse": {"name": "read_file", "response": {"output": "r"}}},
            {"functionResponse": {"name": "list_files", "id": "fc-7", "response": {"error": "r"}}},
            {"text": "a word"},
        ])
    );
    assert_eq!(
        protocol(Dialect::Gemini, "models/a/../b?x").path(),
        "/v1beta/models/a..bx:streamGenerateContent?alt=sse"
    );
}

#[test]
fn optional_features_are_given_up_once_when_refused() {
    let check = |dialect, message: &str, gone: fn(&Value) -> bool| {
        let mut protocol = protocol(dialect, "m");
        let body = |p: &dyn super::Protocol| {
            p.body(&Prompt { system: "", conversation: &Conversation::new("t".into()), tools: &[] })
        };
        assert!(!protocol.concede("something else"));
        assert!(!gone(&body(protocol.as_ref())));
        assert!(protocol.concede(message));
        assert!(gone(&body(protocol.as_ref())));
        assert!(!protocol.concede(message), "only once");
    };
    check(Dialect::Anthropic, "max_tokens: 16384 > 8192, which is the maximum", |b| {
        b["max_tokens"] == 4096
    });
    check(Dialect::OpenaiResponses, "Encrypted content is not supported with this model.", |b| {
        b.get("include").is_none()
    });
    check(Dialect::OpenaiChat, "Unrecognized request argument: stream_options", |b| {
        b.get("stream_options").is_none()
    });
}

/// The JSON values of a sample's events.
fn values(sample: &str) -> Vec<Value> {
    let lines = sample.lines().filter_map(|l| l.strip_prefix("data: "));
    lines.filter_map(|l| serde_json::from_str(l).ok()).collect()
}

/// All values inside a value, itself first, as JSON pointers.
fn pointers(value: &Value, at: &str, into: &mut Vec<String>) {
    into.push(at.to_owned());
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| pointers(v, &format!("{at}/{k}"), into)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, v)| pointers(v, &format!("{at}/{n}"), into));
        }
        _ => {}
    }
}

#[test]
fn no_value_of_a_wrong_type_makes_it_panic() {
    let wrong = [json!(null), json!(3), json!("x"), json!([]), json!([[1]]), json!({"type": 7})];
    for (dialect, sample) in ALL {
        let events = values(sample);
        for at in 0..events.len() {
            let mut places = Vec::new();
            pointers(&events[at], "", &mut places);
            for place in places {
                for wrong in &wrong {
                    let mut protocol = protocol(dialect, "m");
                    let mut assembler = protocol.assembler(0);
                    let mut damaged = events.clone();
                    *damaged[at].pointer_mut(&place).unwrap() = wrong.clone();
                    let taken = damaged.iter().try_for_each(|e| assembler.take("", &e.to_string()));
                    if taken.is_ok()
                        && let Ok(turn) = assembler.turn()
                    {
                        let mut conversation = Conversation::new("t".into());
                        conversation.push_turn(&turn);
                        conversation.push_user("x".repeat(100));
                        conversation.push_turn(&turn);
                        conversation.shorten(1);
                        protocol.body(&Prompt {
                            system: "",
                            conversation: &conversation,
                            tools: &[],
                        });
                    }
                    protocol.concede("max_tokens");
                }
            }
        }
    }
}

#[test]
fn thinking_that_was_cut_is_not_sent_back() {
    let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let end = [
        json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}),
        json!({"type": "message_stop"}),
    ];
    let turn = |blocks: &[Value]| {
        let starts = blocks.iter().zip(0..).map(|(b, n)| start(n, b.clone()));
        let events: Vec<Value> = starts.chain(end.clone()).collect();
        one(Dialect::Anthropic, &events).unwrap().replay
    };
    let cut = json!({"type": "thinking", "thinking": "Hm", "signature": ""});
    let signed = json!({"type": "thinking", "thinking": "Hm", "signature": "S"});
    let text = json!({"type": "text", "text": "x"});
    assert_eq!(turn(std::slice::from_ref(&cut)), [] as [Value; 0]);
    assert_eq!(turn(&[signed.clone(), cut.clone()]), [] as [Value; 0]);
    assert_eq!(turn(&[signed.clone(), text.clone(), cut]), [signed, text]);

    let reasoning = json!({"type": "reasoning", "id": "r", "encrypted_content": "E"});
    let events = [
        json!({"type": "response.output_item.done", "output_index": 0, "item": reasoning}),
        json!({"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}}),
    ];
    let turn = one(Dialect::OpenaiResponses, &events).unwrap();
    assert_eq!((turn.replay, turn.stop), (Vec::new(), Stop::OutputLimit));
}

#[test]
fn a_stream_with_more_calls_than_anyone_makes_is_dropped() {
    let many: Vec<Value> = (0..crate::limits::CALLS_PER_STREAM_MAX + 1)
        .map(|n| json!({"index": n, "id": n.to_string(), "function": {"name": "x"}}))
        .collect();
    let event =
        json!({"choices": [{"delta": {"tool_calls": many}, "finish_reason": "tool_calls"}]});
    assert!(matches!(one(Dialect::OpenaiChat, &[event]), Err(StreamFault::Garbage(_))));
}
