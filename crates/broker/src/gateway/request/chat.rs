//! OpenAI Chat Completions: <https://platform.openai.com/docs/api-reference/chat/create>.

use super::{
    Admitted, Bound, Media, Rules, check_bound, flag, list, malformed, no_content, no_tool,
    one_answer, service_tier, text,
};
use crate::gateway::json::{Json, Object};
use crate::gateway::refusal::{Refusal, codes};

const FIELDS: [&str; 38] = [
    "model",
    "messages",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    // Known servers that speak this dialect.
    "top_k",
    "min_p",
    "reasoning",
    "enable_thinking",
    "chat_template_kwargs",
    "thinking",
];

pub(super) fn admit(rules: &Rules<'_>, mut body: Object) -> Result<Admitted, Refusal> {
    if body.get("web_search_options").is_some()
        && !rules.policy.fields.contains("web_search_options")
    {
        return Err(no_tool("web_search"));
    }
    let known: Vec<&str> = FIELDS.into_iter().chain(["web_search_options"]).collect();
    rules.fields(&body, &known)?;
    let model = rules.model(body.text("model"))?;
    service_tier(&body)?;
    one_answer(&body, "n")?;
    check_bound(&body, "max_completion_tokens")?;
    check_bound(&body, "max_tokens")?;
    let mut media = Media::default();
    for message in list(&body, "messages")? {
        let message =
            message.as_object().ok_or_else(|| malformed("a message must be an object"))?;
        content(rules, message.get("content"), &mut media)?;
    }
    for tool in list(&body, "tools")? {
        let tool = tool.as_object().ok_or_else(|| malformed("a tool must be an object"))?;
        match tool.text("type") {
            Some("function" | "custom") => {}
            Some(kind) if rules.type_admitted(kind) => {}
            kind => return Err(no_tool(kind.unwrap_or("none"))),
        }
    }
    // A stored answer would outlive the run at the provider.
    if flag(&body, "store")? {
        body.set("store", false.into());
    }
    let stream = flag(&body, "stream")?;
    if stream {
        let options = body
            .object_mut("stream_options")
            .ok_or_else(|| malformed("stream_options must be an object"))?;
        options.set("include_usage", true.into());
    }
    let both = body
        .get("max_tokens")
        .and_then(Json::as_u64)
        .zip(body.get("max_completion_tokens").and_then(Json::as_u64));
    if both.is_some() {
        return Err(Refusal::new(
            400,
            codes::FIELD,
            "give max_completion_tokens or max_tokens, not both",
        ));
    }
    let given = |key: &str| body.get(key).is_some_and(|v| !v.is_null());
    let bound = match (given("max_completion_tokens"), given("max_tokens")) {
        (true, _) => "max_completion_tokens",
        (false, true) => "max_tokens",
        (false, false) if rules.openai => "max_completion_tokens",
        (false, false) => "max_tokens",
    };
    Ok(Admitted { body, bound: Bound::Key(bound), model, stream, media })
}

fn content(rules: &Rules<'_>, content: Option<&Json>, media: &mut Media) -> Result<(), Refusal> {
    let parts = match content {
        None | Some(Json::Null | Json::Text(_)) => return Ok(()),
        Some(Json::List(parts)) => parts,
        Some(_) => return Err(malformed("content must be text or a list of parts")),
    };
    for part in parts {
        let part = part.as_object().ok_or_else(|| malformed("a content part must be an object"))?;
        match part.text("type") {
            Some("text" | "refusal" | "thinking" | "reasoning") => {}
            Some("image_url") => {
                // The older form has the URL itself in place of the object.
                let url = match part.get("image_url") {
                    Some(Json::Text(url)) => url.as_str(),
                    Some(Json::Object(image)) => image.text("url").unwrap_or(""),
                    _ => "",
                };
                rules.url(url)?;
                media.images += 1;
                media.image_bytes += url.len() as u64;
            }
            Some("input_audio") => {
                let audio = part.get("input_audio").and_then(Json::as_object);
                media.other_bytes += audio.and_then(|a| a.text("data")).map_or(0, str::len) as u64;
            }
            Some("file") => {
                let file = part.get("file").and_then(Json::as_object);
                let file = file.ok_or_else(|| malformed("a file part needs a file"))?;
                if file.get("file_id").is_some_and(|v| !v.is_null()) {
                    rules.file()?;
                }
                let data = text(file, "file_data")?.unwrap_or("");
                if data.contains("://") {
                    rules.url(data)?;
                }
                media.other_bytes += data.len() as u64;
            }
            Some(kind) if rules.type_admitted(kind) => {}
            kind => return Err(no_content(kind.unwrap_or("none"))),
        }
    }
    Ok(())
}
