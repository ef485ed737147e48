//! Anthropic Messages: <https://docs.anthropic.com/en/api/messages>.

use super::{
    Admitted, Bound, Media, Rules, check_bound, flag, list, malformed, no_content, no_tool,
    service_tier,
};
use crate::gateway::json::{Json, Object};
use crate::gateway::refusal::{Refusal, codes};

const FIELDS: [&str; 17] = [
    "model",
    "messages",
    "system",
    "max_tokens",
    "metadata",
    "stop_sequences",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "tools",
    "tool_choice",
    "thinking",
    "service_tier",
    "context_management",
    "output_config",
    "output_format",
];

pub(super) fn admit(rules: &Rules<'_>, body: Object, counts: bool) -> Result<Admitted, Refusal> {
    for (key, code) in [("container", codes::TOOL), ("mcp_servers", codes::TOOL)] {
        let given = body.get(key).is_some_and(|v| !v.is_null());
        if given && !rules.policy.fields.contains(key) {
            return Err(Refusal::forbidden(
                code,
                format!("{key} is not admitted: the provider would act outside the sandbox"),
            ));
        }
    }
    let known: Vec<&str> = FIELDS.into_iter().chain(["container", "mcp_servers"]).collect();
    rules.fields(&body, &known)?;
    let model = rules.model(body.text("model"))?;
    service_tier(&body)?;
    check_bound(&body, "max_tokens")?;
    let stream = flag(&body, "stream")?;
    let mut media = Media::default();
    if let Some(system) = body.get("system") {
        content(rules, system, &mut media)?;
    }
    for message in list(&body, "messages")? {
        let message =
            message.as_object().ok_or_else(|| malformed("a message must be an object"))?;
        if let Some(found) = message.get("content") {
            content(rules, found, &mut media)?;
        }
    }
    for tool in list(&body, "tools")? {
        check_tool(rules, tool)?;
    }
    let bound = if counts { Bound::Nothing } else { Bound::Key("max_tokens") };
    Ok(Admitted { body, bound, model, stream, media })
}

/// Tools that the client runs: its own, and the provider's schemas for shell, editor and memory.
fn check_tool(rules: &Rules<'_>, tool: &Json) -> Result<(), Refusal> {
    let tool = tool.as_object().ok_or_else(|| malformed("a tool must be an object"))?;
    let kind = match tool.get("type") {
        None | Some(Json::Null) => return Ok(()),
        Some(kind) => kind.as_str().ok_or_else(|| malformed("a tool's type must be text"))?,
    };
    let client = ["bash_", "text_editor_", "memory_"].iter().any(|prefix| {
        kind.strip_prefix(prefix).is_some_and(|date| date.bytes().all(|b| b.is_ascii_digit()))
    });
    if kind == "custom" || client || rules.type_admitted(kind) {
        Ok(())
    } else {
        Err(no_tool(kind))
    }
}

fn content(rules: &Rules<'_>, content: &Json, media: &mut Media) -> Result<(), Refusal> {
    match content {
        Json::Text(_) | Json::Null => Ok(()),
        Json::List(blocks) => blocks.iter().try_for_each(|b| block(rules, b, media)),
        _ => Err(malformed("content must be text or a list of blocks")),
    }
}

fn block(rules: &Rules<'_>, block: &Json, media: &mut Media) -> Result<(), Refusal> {
    let block = block.as_object().ok_or_else(|| malformed("a content block must be an object"))?;
    let kind = block.text("type").ok_or_else(|| malformed("a content block needs a type"))?;
    match kind {
        "text" | "tool_use" | "thinking" | "redacted_thinking" | "tool_reference" => Ok(()),
        "search_result" => block.get("content").map_or(Ok(()), |c| content(rules, c, media)),
        "tool_result" => block.get("content").map_or(Ok(()), |c| content(rules, c, media)),
        "image" | "document" => {
            let source = block
                .get("source")
                .and_then(Json::as_object)
                .ok_or_else(|| malformed("an image or document needs a source"))?;
            match source.text("type") {
                Some("base64") => {
                    let bytes = source.text("data").map_or(0, str::len) as u64;
                    if kind == "image" {
                        media.images += 1;
                        media.image_bytes += bytes;
                    } else {
                        media.other_bytes += bytes;
                    }
                    Ok(())
                }
                Some("text") => Ok(()),
                Some("content") => {
                    source.get("content").map_or(Ok(()), |c| content(rules, c, media))
                }
                Some("url") => rules.url(source.text("url").unwrap_or("")),
                Some("file") => rules.file(),
                other => Err(no_content(other.unwrap_or("source without type"))),
            }
        }
        _ if rules.type_admitted(kind) => Ok(()),
        _ => Err(no_content(kind)),
    }
}
