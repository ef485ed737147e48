//! Anthropic Messages, after <https://docs.anthropic.com/en/api/messages> and its streaming page.
//!
//! Shapes only. It must not know a script's faults or a socket.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::conversation::{Turns, call_id, list, text};
use super::script::{Turn, Usage};
use super::stream::{Answer, named};

/// The turn to answer, or what is wrong with the request.
pub(super) fn read(request: &Value) -> Result<usize, String> {
    if !request["max_tokens"].is_u64() {
        return Err("max_tokens: Field required".into());
    }
    if text(request, "model").is_empty() {
        return Err("model: Field required".into());
    }
    count(request)
}

/// As [`read`], without the fields that only generation needs.
pub(super) fn count(request: &Value) -> Result<usize, String> {
    let messages = list(request, "messages");
    if messages.is_empty() {
        return Err("messages: at least one message is required".into());
    }
    let mut turns = Turns::default();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for (at, message) in messages.iter().enumerate() {
        let blocks = list(message, "content");
        match text(message, "role") {
            "assistant" => {
                if !open.is_empty() {
                    return Err(unanswered(at, &open));
                }
                turns.assistant(None);
                open.extend(
                    blocks.iter().filter(|b| b["type"] == "tool_use").map(|b| text(b, "id")),
                );
            }
            "user" => {
                turns.other();
                for result in blocks.iter().filter(|b| b["type"] == "tool_result") {
                    let id = text(result, "tool_use_id");
                    if !open.remove(id) {
                        return Err(format!(
                            "messages.{at}.content: unexpected `tool_use_id` found in `tool_result` blocks: {id}. \
                             Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                        ));
                    }
                }
                if !open.is_empty() {
                    return Err(unanswered(at, &open));
                }
            }
            role => {
                return Err(format!(
                    "messages.{at}.role: Input should be 'user' or 'assistant', got '{role}'"
                ));
            }
        }
    }
    if messages[0]["role"] != "user" {
        return Err("messages: first message must use the \"user\" role".into());
    }
    Ok(turns.count())
}

fn unanswered(at: usize, open: &BTreeSet<&str>) -> String {
    let ids = open.iter().copied().collect::<Vec<_>>().join(", ");
    format!(
        "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {ids}."
    )
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output + usage.reasoning,
        "service_tier": "standard",
    })
}

/// The answer for `turn`.
pub(super) fn answer(
    request: &Value,
    turn: &Turn,
    number: usize,
    counted: Option<Usage>,
) -> Answer {
    let stop = if turn.tools.is_empty() { "end_turn" } else { "tool_use" };
    let mut content = Vec::new();
    if !turn.think.is_empty() {
        content
            .push(json!({"type": "thinking", "thinking": turn.think, "signature": "c2NyaXB0ZWQ="}));
    }
    if !turn.say.is_empty() {
        content.push(json!({"type": "text", "text": turn.say}));
    }
    for (index, tool) in turn.tools.iter().enumerate() {
        content.push(json!({
            "type": "tool_use", "id": call_id("toolu", number, index), "name": tool.name, "input": tool.args,
        }));
    }
    let mut message = json!({
        "id": format!("msg_scripted{number:04}"),
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": stop,
        "stop_sequence": null,
    });
    if request["stream"] != true {
        if let Some(counted) = counted {
            message["usage"] = usage(counted);
        }
        return Answer::Whole(message);
    }

    message["content"] = json!([]);
    message["stop_reason"] = Value::Null;
    if let Some(counted) = counted {
        message["usage"] = usage(Usage { output: 1, reasoning: 0, ..counted });
    }
    let mut events =
        vec![named("message_start", &json!({"type": "message_start", "message": message}))];
    for (index, block) in content.iter().enumerate() {
        let (start, deltas) = block_events(block, turn);
        let start = json!({"type": "content_block_start", "index": index, "content_block": start});
        events.push(named("content_block_start", &start));
        if index == 0 {
            events.push(named("ping", &json!({"type": "ping"})));
        }
        for delta in deltas {
            let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
            events.push(named("content_block_delta", &delta));
        }
        events.push(named(
            "content_block_stop",
            &json!({"type": "content_block_stop", "index": index}),
        ));
    }
    let mut delta =
        json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null}});
    if let Some(counted) = counted {
        delta["usage"] = json!({
            "input_tokens": counted.input,
            "cache_creation_input_tokens": counted.cache_write,
            "cache_read_input_tokens": counted.cache_read,
            "output_tokens": counted.output + counted.reasoning,
        });
    }
    events.push(named("message_delta", &delta));
    events.push(named("message_stop", &json!({"type": "message_stop"})));
    Answer::Events(events)
}

fn block_events(block: &Value, turn: &Turn) -> (Value, Vec<Value>) {
    match text(block, "type") {
        "thinking" => {
            let mut deltas: Vec<Value> = turn
                .pieces(text(block, "thinking"))
                .iter()
                .map(|p| json!({"type": "thinking_delta", "thinking": p}))
                .collect();
            deltas.push(json!({"type": "signature_delta", "signature": block["signature"]}));
            (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas)
        }
        "text" => {
            let pieces = turn.pieces(text(block, "text"));
            let deltas = pieces.iter().map(|p| json!({"type": "text_delta", "text": p})).collect();
            (json!({"type": "text", "text": ""}), deltas)
        }
        _ => {
            let mut pieces = vec![String::new()];
            pieces.extend(turn.pieces(&block["input"].to_string()));
            let deltas = pieces
                .iter()
                .map(|p| json!({"type": "input_json_delta", "partial_json": p}))
                .collect();
            (
                json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}),
                deltas,
            )
        }
    }
}

/// An error in the provider's shape.
pub(super) fn error(status: u16, message: &str) -> Value {
    let kind = match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"})
}
