//! Gemini generateContent, after <https://ai.google.dev/api/generate-content>.
//!
//! Shapes only. It must not know a script's faults or a socket.

use serde_json::{Value, json};

use super::conversation::{Turns, list};
use super::script::{Turn, Usage};
use super::stream::{Answer, unnamed};

/// The turn to answer, or what is wrong with the request.
pub(super) fn read(request: &Value) -> Result<usize, String> {
    let contents = list(request, "contents");
    if contents.is_empty() {
        return Err("* GenerateContentRequest.contents: contents is not specified".into());
    }
    let mut turns = Turns::default();
    let mut open = 0;
    for content in contents {
        let parts = list(content, "parts");
        if parts.is_empty() {
            return Err(
                "* GenerateContentRequest.contents: contents.parts must not be empty.".into()
            );
        }
        let of = |key: &str| parts.iter().filter(|p| p.get(key).is_some()).count();
        match content["role"].as_str() {
            Some("model") => {
                turns.assistant(None);
                open = of("functionCall");
            }
            None | Some("user" | "function") => {
                turns.other();
                if of("functionResponse") != open {
                    return Err("Please ensure that the number of function response parts is equal to the number of \
                                function call parts of the function call turn."
                        .into());
                }
                open = 0;
            }
            Some(_) => return Err("Please use a valid role: user, model.".into()),
        }
    }
    Ok(turns.count())
}

fn usage(usage: Usage) -> Value {
    let prompt = usage.input + usage.cache_read + usage.cache_write;
    let mut out = json!({
        "promptTokenCount": prompt,
        "candidatesTokenCount": usage.output,
        "totalTokenCount": prompt + usage.output + usage.reasoning,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
    });
    if usage.cache_read > 0 {
        out["cachedContentTokenCount"] = json!(usage.cache_read);
        out["cacheTokensDetails"] = json!([{"modality": "TEXT", "tokenCount": usage.cache_read}]);
    }
    if usage.reasoning > 0 {
        out["thoughtsTokenCount"] = json!(usage.reasoning);
    }
    out
}

/// The answer for `turn`; `stream` comes from the path, `model` too.
pub(super) fn answer(
    model: &str,
    stream: bool,
    turn: &Turn,
    number: usize,
    counted: Option<Usage>,
) -> Answer {
    let document = |parts: Vec<Value>, last: bool| {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
        if last {
            candidate["finishReason"] = json!("STOP");
        }
        let mut document = json!({
            "candidates": [candidate], "modelVersion": model, "responseId": format!("scripted{number:04}"),
        });
        if let Some(counted) = counted {
            // The running count of a stream; the last chunk has the whole.
            document["usageMetadata"] =
                usage(if last { counted } else { Usage { output: 1, reasoning: 0, ..counted } });
        }
        document
    };
    let calls: Vec<Value> = turn
        .tools
        .iter()
        .map(|tool| json!({"functionCall": {"name": tool.name, "args": tool.args}}))
        .collect();
    if !stream {
        let mut parts = Vec::new();
        if !turn.think.is_empty() {
            parts.push(json!({"text": turn.think, "thought": true}));
        }
        if !turn.say.is_empty() {
            parts.push(json!({"text": turn.say}));
        }
        parts.extend(calls);
        return Answer::Whole(document(parts, true));
    }

    let mut chunks: Vec<Vec<Value>> = Vec::new();
    chunks.extend(
        turn.pieces(&turn.think).into_iter().map(|p| vec![json!({"text": p, "thought": true})]),
    );
    chunks.extend(turn.pieces(&turn.say).into_iter().map(|p| vec![json!({"text": p})]));
    if !calls.is_empty() {
        chunks.push(calls);
    }
    if chunks.is_empty() {
        chunks.push(vec![json!({"text": ""})]);
    }
    let last = chunks.len() - 1;
    let events =
        chunks.into_iter().enumerate().map(|(at, parts)| unnamed(&document(parts, at == last)));
    Answer::Events(events.collect())
}

/// An error in the provider's shape.
pub(super) fn error(status: u16, message: &str) -> Value {
    let name = match status {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        _ => "INTERNAL",
    };
    json!({"error": {"code": status, "message": message, "status": name}})
}
