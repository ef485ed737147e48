//! Gemini generateContent: <https://ai.google.dev/api/generate-content>.
//!
//! The service reads protobuf JSON, which takes each name in lowerCamelCase and in snake_case; so
//! does this checker, and it refuses a request that uses both for one field.

use super::{
    Admitted, Bound, Media, Rules, check_bound, malformed, no_content, no_tool, one_answer, shown,
};
use crate::gateway::json::{Json, Object};
use crate::gateway::refusal::{Refusal, codes};
use crate::gateway::route::Target;

const FIELDS: [&str; 8] = [
    "model",
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "safetySettings",
    "generationConfig",
    "generateContentRequest",
];

pub(super) fn admit(
    rules: &Rules<'_>,
    body: Object,
    target: &Target,
    counts: bool,
) -> Result<Admitted, Refusal> {
    let model = rules.model(target.model.as_deref())?;
    let mut media = Media::default();
    check(rules, &body, counts, &mut media)?;
    let config = if body.get("generation_config").is_some() {
        "generation_config"
    } else {
        "generationConfig"
    };
    let snake = body
        .get(config)
        .and_then(Json::as_object)
        .is_some_and(|c| c.get("max_output_tokens").is_some());
    let key = if snake { "max_output_tokens" } else { "maxOutputTokens" };
    let bound = if counts { Bound::Nothing } else { Bound::Gemini { config, key } };
    Ok(Admitted { body, bound, model, stream: target.stream == Some(true), media })
}

fn check(rules: &Rules<'_>, body: &Object, counts: bool, media: &mut Media) -> Result<(), Refusal> {
    for (key, value) in named(body)? {
        match key.as_str() {
            "cachedContent" if !rules.policy.fields.contains("cachedContent") => {
                return Err(Refusal::forbidden(
                    codes::STORED,
                    "cachedContent is not admitted, since it is kept at the provider; send the whole contents",
                ));
            }
            "model" => {
                let named = value.as_str().unwrap_or("");
                rules.model(Some(named.strip_prefix("models/").unwrap_or(named)))?;
            }
            "contents" => each(value, |c| content(rules, c, media))?,
            "systemInstruction" => content(rules, value, media)?,
            "tools" => each(value, |tool| check_tool(rules, tool))?,
            "generationConfig" => config(value)?,
            "generateContentRequest" if counts => {
                let inner = value
                    .as_object()
                    .ok_or_else(|| malformed("generateContentRequest must be an object"))?;
                check(rules, inner, false, media)?;
            }
            "generateContentRequest" => {
                return Err(malformed("generateContentRequest belongs to countTokens"));
            }
            known if FIELDS.contains(&known) || rules.policy.fields.contains(known) => {}
            unknown => {
                return Err(Refusal::forbidden(
                    codes::FIELD,
                    format!(
                        "the field {} is not admitted; the operator can name it in [gateway] fields of its configuration",
                        shown(unknown)
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// The entries of an object under their lowerCamelCase names; both spellings of one name are refused.
fn named(object: &Object) -> Result<Vec<(String, &Json)>, Refusal> {
    let entries: Vec<(String, &Json)> = object.iter().map(|(k, v)| (camel(k), v)).collect();
    let mut keys: Vec<&str> = entries.iter().map(|(k, _)| k.as_str()).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(entries),
        Some(pair) => {
            Err(malformed(&format!("the field {} is given in two spellings", shown(pair[0]))))
        }
    }
}

fn camel(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    let mut upper = false;
    for c in key.chars() {
        match c {
            '_' => upper = true,
            c if upper => {
                out.extend(c.to_uppercase());
                upper = false;
            }
            c => out.push(c),
        }
    }
    out
}

/// A repeated field; the service also takes one entry without its list.
fn each(value: &Json, mut check: impl FnMut(&Json) -> Result<(), Refusal>) -> Result<(), Refusal> {
    match value {
        Json::Null => Ok(()),
        Json::List(entries) => entries.iter().try_for_each(check),
        one => check(one),
    }
}

fn check_tool(rules: &Rules<'_>, tool: &Json) -> Result<(), Refusal> {
    let tool = tool.as_object().ok_or_else(|| malformed("a tool must be an object"))?;
    match named(tool)?
        .iter()
        .find(|(key, _)| key != "functionDeclarations" && !rules.type_admitted(key))
    {
        None => Ok(()),
        Some((key, _)) => Err(no_tool(key)),
    }
}

fn config(value: &Json) -> Result<(), Refusal> {
    let config = match value {
        Json::Null => return Ok(()),
        value => {
            value.as_object().ok_or_else(|| malformed("generationConfig must be an object"))?
        }
    };
    for (key, value) in named(config)? {
        match key.as_str() {
            "responseModalities" => each(value, |modality| match modality.as_str() {
                Some("TEXT") => Ok(()),
                _ => Err(Refusal::forbidden(codes::FIELD, "responseModalities admits TEXT only")),
            })?,
            "enableEnhancedCivicAnswers" => {
                return Err(Refusal::forbidden(
                    codes::FIELD,
                    "enableEnhancedCivicAnswers is not admitted",
                ));
            }
            _ => {}
        }
    }
    for key in ["candidateCount", "candidate_count"] {
        one_answer(config, key)?;
    }
    for key in ["maxOutputTokens", "max_output_tokens"] {
        check_bound(config, key)?;
    }
    Ok(())
}

fn content(rules: &Rules<'_>, content: &Json, media: &mut Media) -> Result<(), Refusal> {
    let content = match content {
        // A bare text stands for a content in some clients.
        Json::Text(_) | Json::Null => return Ok(()),
        value => value.as_object().ok_or_else(|| malformed("a content must be an object"))?,
    };
    for (key, value) in named(content)? {
        match key.as_str() {
            "role" => {}
            "parts" => each(value, |p| part(rules, p, media))?,
            unknown if rules.type_admitted(unknown) => {}
            unknown => return Err(no_content(unknown)),
        }
    }
    Ok(())
}

fn part(rules: &Rules<'_>, part: &Json, media: &mut Media) -> Result<(), Refusal> {
    let part = match part {
        Json::Text(_) => return Ok(()),
        value => value.as_object().ok_or_else(|| malformed("a part must be an object"))?,
    };
    for (key, value) in named(part)? {
        match key.as_str() {
            "text" | "thought" | "thoughtSignature" | "functionCall" | "videoMetadata"
            | "mediaResolution" | "partMetadata" => {}
            "inlineData" => inline(value, media)?,
            "fileData" => rules.url("")?,
            "functionResponse" => {
                let response = value
                    .as_object()
                    .ok_or_else(|| malformed("functionResponse must be an object"))?;
                for (key, value) in named(response)? {
                    if key == "parts" {
                        each(value, |p| self::part(rules, p, media))?;
                    }
                }
            }
            unknown if rules.type_admitted(unknown) => {}
            unknown => return Err(no_content(unknown)),
        }
    }
    Ok(())
}

fn inline(value: &Json, media: &mut Media) -> Result<(), Refusal> {
    let blob = value.as_object().ok_or_else(|| malformed("inlineData must be an object"))?;
    let entries = named(blob)?;
    let text = |name: &str| {
        entries.iter().find(|(k, _)| k == name).and_then(|(_, v)| v.as_str()).unwrap_or("")
    };
    let bytes = text("data").len() as u64;
    if text("mimeType").starts_with("image/") {
        media.images += 1;
        media.image_bytes += bytes;
    } else {
        media.other_bytes += bytes;
    }
    Ok(())
}
