//! OpenAI Chat Completions, `POST /v1/chat/completions`, streaming, as OpenAI and the many servers
//! that imitate it send it.
//!
//! Lenient where imitations differ (missing indices and ids, reasoning under their own keys); what a
//! provider wants to see again (`reasoning_content`, `reasoning_details`, `extra_content`) goes back.

use cofferdam_wire::layout::KEY_PLACEHOLDER;
use serde_json::{Map, Value, json};

use super::error::ProviderError;
use super::{
    Arguments, Assembler, Call, Entry, Prompt, Protocol, Stop, StreamFault, Turn, parse_event,
    text_at,
};
use crate::limits::CALLS_PER_STREAM_MAX;

pub(super) struct Chat {
    model: String,
    /// `stream_options` is refused by some old imitations.
    ask_usage: bool,
}

impl Chat {
    pub(super) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), ask_usage: true }
    }
}

impl Protocol for Chat {
    fn path(&self) -> String {
        "/v1/chat/completions".to_owned()
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        vec![("authorization", format!("Bearer {KEY_PLACEHOLDER}"))]
    }

    fn body(&self, prompt: &Prompt<'_>) -> Value {
        let mut messages = vec![json!({"role": "system", "content": prompt.system})];
        for entry in prompt.conversation.entries() {
            match entry {
                Entry::User(text) => messages.push(json!({"role": "user", "content": text})),
                Entry::Assistant { replay, .. } => messages.extend(replay.iter().cloned()),
                // The dialect has no mark for errors; the text says it.
                Entry::Results(results) => messages.extend(
                    results
                        .iter()
                        .map(|r| json!({"role": "tool", "tool_call_id": r.id, "content": r.text})),
                ),
            }
        }
        let tools: Vec<Value> = prompt
            .tools
            .iter()
            .map(|t| {
                let function =
                    json!({"name": t.name, "description": t.description, "parameters": t.schema});
                json!({"type": "function", "function": function})
            })
            .collect();
        let mut body =
            json!({"model": self.model, "stream": true, "messages": messages, "tools": tools});
        if self.ask_usage {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }

    fn assembler(&self, at: usize) -> Box<dyn Assembler> {
        Box::new(Choice { at, ..Choice::default() })
    }

    fn concede(&mut self, message: &str) -> bool {
        let drop = self.ask_usage && message.contains("stream_options");
        if drop {
            self.ask_usage = false;
        }
        drop
    }
}

#[derive(Default)]
struct Slot {
    index: u64,
    id: String,
    name: String,
    arguments: String,
    extra: Option<Value>,
}

#[derive(Default)]
struct Choice {
    at: usize,
    text: String,
    refusal: String,
    reasoning: String,
    reasoning_details: Vec<Value>,
    slots: Vec<Slot>,
    finish: Option<String>,
    done: bool,
}

impl Choice {
    fn take_call(&mut self, delta: &Value) {
        let id = text_at(delta, "id");
        let function = &delta["function"];
        let name = text_at(function, "name");
        // Whole calls without an index come one per event; pieces without one belong to the last call.
        let index = delta.get("index").and_then(Value::as_u64);
        let known = match index {
            Some(index) => self.slots.iter().rposition(|slot| slot.index == index),
            None if id.is_empty() && name.is_empty() => self.slots.len().checked_sub(1),
            None => self.slots.iter().position(|slot| !id.is_empty() && slot.id == id),
        };
        // Some servers give every parallel call index 0, told apart by a new id.
        let known = known.filter(|at| {
            let slot = &self.slots[*at];
            id.is_empty() || slot.id.is_empty() || slot.id == id
        });
        let at = known.unwrap_or_else(|| {
            self.slots
                .push(Slot { index: index.unwrap_or(self.slots.len() as u64), ..Slot::default() });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[at];
        if !id.is_empty() {
            id.clone_into(&mut slot.id);
        }
        if !name.is_empty() {
            name.clone_into(&mut slot.name);
        }
        match &function["arguments"] {
            Value::String(text) => slot.arguments.push_str(text),
            // Some local servers send the object itself.
            Value::Object(map) => slot.arguments = Value::Object(map.clone()).to_string(),
            _ => {}
        }
        if let Some(extra) = delta.get("extra_content").filter(|e| !e.is_null()) {
            slot.extra = Some(extra.clone());
        }
    }
}

impl Assembler for Choice {
    fn take(&mut self, event: &str, data: &str) -> Result<(), StreamFault> {
        if data.trim() == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let chunk = parse_event(data)?;
        if event == "error" || chunk.get("error").is_some_and(|e| !e.is_null()) {
            return Err(StreamFault::Provider(ProviderError::from_value(&chunk)));
        }
        // The usage chunk has no choices.
        let Some(choice) = chunk.get("choices").and_then(|c| c.get(0)) else { return Ok(()) };
        let delta = &choice["delta"];
        self.text.push_str(text_at(delta, "content"));
        self.refusal.push_str(text_at(delta, "refusal"));
        self.reasoning.push_str(text_at(delta, "reasoning_content"));
        if let Some(details) = delta.get("reasoning_details").and_then(Value::as_array) {
            self.reasoning_details.extend(details.iter().cloned());
        }
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            self.take_call(call);
            if self.slots.len() > CALLS_PER_STREAM_MAX {
                return Err(StreamFault::Garbage("too many tool calls".to_owned()));
            }
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish = Some(reason.to_owned());
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn turn(self: Box<Self>) -> Result<Turn, StreamFault> {
        // Some imitations end the stream without `[DONE]`; a reason to finish is as good.
        let Some(finish) = self.finish else { return Err(StreamFault::Cut) };
        let (mut calls, mut sent) = (Vec::new(), Vec::new());
        for (at, slot) in self.slots.into_iter().enumerate() {
            let id = if slot.id.is_empty() { format!("call_{}_{at}", self.at) } else { slot.id };
            let arguments = Arguments::parse(&slot.arguments);
            let text = match &arguments {
                Arguments::Object(_) if !slot.arguments.trim().is_empty() => slot.arguments,
                _ => "{}".to_owned(),
            };
            let mut call = json!({"id": id, "type": "function", "function": {"name": slot.name, "arguments": text}});
            if let Some(extra) = slot.extra {
                call["extra_content"] = extra;
            }
            sent.push(call);
            calls.push(Call { id, name: slot.name, arguments });
        }
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        message.insert(
            "content".to_owned(),
            if self.text.is_empty() { Value::Null } else { json!(self.text) },
        );
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), json!(self.reasoning));
        }
        if !self.reasoning_details.is_empty() {
            message.insert("reasoning_details".to_owned(), json!(self.reasoning_details));
        }
        if !sent.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(sent));
        }
        let stop = match finish.as_str() {
            _ if !self.refusal.is_empty() => Stop::Declined(self.refusal),
            "length" => Stop::OutputLimit,
            "content_filter" => {
                Stop::Declined("the provider's content filter stopped the answer".to_owned())
            }
            _ => Stop::Complete,
        };
        let replay = if self.text.is_empty() && calls.is_empty() {
            Vec::new()
        } else {
            vec![Value::Object(message)]
        };
        Ok(Turn { text: self.text, calls, stop, replay })
    }
}
