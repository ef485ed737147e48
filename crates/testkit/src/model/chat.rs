//! OpenAI Chat Completions, after <https://platform.openai.com/docs/api-reference/chat>.
//!
//! Shapes only. It must not know a script's faults or a socket.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::conversation::{Turns, call_id, list, text};
use super::script::{Turn, Usage};
use super::stream::{Answer, unnamed};

const CREATED: u64 = 1_790_000_000;

/// The turn to answer, or what is wrong with the request.
pub(super) fn read(request: &Value) -> Result<usize, String> {
    if text(request, "model").is_empty() {
        return Err("you must provide a model parameter".into());
    }
    let messages = list(request, "messages");
    if messages.is_empty() {
        return Err(
            "Invalid 'messages': empty array. Expected an array with minimum length 1.".into()
        );
    }
    let mut turns = Turns::default();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for (at, message) in messages.iter().enumerate() {
        let role = text(message, "role");
        if role == "tool" {
            let id = text(message, "tool_call_id");
            if !open.remove(id) {
                return Err(format!(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with \
                     'tool_calls' (messages[{at}], tool_call_id {id})."
                ));
            }
            turns.other();
            continue;
        }
        if !open.is_empty() {
            return Err(unanswered(&open));
        }
        match role {
            "assistant" => {
                turns.assistant(None);
                open.extend(list(message, "tool_calls").iter().map(|c| text(c, "id")));
            }
            "system" | "developer" | "user" => turns.other(),
            _ => return Err(format!("Invalid value: '{role}' for messages[{at}].role.")),
        }
    }
    if open.is_empty() { Ok(turns.count()) } else { Err(unanswered(&open)) }
}

fn unanswered(open: &BTreeSet<&str>) -> String {
    let ids = open.iter().copied().collect::<Vec<_>>().join(", ");
    format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
         'tool_call_id'. The following tool_call_ids did not have response messages: {ids}"
    )
}

fn usage(usage: Usage) -> Value {
    let prompt = usage.input + usage.cache_read + usage.cache_write;
    let completion = usage.output + usage.reasoning;
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning, "audio_tokens": 0,
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    })
}

/// The answer for `turn`.
pub(super) fn answer(
    request: &Value,
    turn: &Turn,
    number: usize,
    counted: Option<Usage>,
) -> Answer {
    let id = format!("chatcmpl-scripted{number:04}");
    let finish = if turn.tools.is_empty() { "stop" } else { "tool_calls" };
    if request["stream"] != true {
        let mut message = json!({
            "role": "assistant",
            "content": if turn.say.is_empty() { Value::Null } else { json!(turn.say) },
            "refusal": null,
            "annotations": [],
        });
        if !turn.tools.is_empty() {
            let calls = turn.tools.iter().enumerate().map(|(index, tool)| {
                json!({
                    "id": call_id("call", number, index), "type": "function",
                    "function": {"name": tool.name, "arguments": tool.args.to_string()},
                })
            });
            message["tool_calls"] = calls.collect();
        }
        let mut whole = json!({
            "id": id, "object": "chat.completion", "created": CREATED, "model": request["model"],
            "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish}],
            "service_tier": "default", "system_fingerprint": null,
        });
        if let Some(counted) = counted {
            whole["usage"] = usage(counted);
        }
        return Answer::Whole(whole);
    }

    let include_usage = request["stream_options"]["include_usage"] == true;
    let chunk = |choices: Value, usage: Value| {
        let mut chunk = json!({
            "id": id, "object": "chat.completion.chunk", "created": CREATED, "model": request["model"],
            "service_tier": "default", "system_fingerprint": null, "choices": choices,
        });
        if include_usage {
            chunk["usage"] = usage;
        }
        unnamed(&chunk)
    };
    let delta = |delta: Value, finish: Value| {
        chunk(
            json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]),
            Value::Null,
        )
    };
    let mut events =
        vec![delta(json!({"role": "assistant", "content": "", "refusal": null}), Value::Null)];
    for piece in turn.pieces(&turn.say) {
        events.push(delta(json!({"content": piece}), Value::Null));
    }
    for (index, tool) in turn.tools.iter().enumerate() {
        let first = json!({
            "index": index, "id": call_id("call", number, index), "type": "function",
            "function": {"name": tool.name, "arguments": ""},
        });
        events.push(delta(json!({"tool_calls": [first]}), Value::Null));
        for piece in turn.pieces(&tool.args.to_string()) {
            let more = json!({"index": index, "function": {"arguments": piece}});
            events.push(delta(json!({"tool_calls": [more]}), Value::Null));
        }
    }
    events.push(delta(json!({}), json!(finish)));
    if let (true, Some(counted)) = (include_usage, counted) {
        events.push(chunk(json!([]), usage(counted)));
    }
    events.push("data: [DONE]\n\n".to_owned());
    Answer::Events(events)
}

/// An error in the provider's shape, shared with Responses.
pub(super) fn error(status: u16, message: &str) -> Value {
    let (kind, code) = match status {
        401 => ("invalid_request_error", json!("invalid_api_key")),
        429 => ("requests", json!("rate_limit_exceeded")),
        404 => ("invalid_request_error", json!("model_not_found")),
        400..=499 => ("invalid_request_error", Value::Null),
        _ => ("server_error", Value::Null),
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}
