//! Anthropic Messages, `POST /v1/messages`, streaming.
//!
//! Content blocks go back as they came, thinking and its signatures included; only blank text
//! and thinking that was cut are dropped, since the API refuses to see them again.

use std::collections::BTreeMap;

use cofferdam_wire::layout::KEY_PLACEHOLDER;
use serde_json::{Value, json};

use super::error::ProviderError;
use super::{
    Arguments, Assembler, Call, Entry, Prompt, Protocol, Stop, StreamFault, Turn, parse_event,
    text_at,
};
use crate::limits::{OUTPUT_TOKENS, OUTPUT_TOKENS_SMALL};

pub(super) struct Anthropic {
    model: String,
    max_tokens: u64,
}

impl Anthropic {
    pub(super) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), max_tokens: OUTPUT_TOKENS }
    }
}

impl Protocol for Anthropic {
    fn path(&self) -> String {
        "/v1/messages".to_owned()
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        vec![
            ("x-api-key", KEY_PLACEHOLDER.to_owned()),
            ("anthropic-version", "2023-06-01".to_owned()),
        ]
    }

    fn body(&self, prompt: &Prompt<'_>) -> Value {
        let mut messages: Vec<Value> = Vec::new();
        for entry in prompt.conversation.entries() {
            match entry {
                Entry::User(text) => {
                    push_user(&mut messages, vec![json!({"type": "text", "text": text})])
                }
                Entry::Assistant { replay, .. } => {
                    messages.push(json!({"role": "assistant", "content": replay}))
                }
                Entry::Results(results) => {
                    let blocks = results.iter().map(|r| {
                        json!({"type": "tool_result", "tool_use_id": r.id, "content": r.text, "is_error": r.is_error})
                    });
                    push_user(&mut messages, blocks.collect());
                }
            }
        }
        // What comes before a mark is read from the provider's cache at the next turn.
        if let Some(block) =
            messages.last_mut().and_then(|m| m["content"].as_array_mut()?.last_mut())
        {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
        let tools: Vec<Value> = prompt
            .tools
            .iter()
            .map(
                |t| json!({"name": t.name, "description": t.description, "input_schema": t.schema}),
            )
            .collect();
        json!({
            "model": self.model,
            "max_tokens": self.max_tokens,
            "stream": true,
            "system": [{"type": "text", "text": prompt.system, "cache_control": {"type": "ephemeral"}}],
            "messages": messages,
            "tools": tools,
        })
    }

    fn assembler(&self, _at: usize) -> Box<dyn Assembler> {
        Box::<Blocks>::default()
    }

    fn concede(&mut self, message: &str) -> bool {
        let lower = message.contains("max_tokens") && self.max_tokens > OUTPUT_TOKENS_SMALL;
        if lower {
            self.max_tokens = OUTPUT_TOKENS_SMALL;
        }
        lower
    }
}

/// Adds blocks to the user's message at the end, or begins one: the roles alternate.
fn push_user(messages: &mut Vec<Value>, blocks: Vec<Value>) {
    match messages.last_mut() {
        Some(last) if last["role"] == "user" => {
            if let Some(content) = last["content"].as_array_mut() {
                content.extend(blocks);
            }
        }
        _ => messages.push(json!({"role": "user", "content": blocks})),
    }
}

/// Blocks by index, with the streamed arguments beside them.
#[derive(Default)]
struct Blocks {
    blocks: BTreeMap<u64, (Value, String)>,
    stop_reason: Option<String>,
    explanation: String,
    done: bool,
}

impl Blocks {
    fn append(&mut self, index: u64, key: &str, more: &str) -> Result<(), StreamFault> {
        let Some((block, _)) = self.blocks.get_mut(&index) else {
            return Err(StreamFault::Garbage(format!(
                "a delta for block {index}, which never began"
            )));
        };
        match block.get_mut(key) {
            Some(Value::String(text)) => text.push_str(more),
            _ => block[key] = Value::String(more.to_owned()),
        }
        Ok(())
    }
}

impl Assembler for Blocks {
    fn take(&mut self, _event: &str, data: &str) -> Result<(), StreamFault> {
        let event = parse_event(data)?;
        let index = event.get("index").and_then(Value::as_u64).unwrap_or_default();
        match text_at(&event, "type") {
            "content_block_start" => {
                let block = event.get("content_block").filter(|b| b.is_object()).cloned();
                let block = block
                    .ok_or_else(|| StreamFault::Garbage("a block without content".to_owned()))?;
                self.blocks.insert(index, (block, String::new()));
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                match text_at(delta, "type") {
                    "text_delta" => self.append(index, "text", text_at(delta, "text"))?,
                    "thinking_delta" => {
                        self.append(index, "thinking", text_at(delta, "thinking"))?
                    }
                    "signature_delta" => {
                        self.append(index, "signature", text_at(delta, "signature"))?
                    }
                    "input_json_delta" => match self.blocks.get_mut(&index) {
                        Some((_, input)) => input.push_str(text_at(delta, "partial_json")),
                        None => {
                            return Err(StreamFault::Garbage(
                                "arguments for a block that never began".to_owned(),
                            ));
                        }
                    },
                    // Citations and whatever comes later: nothing that has to go back.
                    _ => {}
                }
            }
            "message_delta" => {
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    self.stop_reason = Some(reason.to_owned());
                }
                text_at(&event["delta"]["stop_details"], "explanation")
                    .clone_into(&mut self.explanation);
            }
            "message_stop" => self.done = true,
            "error" => return Err(StreamFault::Provider(ProviderError::from_value(&event))),
            // `message_start`, `content_block_stop`, `ping`; unknown types are to be ignored by contract.
            _ => {}
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn turn(self: Box<Self>) -> Result<Turn, StreamFault> {
        if !self.done {
            return Err(StreamFault::Cut);
        }
        let (mut text, mut calls, mut replay) = (String::new(), Vec::new(), Vec::new());
        for (mut block, input) in self.blocks.into_values() {
            match text_at(&block, "type") {
                "text" => {
                    if text_at(&block, "text").trim().is_empty() {
                        continue;
                    }
                    text.push_str(text_at(&block, "text"));
                }
                "tool_use" => {
                    let arguments = if input.is_empty() {
                        Arguments::from_value(block.get("input").cloned().unwrap_or_default())
                    } else {
                        Arguments::parse(&input)
                    };
                    block["input"] = arguments.replay();
                    calls.push(Call {
                        id: text_at(&block, "id").to_owned(),
                        name: text_at(&block, "name").to_owned(),
                        arguments,
                    });
                }
                // Cut before its signature came; without one it may not go back.
                "thinking" if text_at(&block, "signature").is_empty() => continue,
                _ => {}
            }
            replay.push(block);
        }
        // The API takes thinking back only in front of something.
        let is_thinking = |block: &Value| text_at(block, "type").ends_with("thinking");
        while replay.last().is_some_and(is_thinking) {
            replay.pop();
        }
        let stop = match self.stop_reason.as_deref() {
            Some("max_tokens") => Stop::OutputLimit,
            Some("model_context_window_exceeded") => Stop::ContextFull,
            Some("refusal") => Stop::Declined(if self.explanation.is_empty() {
                text.clone()
            } else {
                self.explanation
            }),
            _ => Stop::Complete,
        };
        Ok(Turn { text, calls, stop, replay })
    }
}
