//! The providers' usage payloads.
//!
//! Only the fields that count are named; all else is skipped while parsing. Counts that contradict
//! one another are read to the higher sum.

use cofferdam_run::spec::Dialect;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::Tokens;

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) tokens: Tokens,
    /// The tokens are the provider's last word.
    pub(super) is_final: bool,
    /// Bytes of text, reasoning and arguments that were streamed.
    pub(super) text_bytes: u64,
    /// Chat and Gemini: a choice has finished, or the prompt was blocked.
    finished: bool,
    /// Gemini: a count has been seen.
    counted: bool,
}

impl Seen {
    /// Reads the data of one event.
    pub(super) fn event(&mut self, dialect: Dialect, data: &[u8]) {
        match dialect {
            Dialect::Anthropic => self.anthropic(data),
            Dialect::OpenaiChat => self.chat(data),
            Dialect::OpenaiResponses => self.responses(data),
            Dialect::Gemini => self.gemini(data),
        }
    }

    /// Reads an unstreamed answer.
    pub(super) fn whole(&mut self, dialect: Dialect, body: &[u8]) {
        match dialect {
            Dialect::Anthropic => {
                if let Some(usage) = parse::<Usage<AnthropicUsage>>(body).and_then(|u| u.usage) {
                    self.merge_anthropic(&usage);
                    self.is_final = true;
                }
            }
            Dialect::OpenaiChat => self.chat(body),
            Dialect::OpenaiResponses => {
                if let Some(usage) = parse::<Usage<ResponsesUsage>>(body).and_then(|u| u.usage) {
                    self.set_responses(&usage);
                }
            }
            Dialect::Gemini => self.gemini(body),
        }
    }

    fn text(&mut self, text: Option<&String>) {
        self.text_bytes = self.text_bytes.saturating_add(text.map_or(0, |t| t.len() as u64));
    }

    fn anthropic(&mut self, data: &[u8]) {
        let Some(event) = parse::<AnthropicEvent>(data) else { return };
        if let Some(delta) = &event.delta {
            for text in [&delta.text, &delta.thinking, &delta.partial_json] {
                self.text(text.as_ref());
            }
        }
        if let Some(usage) = event.message.and_then(|m| m.usage) {
            self.merge_anthropic(&usage);
        }
        if let Some(usage) = event.usage {
            self.merge_anthropic(&usage);
            self.is_final = true;
        }
    }

    /// Counts in `message_delta` are cumulative and may be fewer than in `message_start`; what is absent
    /// keeps its earlier value.
    fn merge_anthropic(&mut self, usage: &AnthropicUsage) {
        let tokens = &mut self.tokens;
        if let Some(input) = usage.input_tokens {
            tokens.input = input;
        }
        if let Some(read) = usage.cache_read_input_tokens {
            tokens.cache_read = read;
        }
        if let Some(written) = usage.cache_creation_input_tokens {
            let long = match &usage.cache_creation {
                Some(split) => split.ephemeral_1h_input_tokens.unwrap_or(0),
                None => tokens.cache_write_long,
            };
            tokens.cache_write_long = long.min(written);
            tokens.cache_write = written - tokens.cache_write_long;
        }
        if let Some(output) = usage.output_tokens {
            tokens.output = output;
        }
    }

    fn chat(&mut self, data: &[u8]) {
        let Some(chunk) = parse::<ChatChunk>(data) else { return };
        let choices = chunk.choices.unwrap_or_default();
        // OpenAI counts in a chunk of its own, others in the one that ends the choice; some count in
        // each chunk, and then only the last is the whole.
        self.finished |= choices.is_empty();
        for choice in choices {
            self.finished |= choice.finish_reason.is_some();
            let Some(delta) = choice.delta else { continue };
            for text in [&delta.content, &delta.refusal, &delta.reasoning, &delta.reasoning_content]
            {
                self.text(text.as_ref());
            }
            for call in delta.tool_calls.unwrap_or_default() {
                self.text(call.function.and_then(|f| f.arguments).as_ref());
                self.text(call.custom.and_then(|c| c.input).as_ref());
            }
        }
        let Some(usage) = chunk.usage else { return };
        let details = usage.prompt_tokens_details.unwrap_or_default();
        let prompt = usage.prompt_tokens.unwrap_or(0);
        let read = details.cached_tokens.unwrap_or(0).min(prompt);
        let written = details.cache_write_tokens.unwrap_or(0).min(prompt - read);
        let output = usage.completion_tokens.unwrap_or(0);
        self.tokens = Tokens {
            input: prompt - read - written,
            cache_read: read,
            cache_write: written,
            cache_write_long: 0,
            output: output.max(usage.total_tokens.unwrap_or(0).saturating_sub(prompt)),
        };
        self.is_final = self.finished && usage.prompt_tokens.is_some();
    }

    fn responses(&mut self, data: &[u8]) {
        let Some(event) = parse::<ResponsesEvent>(data) else { return };
        self.text(
            match event.delta {
                Some(Delta::Text(text)) => Some(text),
                Some(Delta::Other(_)) | None => None,
            }
            .as_ref(),
        );
        if let Some(usage) = event.response.and_then(|r| r.usage) {
            self.set_responses(&usage);
        }
    }

    fn set_responses(&mut self, usage: &ResponsesUsage) {
        let details = usage.input_tokens_details.as_ref();
        let all = usage.input_tokens.unwrap_or(0);
        let read = details.and_then(|d| d.cached_tokens).unwrap_or(0).min(all);
        let written = details.and_then(|d| d.cache_write_tokens).unwrap_or(0).min(all - read);
        let output = usage.output_tokens.unwrap_or(0);
        self.tokens = Tokens {
            input: all - read - written,
            cache_read: read,
            cache_write: written,
            cache_write_long: 0,
            output: output.max(usage.total_tokens.unwrap_or(0).saturating_sub(all)),
        };
        self.is_final = usage.input_tokens.is_some();
    }

    fn gemini(&mut self, data: &[u8]) {
        let Some(chunk) = parse::<GeminiChunk>(data) else { return };
        for candidate in chunk.candidates.unwrap_or_default() {
            self.finished |= candidate.finish_reason.is_some();
            for part in candidate.content.and_then(|c| c.parts).unwrap_or_default() {
                self.text(part.text.as_ref());
            }
        }
        self.finished |= chunk.prompt_feedback.is_some_and(|f| f.block_reason.is_some());
        if let Some(usage) = chunk.usage_metadata {
            let prompt = usage.prompt_token_count.unwrap_or(0);
            let tool = usage.tool_use_prompt_token_count.unwrap_or(0);
            let read = usage.cached_content_token_count.unwrap_or(0).min(prompt);
            let output = usage
                .candidates_token_count
                .unwrap_or(0)
                .saturating_add(usage.thoughts_token_count.unwrap_or(0));
            let all = prompt.saturating_add(tool);
            self.tokens = Tokens {
                input: all - read,
                cache_read: read,
                output: output.max(usage.total_token_count.unwrap_or(0).saturating_sub(all)),
                ..Tokens::default()
            };
            self.counted = usage.prompt_token_count.is_some();
        }
        // Each chunk counts up; only the count of a finished candidate is the whole.
        self.is_final = self.finished && self.counted;
    }
}

fn parse<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    serde_json::from_slice(data).ok()
}

#[derive(Deserialize)]
struct Usage<T> {
    usage: Option<T>,
}

#[derive(Deserialize)]
struct AnthropicEvent {
    message: Option<Usage<AnthropicUsage>>,
    usage: Option<AnthropicUsage>,
    delta: Option<AnthropicDelta>,
}

#[derive(Deserialize)]
struct AnthropicDelta {
    text: Option<String>,
    thinking: Option<String>,
    partial_json: Option<String>,
}

#[derive(Deserialize)]
struct AnthropicUsage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation: Option<AnthropicCacheCreation>,
    output_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct AnthropicCacheCreation {
    ephemeral_1h_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct ChatChunk {
    choices: Option<Vec<ChatChoice>>,
    usage: Option<ChatUsage>,
}

#[derive(Deserialize)]
struct ChatChoice {
    finish_reason: Option<String>,
    delta: Option<ChatDelta>,
}

#[derive(Deserialize)]
struct ChatDelta {
    content: Option<String>,
    refusal: Option<String>,
    reasoning: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<ChatCall>>,
}

#[derive(Deserialize)]
struct ChatCall {
    function: Option<ChatFunction>,
    custom: Option<ChatCustom>,
}

#[derive(Deserialize)]
struct ChatFunction {
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct ChatCustom {
    input: Option<String>,
}

#[derive(Deserialize)]
struct ChatUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    total_tokens: Option<u64>,
    prompt_tokens_details: Option<CacheDetails>,
}

#[derive(Default, Deserialize)]
struct CacheDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct ResponsesEvent {
    delta: Option<Delta>,
    response: Option<Usage<ResponsesUsage>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Delta {
    Text(String),
    Other(#[allow(dead_code, reason = "takes whatever else a delta may be")] IgnoredAny),
}

#[derive(Deserialize)]
struct ResponsesUsage {
    input_tokens: Option<u64>,
    input_tokens_details: Option<CacheDetails>,
    output_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiChunk {
    candidates: Option<Vec<GeminiCandidate>>,
    usage_metadata: Option<GeminiUsage>,
    prompt_feedback: Option<GeminiFeedback>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiFeedback {
    block_reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiCandidate {
    content: Option<GeminiContent>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct GeminiContent {
    parts: Option<Vec<GeminiPart>>,
}

#[derive(Deserialize)]
struct GeminiPart {
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiUsage {
    prompt_token_count: Option<u64>,
    cached_content_token_count: Option<u64>,
    candidates_token_count: Option<u64>,
    thoughts_token_count: Option<u64>,
    tool_use_prompt_token_count: Option<u64>,
    total_token_count: Option<u64>,
}
