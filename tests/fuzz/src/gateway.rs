//! Calls to the model gateway: from what was admitted a new request is made, and in that one there is
//! nothing that was not admitted. The lists here are this file's own, on purpose: a field that is
//! opened in the product must be opened here by hand as well.

use cofferdam_broker::gateway::GatewayPolicy;
use cofferdam_broker::gateway::fuzzing::{Case, SeenCall, call};
use cofferdam_run::spec::Dialect;
use http::{HeaderMap, Method};
use serde_json::{Map, Value};

use crate::choice;

const MODEL: &str = "pinned-model";

/// Top-level fields that may reach a provider, by dialect.
const ANTHROPIC: &str = "model messages system max_tokens metadata stop_sequences stream temperature \
    top_p top_k tools tool_choice thinking service_tier context_management output_config \
    output_format container mcp_servers";
const CHAT: &str = "model messages frequency_penalty function_call functions logit_bias logprobs \
    max_completion_tokens max_tokens metadata n parallel_tool_calls prediction presence_penalty \
    prompt_cache_key prompt_cache_retention reasoning_effort response_format safety_identifier seed \
    service_tier stop store stream stream_options temperature tool_choice tools top_logprobs top_p \
    user verbosity top_k min_p reasoning enable_thinking chat_template_kwargs thinking";
const RESPONSES: &str = "model input include instructions max_output_tokens max_tool_calls metadata \
    client_metadata parallel_tool_calls prompt_cache_key prompt_cache_retention reasoning \
    safety_identifier service_tier store stream stream_options temperature text tool_choice tools \
    top_logprobs top_p truncation user previous_response_id conversation prompt background";
const GEMINI: &str = "model contents systemInstruction tools toolConfig safetySettings \
    generationConfig generateContentRequest";

pub(crate) fn body(data: &[u8]) {
    let (first, rest) = choice(data);
    let (granted, rest) = choice(rest);
    let dialect =
        [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini]
            [first % 4];
    let own_path = first & 0x40 != 0;
    let (path, bytes) = if own_path {
        let end = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
        let path = String::from_utf8_lossy(&rest[..end]).into_owned();
        (path, rest.get(end + 1..).unwrap_or_default())
    } else {
        (path(dialect, first), rest)
    };
    let Ok(uri) = path.parse::<http::Uri>() else { return };
    let policy = GatewayPolicy::default();
    let case = Case { dialect, model: MODEL, policy: &policy, granted: 64 * granted as u64 };
    let headers = HeaderMap::new();
    let Ok(Some(seen)) = call(&case, &Method::POST, &uri, &headers, bytes) else { return };
    assert_eq!(seen.model, MODEL);
    assert!(call(&case, &Method::PUT, &uri, &headers, bytes).is_err(), "any method is answered");
    check_target(dialect, &seen, &uri);

    let out: Value = serde_json::from_slice(&seen.body).expect("JSON goes out");
    let object = out.as_object().expect("an object goes out");
    match dialect {
        Dialect::Anthropic => anthropic(object),
        Dialect::OpenaiChat => chat(object, &seen),
        Dialect::OpenaiResponses => responses(object),
        Dialect::Gemini => gemini(object, seen.counts),
    }
    bounded(dialect, object, &seen, case.granted);
    // What was made from the admitted one is admitted, and stays as it is.
    let again = call(&case, &Method::POST, &uri, &headers, &seen.body).expect("admitted before");
    assert_eq!(again.expect("sent before").body, seen.body);
}

fn path(dialect: Dialect, first: usize) -> String {
    let counts = first & 8 != 0;
    let stream = first & 4 != 0;
    match dialect {
        Dialect::Anthropic if counts => "/v1/messages/count_tokens".to_owned(),
        Dialect::Anthropic => "/v1/messages".to_owned(),
        Dialect::OpenaiChat => "/v1/chat/completions".to_owned(),
        Dialect::OpenaiResponses => "/v1/responses".to_owned(),
        Dialect::Gemini => {
            let verb = match (counts, stream) {
                (true, _) => "countTokens",
                (false, true) => "streamGenerateContent?alt=sse",
                (false, false) => "generateContent",
            };
            format!("/v1beta/models/{MODEL}:{verb}")
        }
    }
}

fn check_target(dialect: Dialect, seen: &SeenCall, uri: &http::Uri) {
    let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
    assert_eq!(path, uri.path(), "another path than the one that was checked");
    assert!(matches!(query, "" | "alt=sse" | "beta=true"), "a query of the guest's: {query}");
    assert!(path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._:-".contains(&b)), "{path}");
    if dialect == Dialect::Gemini {
        assert!(path.starts_with(&format!("/v1beta/models/{MODEL}:")), "{path}");
    }
}

fn only(object: &Map<String, Value>, fields: &str) {
    for key in object.keys() {
        let known = fields.split_ascii_whitespace().any(|field| field == key);
        assert!(known, "the field {key:?} went out");
    }
}

fn absent(object: &Map<String, Value>, keys: &[&str]) {
    for key in keys {
        let value = object.get(*key).unwrap_or(&Value::Null);
        assert!(matches!(value, Value::Null | Value::Bool(false)), "{key} went out: {value}");
    }
}

fn list<'a>(object: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    object.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

fn inline(url: &str) {
    assert!(url.to_ascii_lowercase().starts_with("data:"), "the provider would fetch {url:?}");
}

fn anthropic(object: &Map<String, Value>) {
    only(object, ANTHROPIC);
    absent(object, &["container", "mcp_servers"]);
    assert_eq!(object.get("model"), Some(&Value::from(MODEL)));
    for tool in list(object, "tools") {
        let kind = text(tool, "type");
        let client = ["bash_", "text_editor_", "memory_"].iter().any(|p| kind.starts_with(p));
        assert!(kind.is_empty() || kind == "custom" || client, "a tool of type {kind:?}");
    }
    for message in list(object, "messages") {
        message.get("content").into_iter().for_each(blocks);
    }
    object.get("system").into_iter().for_each(blocks);
}

fn blocks(content: &Value) {
    for block in content.as_array().into_iter().flatten() {
        match text(block, "type") {
            "text" | "tool_use" | "thinking" | "redacted_thinking" | "tool_reference" => {}
            "search_result" | "tool_result" => block.get("content").into_iter().for_each(blocks),
            "image" | "document" => {
                let source = &block["source"];
                match text(source, "type") {
                    "base64" | "text" => {}
                    "content" => source.get("content").into_iter().for_each(blocks),
                    "url" => inline(text(source, "url")),
                    kind => panic!("a source of type {kind:?}"),
                }
            }
            kind => panic!("a block of type {kind:?}"),
        }
    }
}

fn chat(object: &Map<String, Value>, seen: &SeenCall) {
    only(object, CHAT);
    assert_eq!(object.get("model"), Some(&Value::from(MODEL)));
    absent(object, &["store"]);
    assert!(matches!(object.get("n").unwrap_or(&Value::Null), Value::Null | Value::Number(_)));
    assert!(object.get("n").and_then(Value::as_u64).unwrap_or(1) == 1, "several answers");
    if seen.stream {
        assert_eq!(object["stream_options"]["include_usage"], Value::Bool(true));
    }
    for tool in list(object, "tools") {
        assert!(matches!(text(tool, "type"), "function" | "custom"), "{tool}");
    }
    for message in list(object, "messages") {
        for part in message.get("content").and_then(Value::as_array).into_iter().flatten() {
            match text(part, "type") {
                "text" | "refusal" | "thinking" | "reasoning" | "input_audio" => {}
                "image_url" => match &part["image_url"] {
                    Value::String(url) => inline(url),
                    image => inline(text(image, "url")),
                },
                "file" => {
                    assert!(part["file"].get("file_id").is_none_or(Value::is_null));
                    let data = text(&part["file"], "file_data");
                    assert!(!data.contains("://") || data[..5].eq_ignore_ascii_case("data:"));
                }
                kind => panic!("a part of type {kind:?}"),
            }
        }
    }
}

fn responses(object: &Map<String, Value>) {
    only(object, RESPONSES);
    absent(object, &["previous_response_id", "conversation", "prompt", "background"]);
    assert_eq!(object.get("model"), Some(&Value::from(MODEL)));
    assert_eq!(object.get("store"), Some(&Value::Bool(false)), "the provider would keep it");
    list(object, "tools").iter().for_each(responses_tool);
    for item in list(object, "input") {
        let kind = text(item, "type");
        let content = match kind {
            "" | "message" => item.get("content"),
            "function_call_output" | "custom_tool_call_output" => item.get("output"),
            "item_reference" => panic!("state kept at the provider"),
            _ => None,
        };
        for part in content.and_then(Value::as_array).into_iter().flatten() {
            assert!(part.get("file_id").is_none_or(Value::is_null), "a file of the provider's");
            for url in ["image_url", "file_url"].map(|key| text(part, key)) {
                assert!(url.is_empty() || url.to_ascii_lowercase().starts_with("data:"), "{url}");
            }
        }
    }
}

fn responses_tool(tool: &Value) {
    match text(tool, "type") {
        "function" | "custom" | "local_shell" | "apply_patch" => {}
        "namespace" => {
            tool.get("tools")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .for_each(responses_tool);
        }
        kind => panic!("a tool of type {kind:?}"),
    }
}

/// What protobuf JSON takes a key for: both spellings name the same field.
fn camel(key: &str) -> String {
    let mut out = String::new();
    for (index, part) in key.split('_').enumerate() {
        let mut letters = part.chars();
        match letters.next() {
            Some(first) if index > 0 => out.extend(first.to_uppercase()),
            Some(first) => out.push(first),
            None => {}
        }
        out.extend(letters);
    }
    out
}

fn camels(value: &Value) -> Map<String, Value> {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(key, value)| (camel(key), value.clone())).collect()
}

fn gemini(object: &Map<String, Value>, counts: bool) {
    let fields = camels(&Value::Object(object.clone()));
    assert_eq!(fields.len(), object.len(), "one field in two spellings");
    only(&fields, GEMINI);
    let model = fields.get("model").and_then(Value::as_str).unwrap_or(MODEL);
    assert_eq!(model.strip_prefix("models/").unwrap_or(model), MODEL);
    let as_list = |value: &Value| match value {
        Value::Array(entries) => entries.clone(),
        Value::Null => Vec::new(),
        one => vec![one.clone()],
    };
    for tool in fields.get("tools").map(as_list).into_iter().flatten() {
        only(&camels(&tool), "functionDeclarations");
    }
    let contents = fields.get("contents").map(as_list).into_iter().flatten();
    for content in contents.chain(fields.get("systemInstruction").cloned()) {
        let content = camels(&content);
        only(&content, "role parts");
        content.get("parts").map(as_list).into_iter().flatten().for_each(|part| gemini_part(&part));
    }
    let config = fields.get("generationConfig").map(camels).unwrap_or_default();
    let answers = config.get("candidateCount").and_then(Value::as_u64);
    assert!(answers.unwrap_or(1) == 1, "several answers");
    if let Some(inner) = fields.get("generateContentRequest") {
        assert!(counts, "a request in a request");
        gemini(inner.as_object().expect("an object"), false);
    }
}

fn gemini_part(part: &Value) {
    let part = camels(part);
    only(
        &part,
        "text thought thoughtSignature functionCall videoMetadata mediaResolution partMetadata \
         inlineData functionResponse",
    );
    let inner = part.get("functionResponse").map(camels).unwrap_or_default();
    match inner.get("parts") {
        Some(Value::Array(parts)) => parts.iter().for_each(gemini_part),
        Some(Value::Null) | None => {}
        Some(part) => gemini_part(part),
    }
}

/// No call may make more output than was granted for it.
fn bounded(dialect: Dialect, object: &Map<String, Value>, seen: &SeenCall, granted: u64) {
    if seen.counts {
        return assert_eq!(seen.output, 0);
    }
    let config = match dialect {
        Dialect::Gemini => {
            let fields = camels(&Value::Object(object.clone()));
            fields.get("generationConfig").map(camels).unwrap_or_default()
        }
        _ => object.clone(),
    };
    let bounds: &[&str] = match dialect {
        Dialect::Anthropic => &["max_tokens"],
        Dialect::OpenaiChat => &["max_tokens", "max_completion_tokens"],
        Dialect::OpenaiResponses => &["max_output_tokens"],
        Dialect::Gemini => &["maxOutputTokens"],
    };
    let named: Vec<u64> =
        bounds.iter().filter_map(|key| config.get(*key)).filter_map(Value::as_u64).collect();
    assert!(named.len() == 1, "{} bounds of the output", named.len());
    assert!(named[0] <= granted, "{} tokens, {granted} were granted", named[0]);
}
