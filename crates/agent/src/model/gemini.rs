//! Gemini, `POST /v1beta/models/MODEL:streamGenerateContent?alt=sse`.
//!
//! Parts go back as they came, `thoughtSignature` included; consecutive plain text is joined. The
//! stream has no end mark: it is complete when a candidate gave its reason to finish.

use cofferdam_wire::layout::KEY_PLACEHOLDER;
use serde_json::{Value, json};

use super::error::ProviderError;
use super::{
    Arguments, Assembler, Call, Entry, Prompt, Protocol, Stop, StreamFault, Turn, parse_event,
    text_at,
};

pub(super) struct Gemini {
    model: String,
}

impl Gemini {
    pub(super) fn new(model: &str) -> Self {
        // Whatever is no part of a model's name would change the path.
        let name = model.strip_prefix("models/").unwrap_or(model);
        let safe = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        Self { model: name.chars().filter(safe).collect() }
    }
}

impl Protocol for Gemini {
    fn path(&self) -> String {
        format!("/v1beta/models/{}:streamGenerateContent?alt=sse", self.model)
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        vec![("x-goog-api-key", KEY_PLACEHOLDER.to_owned())]
    }

    fn body(&self, prompt: &Prompt<'_>) -> Value {
        let mut contents: Vec<Value> = Vec::new();
        for entry in prompt.conversation.entries() {
            match entry {
                Entry::User(text) => push_user(&mut contents, vec![json!({"text": text})]),
                Entry::Assistant { replay, .. } => {
                    contents.push(json!({"role": "model", "parts": replay}))
                }
                Entry::Results(results) => {
                    let parts = results.iter().map(|r| {
                        let key = if r.is_error { "error" } else { "output" };
                        let mut response = json!({"name": r.name, "response": {key: r.text}});
                        // Ids that we made up are not the provider's to see.
                        if !r.id.starts_with(MADE_UP) {
                            response["id"] = json!(r.id);
                        }
                        json!({"functionResponse": response})
                    });
                    push_user(&mut contents, parts.collect());
                }
            }
        }
        let declarations: Vec<Value> = prompt
            .tools
            .iter()
            .map(|t| json!({"name": t.name, "description": t.description, "parameters": t.schema}))
            .collect();
        json!({
            "systemInstruction": {"parts": [{"text": prompt.system}]},
            "contents": contents,
            "tools": [{"functionDeclarations": declarations}],
        })
    }

    fn assembler(&self, _at: usize) -> Box<dyn Assembler> {
        Box::<Candidate>::default()
    }

    fn concede(&mut self, _message: &str) -> bool {
        false
    }
}

/// Start of the ids that stand in for those which Gemini leaves out.
const MADE_UP: &str = "cofferdam-call-";

/// Adds parts to the user's content at the end, or begins one: the roles alternate.
fn push_user(contents: &mut Vec<Value>, parts: Vec<Value>) {
    match contents.last_mut() {
        Some(last) if last["role"] == "user" => {
            if let Some(list) = last["parts"].as_array_mut() {
                list.extend(parts);
            }
        }
        _ => contents.push(json!({"role": "user", "parts": parts})),
    }
}

#[derive(Default)]
struct Candidate {
    parts: Vec<Value>,
    finish: Option<String>,
    finish_message: String,
    blocked: Option<String>,
}

impl Candidate {
    fn take_part(&mut self, part: &Value) {
        // Empty text carries nothing, and not every server takes it back.
        if is_plain_text(part) && text_at(part, "text").is_empty() {
            return;
        }
        if let Some(last) = self.parts.last_mut()
            && is_plain_text(part)
            && is_plain_text(last)
            && last.get("thought") == part.get("thought")
            && let Some(Value::String(text)) = last.get_mut("text")
        {
            text.push_str(text_at(part, "text"));
            return;
        }
        if part.is_object() {
            self.parts.push(part.clone());
        }
    }
}

/// Text and nothing that must stay with exactly this part.
fn is_plain_text(part: &Value) -> bool {
    part.get("text").is_some_and(Value::is_string)
        && part
            .as_object()
            .is_some_and(|map| map.keys().all(|key| key == "text" || key == "thought"))
}

impl Assembler for Candidate {
    fn take(&mut self, _event: &str, data: &str) -> Result<(), StreamFault> {
        let chunk = parse_event(data)?;
        if chunk.get("error").is_some_and(|e| !e.is_null()) {
            return Err(StreamFault::Provider(ProviderError::from_value(&chunk)));
        }
        if let Some(reason) = chunk["promptFeedback"]["blockReason"].as_str() {
            self.blocked = Some(reason.to_owned());
        }
        let Some(candidate) = chunk.get("candidates").and_then(|c| c.get(0)) else { return Ok(()) };
        for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
            self.take_part(part);
        }
        if let Some(reason) = candidate.get("finishReason").and_then(Value::as_str) {
            self.finish = Some(reason.to_owned());
            text_at(candidate, "finishMessage").clone_into(&mut self.finish_message);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.blocked.is_some()
    }

    fn turn(self: Box<Self>) -> Result<Turn, StreamFault> {
        let stop = match (&self.blocked, self.finish.as_deref()) {
            (Some(reason), _) => {
                Stop::Declined(format!("the provider blocked the prompt: {reason}"))
            }
            (None, None) => return Err(StreamFault::Cut),
            (None, Some("STOP" | "FINISH_REASON_UNSPECIFIED")) => Stop::Complete,
            (None, Some("MAX_TOKENS")) => Stop::OutputLimit,
            (None, Some("MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL")) => Stop::MalformedCall,
            (None, Some(reason)) => Stop::Declined(format!(
                "the provider stopped the answer: {reason} {}",
                self.finish_message
            )),
        };
        let (mut text, mut calls, mut replay) = (String::new(), Vec::new(), Vec::new());
        for mut part in self.parts {
            if let Some(call) = part.get_mut("functionCall").filter(|c| c.is_object()) {
                let arguments =
                    Arguments::from_value(call.get("args").cloned().unwrap_or_default());
                if matches!(arguments, Arguments::Malformed { .. }) {
                    call["args"] = arguments.replay();
                }
                let id = match text_at(call, "id") {
                    "" => format!("{MADE_UP}{}", calls.len()),
                    id => id.to_owned(),
                };
                calls.push(Call { id, name: text_at(call, "name").to_owned(), arguments });
            } else if part.get("thought").and_then(Value::as_bool) != Some(true) {
                text.push_str(text_at(&part, "text"));
            }
            replay.push(part);
        }
        Ok(Turn { text, calls, stop, replay })
    }
}
