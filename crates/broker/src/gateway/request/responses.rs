//! OpenAI Responses: <https://platform.openai.com/docs/api-reference/responses/create>.

use super::{
    Admitted, Bound, Media, Rules, check_bound, flag, list, malformed, no_content, no_tool,
    service_tier, text,
};
use crate::gateway::json::{Json, Object};
use crate::gateway::refusal::{Refusal, codes};

const FIELDS: [&str; 25] = [
    "model",
    "input",
    "include",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "client_metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

/// What the provider would keep, and the way around it.
const STORED: [&str; 4] = ["previous_response_id", "conversation", "prompt", "background"];

pub(super) fn admit(rules: &Rules<'_>, mut body: Object) -> Result<Admitted, Refusal> {
    for key in STORED {
        let given = body.get(key).is_some_and(|v| !matches!(v, Json::Null | Json::Bool(false)));
        if given && !rules.policy.fields.contains(key) {
            return Err(Refusal::forbidden(
                codes::STORED,
                format!(
                    "{key} is not admitted, since it works on state kept at the provider; send the whole input"
                ),
            ));
        }
    }
    let known: Vec<&str> = FIELDS.into_iter().chain(STORED).collect();
    rules.fields(&body, &known)?;
    let model = rules.model(body.text("model"))?;
    service_tier(&body)?;
    check_bound(&body, "max_output_tokens")?;
    for wanted in list(&body, "include")? {
        let wanted = wanted.as_str().unwrap_or("");
        let harmless =
            matches!(wanted, "reasoning.encrypted_content" | "message.output_text.logprobs");
        if !harmless && !rules.type_admitted(wanted) {
            return Err(Refusal::forbidden(codes::FIELD, "this value of include is not admitted"));
        }
    }
    let mut media = Media::default();
    match body.get("input") {
        None | Some(Json::Null | Json::Text(_)) => {}
        Some(Json::List(items)) => items.iter().try_for_each(|i| item(rules, i, &mut media))?,
        Some(_) => return Err(malformed("input must be text or a list of items")),
    }
    for tool in list(&body, "tools")? {
        check_tool(rules, tool)?;
    }
    if let Some(Json::Object(choice)) = body.get("tool_choice") {
        match choice.text("type") {
            Some("function" | "custom" | "allowed_tools") => {}
            Some(kind) if rules.type_admitted(kind) => {}
            kind => return Err(no_tool(kind.unwrap_or("none"))),
        }
    }
    let stream = flag(&body, "stream")?;
    flag(&body, "store")?;
    // The provider's own default is to store.
    body.set("store", false.into());
    Ok(Admitted { body, bound: Bound::Key("max_output_tokens"), model, stream, media })
}

/// Tools that the client runs.
fn check_tool(rules: &Rules<'_>, tool: &Json) -> Result<(), Refusal> {
    let tool = tool.as_object().ok_or_else(|| malformed("a tool must be an object"))?;
    match tool.text("type") {
        Some("function" | "custom" | "local_shell" | "apply_patch") => Ok(()),
        Some("namespace") => list(tool, "tools")?.iter().try_for_each(|t| check_tool(rules, t)),
        Some(kind) if rules.type_admitted(kind) => Ok(()),
        kind => Err(no_tool(kind.unwrap_or("none"))),
    }
}

fn item(rules: &Rules<'_>, item: &Json, media: &mut Media) -> Result<(), Refusal> {
    let item = item.as_object().ok_or_else(|| malformed("an input item must be an object"))?;
    match item.text("type") {
        None | Some("message") => content(rules, item.get("content"), media),
        Some("function_call_output" | "custom_tool_call_output") => {
            content(rules, item.get("output"), media)
        }
        Some(
            "function_call"
            | "custom_tool_call"
            | "reasoning"
            | "local_shell_call"
            | "local_shell_call_output"
            | "apply_patch_call"
            | "apply_patch_call_output"
            | "compaction",
        ) => Ok(()),
        Some("item_reference") if !rules.type_admitted("item_reference") => {
            Err(Refusal::forbidden(
                codes::STORED,
                "item_reference is not admitted, since it names state kept at the provider; send the item itself",
            ))
        }
        Some(kind) if rules.type_admitted(kind) => Ok(()),
        Some(kind) => Err(no_content(kind)),
    }
}

fn content(rules: &Rules<'_>, content: Option<&Json>, media: &mut Media) -> Result<(), Refusal> {
    let parts = match content {
        None | Some(Json::Null | Json::Text(_)) => return Ok(()),
        Some(Json::List(parts)) => parts,
        Some(_) => return Err(malformed("content must be text or a list of parts")),
    };
    for part in parts {
        let part = part.as_object().ok_or_else(|| malformed("a content part must be an object"))?;
        if part.get("file_id").is_some_and(|v| !v.is_null()) {
            rules.file()?;
        }
        match part.text("type") {
            Some(
                "input_text" | "output_text" | "refusal" | "summary_text" | "reasoning_text"
                | "text",
            ) => {}
            Some("input_image") => {
                if let Some(url) = text(part, "image_url")? {
                    rules.url(url)?;
                    media.images += 1;
                    media.image_bytes += url.len() as u64;
                }
            }
            Some("input_file") => {
                if let Some(url) = text(part, "file_url")? {
                    rules.url(url)?;
                }
                let data = text(part, "file_data")?.unwrap_or("");
                if data.contains("://") {
                    rules.url(data)?;
                }
                media.other_bytes += data.len() as u64;
            }
            Some("input_audio") => {
                let audio = part.get("input_audio").and_then(Json::as_object);
                media.other_bytes += audio.and_then(|a| a.text("data")).map_or(0, str::len) as u64;
            }
            Some(kind) if rules.type_admitted(kind) => {}
            kind => return Err(no_content(kind.unwrap_or("none"))),
        }
    }
    Ok(())
}
