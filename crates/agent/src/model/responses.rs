//! OpenAI Responses, `POST /v1/responses`, streaming, `store: false`.
//!
//! Nothing is kept at the provider, so every output item goes back, reasoning with its encrypted
//! content. Reasoning that came without it cannot go back, and neither can ids that point to it.

use std::collections::BTreeMap;

use cofferdam_wire::layout::KEY_PLACEHOLDER;
use serde_json::{Value, json};

use super::error::ProviderError;
use super::{
    Arguments, Assembler, Call, Entry, Prompt, Protocol, Stop, StreamFault, Turn, parse_event,
    text_at,
};

pub(super) struct Responses {
    model: String,
    /// Models without reasoning refuse to be asked for its encrypted content.
    encrypted_reasoning: bool,
}

impl Responses {
    pub(super) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), encrypted_reasoning: true }
    }
}

impl Protocol for Responses {
    fn path(&self) -> String {
        "/v1/responses".to_owned()
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        vec![("authorization", format!("Bearer {KEY_PLACEHOLDER}"))]
    }

    fn body(&self, prompt: &Prompt<'_>) -> Value {
        let mut input = Vec::new();
        for entry in prompt.conversation.entries() {
            match entry {
                Entry::User(text) => {
                    let content = json!([{"type": "input_text", "text": text}]);
                    input.push(json!({"type": "message", "role": "user", "content": content}));
                }
                Entry::Assistant { replay, .. } => input.extend(replay.iter().cloned()),
                Entry::Results(results) => input.extend(results.iter().map(
                    |r| json!({"type": "function_call_output", "call_id": r.id, "output": r.text}),
                )),
            }
        }
        let tools: Vec<Value> = prompt
            .tools
            .iter()
            .map(|t| {
                // `strict` is on unless switched off, and then demands that every property be required.
                json!({"type": "function", "name": t.name, "description": t.description, "parameters": t.schema,
                    "strict": false})
            })
            .collect();
        let mut body = json!({
            "model": self.model,
            "stream": true,
            "store": false,
            "instructions": prompt.system,
            "input": input,
            "tools": tools,
        });
        if self.encrypted_reasoning {
            body["include"] = json!(["reasoning.encrypted_content"]);
        }
        body
    }

    fn assembler(&self, _at: usize) -> Box<dyn Assembler> {
        Box::<Items>::default()
    }

    fn concede(&mut self, message: &str) -> bool {
        let text = message.to_ascii_lowercase();
        let drop =
            self.encrypted_reasoning && (text.contains("encrypted") || text.contains("include"));
        if drop {
            self.encrypted_reasoning = false;
        }
        drop
    }
}

#[derive(Default)]
struct Items {
    items: BTreeMap<u64, Value>,
    stop: Option<Stop>,
}

impl Items {
    /// The final event repeats all items; some gateways leave them out, some leave out the events
    /// before. Whatever is there first stands.
    fn complete(&mut self, response: &Value) {
        if !self.items.is_empty() {
            return;
        }
        for (item, at) in
            response.get("output").and_then(Value::as_array).into_iter().flatten().zip(0u64..)
        {
            self.items.insert(at, item.clone());
        }
    }
}

impl Assembler for Items {
    fn take(&mut self, _event: &str, data: &str) -> Result<(), StreamFault> {
        if data.trim() == "[DONE]" {
            return Ok(());
        }
        let event = parse_event(data)?;
        match text_at(&event, "type") {
            "response.output_item.done" => {
                let at = event
                    .get("output_index")
                    .and_then(Value::as_u64)
                    .unwrap_or(self.items.len() as u64);
                if let Some(item) = event.get("item").filter(|i| i.is_object()) {
                    self.items.insert(at, item.clone());
                }
            }
            "response.completed" => {
                self.complete(&event["response"]);
                self.stop = Some(Stop::Complete);
            }
            "response.incomplete" => {
                self.complete(&event["response"]);
                self.stop =
                    Some(match text_at(&event["response"]["incomplete_details"], "reason") {
                        "content_filter" => Stop::Declined(
                            "the provider's content filter stopped the answer".to_owned(),
                        ),
                        _ => Stop::OutputLimit,
                    });
            }
            "response.failed" | "response.cancelled" => {
                return Err(StreamFault::Provider(ProviderError::from_value(&event["response"])));
            }
            "error" => return Err(StreamFault::Provider(ProviderError::from_value(&event))),
            // Deltas: the finished item repeats them.
            _ => {}
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.stop.is_some()
    }

    fn turn(self: Box<Self>) -> Result<Turn, StreamFault> {
        let Some(mut stop) = self.stop else { return Err(StreamFault::Cut) };
        let mut items: Vec<Value> = self.items.into_values().collect();
        let is_reasoning = |item: &Value| text_at(item, "type") == "reasoning";
        let sealed = |item: &Value| !text_at(item, "encrypted_content").is_empty();
        if items.iter().any(|item| is_reasoning(item) && !sealed(item)) {
            items.retain(|item| !is_reasoning(item) || sealed(item));
            for item in &mut items {
                item.as_object_mut().map(|map| map.remove("id"));
            }
        }
        // The API takes reasoning back only in front of something.
        while items.last().is_some_and(is_reasoning) {
            items.pop();
        }
        items.retain(Value::is_object);
        let (mut text, mut calls) = (String::new(), Vec::new());
        for item in &mut items {
            match text_at(item, "type") {
                "message" => {
                    for part in item.get("content").and_then(Value::as_array).into_iter().flatten()
                    {
                        match text_at(part, "type") {
                            "output_text" => text.push_str(text_at(part, "text")),
                            "refusal" => stop = Stop::Declined(text_at(part, "refusal").to_owned()),
                            _ => {}
                        }
                    }
                }
                "function_call" => {
                    let arguments = Arguments::parse(text_at(item, "arguments"));
                    if matches!(arguments, Arguments::Malformed { .. }) {
                        item["arguments"] = json!("{}");
                    }
                    // An item that was cut says `incomplete`, which may not be sent back.
                    item["status"] = json!("completed");
                    calls.push(Call {
                        id: text_at(item, "call_id").to_owned(),
                        name: text_at(item, "name").to_owned(),
                        arguments,
                    });
                }
                _ => {}
            }
        }
        Ok(Turn { text, calls, stop, replay: items })
    }
}
