//! OpenAI Responses, after <https://platform.openai.com/docs/api-reference/responses-streaming>.
//!
//! Shapes only. It must not know a script's faults or a socket.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::conversation::{Turns, call_id, list, text};
use super::script::{Turn, Usage};
use super::stream::{Answer, named};

const CREATED: u64 = 1_790_000_000;

/// The turn to answer, or what is wrong with the request.
pub(super) fn read(request: &Value) -> Result<usize, String> {
    if text(request, "model").is_empty() {
        return Err("Missing required parameter: 'model'.".into());
    }
    if request["input"].is_string() {
        return Ok(0);
    }
    let input = list(request, "input");
    if input.is_empty() {
        return Err("Missing required parameter: 'input'.".into());
    }
    let mut turns = Turns::default();
    let mut made: BTreeSet<&str> = BTreeSet::new();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for item in input {
        let id = text(item, "call_id");
        match text(item, "type") {
            "function_call" | "custom_tool_call" => {
                turns.assistant(Some(id));
                made.insert(id);
                open.insert(id);
            }
            "function_call_output" | "custom_tool_call_output" => {
                turns.other();
                if !made.contains(id) {
                    return Err(format!(
                        "No tool call found for function call output with call_id {id}."
                    ));
                }
                open.remove(id);
            }
            "reasoning" => turns.assistant(None),
            "message" | "" if text(item, "role") == "assistant" => turns.assistant(None),
            "message" | "" => turns.other(),
            kind => return Err(format!("Invalid value: '{kind}' for an input item's type.")),
        }
    }
    match open.first() {
        None => Ok(turns.count()),
        Some(id) => Err(format!("No tool output found for function call {id}.")),
    }
}

fn usage(usage: Usage) -> Value {
    let input = usage.input + usage.cache_read + usage.cache_write;
    let output = usage.output + usage.reasoning;
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": input + output,
    })
}

struct Events {
    out: Vec<String>,
}

impl Events {
    fn push(&mut self, kind: &str, mut data: Value) {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(self.out.len());
        self.out.push(named(kind, &data));
    }
}

/// The answer for `turn`.
pub(super) fn answer(
    request: &Value,
    turn: &Turn,
    number: usize,
    counted: Option<Usage>,
) -> Answer {
    let mut output = Vec::new();
    if !turn.think.is_empty() {
        output.push(json!({
            "id": format!("rs_scripted{number:04}"), "type": "reasoning",
            "summary": [{"type": "summary_text", "text": turn.think}],
        }));
    }
    if !turn.say.is_empty() {
        output.push(json!({
            "id": format!("msg_scripted{number:04}"), "type": "message", "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": turn.say}],
        }));
    }
    for (index, tool) in turn.tools.iter().enumerate() {
        output.push(json!({
            "id": format!("fc_scripted{number:04}{index:02}"), "type": "function_call", "status": "completed",
            "arguments": tool.args.to_string(), "call_id": call_id("call", number, index), "name": tool.name,
        }));
    }
    let mut done = response(request, number);
    done["status"] = json!("completed");
    done["output"] = json!(output);
    if let Some(counted) = counted {
        done["usage"] = usage(counted);
    }
    if request["stream"] != true {
        return Answer::Whole(done);
    }

    let mut events = Events { out: Vec::new() };
    events.push("response.created", json!({"response": response(request, number)}));
    events.push("response.in_progress", json!({"response": response(request, number)}));
    for (index, item) in output.iter().enumerate() {
        item_events(&mut events, item, index, turn);
    }
    events.push("response.completed", json!({"response": done}));
    Answer::Events(events.out)
}

fn response(request: &Value, number: usize) -> Value {
    json!({
        "id": format!("resp_scripted{number:04}"), "object": "response", "created_at": CREATED,
        "status": "in_progress", "background": false, "error": null, "incomplete_details": null,
        "instructions": request["instructions"], "max_output_tokens": request["max_output_tokens"],
        "model": request["model"], "output": [], "parallel_tool_calls": true, "previous_response_id": null,
        "store": request["store"].as_bool().unwrap_or(true),
        "tool_choice": "auto", "tools": request["tools"], "usage": null, "metadata": {},
    })
}

fn item_events(events: &mut Events, item: &Value, index: usize, turn: &Turn) {
    let mut started = item.clone();
    if started.get("status").is_some() {
        started["status"] = json!("in_progress");
    }
    let at = |mut data: Value| {
        data["item_id"] = item["id"].clone();
        data["output_index"] = json!(index);
        data
    };
    let added = |item: &Value| json!({"output_index": index, "item": item});
    match text(item, "type") {
        "reasoning" => {
            started["summary"] = json!([]);
            events.push("response.output_item.added", added(&started));
            let whole = text(&item["summary"][0], "text");
            let empty = json!({"type": "summary_text", "text": ""});
            events.push(
                "response.reasoning_summary_part.added",
                at(json!({"summary_index": 0, "part": empty})),
            );
            for piece in turn.pieces(whole) {
                events.push(
                    "response.reasoning_summary_text.delta",
                    at(json!({"summary_index": 0, "delta": piece})),
                );
            }
            events.push(
                "response.reasoning_summary_text.done",
                at(json!({"summary_index": 0, "text": whole})),
            );
            events.push(
                "response.reasoning_summary_part.done",
                at(json!({"summary_index": 0, "part": item["summary"][0]})),
            );
        }
        "message" => {
            started["content"] = json!([]);
            events.push("response.output_item.added", added(&started));
            let part =
                json!({"type": "output_text", "annotations": [], "logprobs": [], "text": ""});
            events
                .push("response.content_part.added", at(json!({"content_index": 0, "part": part})));
            let whole = text(&item["content"][0], "text");
            for piece in turn.pieces(whole) {
                let delta = json!({"content_index": 0, "delta": piece, "logprobs": []});
                events.push("response.output_text.delta", at(delta));
            }
            let done = json!({"content_index": 0, "text": whole, "logprobs": []});
            events.push("response.output_text.done", at(done));
            let done = json!({"content_index": 0, "part": item["content"][0]});
            events.push("response.content_part.done", at(done));
        }
        _ => {
            started["arguments"] = json!("");
            events.push("response.output_item.added", added(&started));
            let whole = text(item, "arguments");
            for piece in turn.pieces(whole) {
                events.push("response.function_call_arguments.delta", at(json!({"delta": piece})));
            }
            let done = json!({"arguments": whole, "name": item["name"]});
            events.push("response.function_call_arguments.done", at(done));
        }
    }
    events.push("response.output_item.done", added(item));
}
