//! What a request may ask for: one checker per dialect over the parsed body.
//!
//! Checking is by shape: a field, tool type or content type that is not known here is refused, so
//! that what a provider adds tomorrow is closed until somebody has looked at it. A checker also
//! rewrites what must be so (usage reporting on, storing off). It never sends anything.

mod anthropic;
mod chat;
mod gemini;
mod responses;
#[cfg(test)]
mod tests;

use cofferdam_run::spec::Dialect;

use super::json::{Json, Object};
use super::limits::{
    ASSUMED_OUTPUT_TOKENS, BYTES_PER_TOKEN, IMAGE_TOKENS, INSERTED_OUTPUT_TOKENS,
    MEDIA_BYTES_PER_TOKEN, MIN_OUTPUT_TOKENS,
};
use super::policy::GatewayPolicy;
use super::refusal::{Refusal, codes};
use super::route::Target;

/// What the run admits.
#[derive(Debug)]
pub(super) struct Rules<'a> {
    pub(super) dialect: Dialect,
    pub(super) model: &'a str,
    pub(super) policy: &'a GatewayPolicy,
    /// The provider is OpenAI itself, which wants the newer name of the output bound.
    pub(super) openai: bool,
}

/// A request that passed, ready to be priced and sent.
#[derive(Debug)]
pub(super) struct Admitted {
    body: Object,
    bound: Bound,
    /// The model that it names.
    pub(super) model: String,
    /// Whether it asks for a stream.
    pub(super) stream: bool,
    /// Inline media found in it.
    media: Media,
}

/// Where the bound of the output stands in a body.
#[derive(Debug, Clone, Copy)]
enum Bound {
    Key(&'static str),
    /// `generationConfig.maxOutputTokens`, under whichever name the client used.
    Gemini {
        config: &'static str,
        key: &'static str,
    },
    /// The call makes no output.
    Nothing,
}

/// Inline media, whose size in bytes says little about tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Media {
    images: u64,
    image_bytes: u64,
    other_bytes: u64,
}

impl Rules<'_> {
    /// Checks a body for `target`.
    pub(super) fn admit(
        &self,
        target: &Target,
        counts: bool,
        body: Json,
    ) -> Result<Admitted, Refusal> {
        let Json::Object(body) = body else {
            return Err(Refusal::new(400, codes::MALFORMED, "the body must be a JSON object"));
        };
        match self.dialect {
            Dialect::Anthropic => anthropic::admit(self, body, counts),
            Dialect::OpenaiChat => chat::admit(self, body),
            Dialect::OpenaiResponses => responses::admit(self, body),
            Dialect::Gemini => gemini::admit(self, body, target, counts),
        }
    }

    fn model(&self, named: Option<&str>) -> Result<String, Refusal> {
        match named {
            Some(model) if model == self.model || self.policy.models.contains(model) => {
                Ok(model.to_owned())
            }
            Some(_) => Err(Refusal::forbidden(
                codes::MODEL,
                format!("this run is pinned to the model {}; ask for that one", self.model),
            )),
            None => Err(Refusal::new(
                400,
                codes::MODEL,
                format!("the request names no model; this run is pinned to {}", self.model),
            )),
        }
    }

    fn fields(&self, body: &Object, known: &[&str]) -> Result<(), Refusal> {
        match body
            .iter()
            .find(|(key, _)| !known.contains(key) && !self.policy.fields.contains(*key))
        {
            None => Ok(()),
            Some((key, _)) => Err(Refusal::forbidden(
                codes::FIELD,
                format!(
                    "the field {} is not admitted; the operator can name it in [gateway] fields of its configuration",
                    shown(key)
                ),
            )),
        }
    }

    fn type_admitted(&self, kind: &str) -> bool {
        self.policy.types.contains(kind)
    }

    fn url(&self, url: &str) -> Result<(), Refusal> {
        // What is not inline is fetched by somebody, whatever its scheme.
        if url.get(..5).is_some_and(|s| s.eq_ignore_ascii_case("data:")) || self.policy.url_inputs {
            return Ok(());
        }
        Err(Refusal::forbidden(
            codes::CONTENT,
            "content by URL is not admitted, since the provider would fetch it; send the bytes inline",
        ))
    }

    fn file(&self) -> Result<(), Refusal> {
        if self.policy.file_inputs {
            return Ok(());
        }
        Err(Refusal::forbidden(
            codes::STORED,
            "files kept at the provider are not admitted; send the bytes inline",
        ))
    }
}

impl Admitted {
    /// Tokens of input to reserve for a body of `bytes`.
    pub(super) fn input_tokens(&self, bytes: usize) -> u64 {
        let inline = self.media.image_bytes.saturating_add(self.media.other_bytes);
        let text = (bytes as u64).saturating_sub(inline);
        text.div_ceil(BYTES_PER_TOKEN)
            .saturating_add(self.media.images.saturating_mul(IMAGE_TOKENS))
            .saturating_add(self.media.other_bytes.div_ceil(MEDIA_BYTES_PER_TOKEN))
    }

    /// Output tokens to reserve.
    pub(super) fn output_tokens(&self) -> u64 {
        match self.bound {
            Bound::Nothing => 0,
            _ => self.named_bound().unwrap_or(ASSUMED_OUTPUT_TOKENS),
        }
    }

    /// Least output for which the call makes sense.
    pub(super) fn least_output(&self) -> u64 {
        match self.bound {
            Bound::Nothing => 0,
            // A provider refuses a bound that does not exceed the thinking budget.
            Bound::Key("max_tokens") => {
                let thinking = self.body.get("thinking").and_then(Json::as_object);
                let budget = thinking.and_then(|t| t.get("budget_tokens")).and_then(Json::as_u64);
                budget.map_or(MIN_OUTPUT_TOKENS, |b| b.saturating_add(1)).min(self.output_tokens())
            }
            _ => MIN_OUTPUT_TOKENS.min(self.output_tokens()),
        }
    }

    fn named_bound(&self) -> Option<u64> {
        match self.bound {
            Bound::Key(key) => self.body.get(key)?.as_u64(),
            Bound::Gemini { config, key } => self.body.get(config)?.as_object()?.get(key)?.as_u64(),
            Bound::Nothing => None,
        }
    }

    /// Bounds the output to what was granted and writes the body.
    pub(super) fn into_body(mut self, granted: u64) -> Vec<u8> {
        let write = match self.named_bound() {
            Some(named) => (named > granted).then_some(granted),
            None => (granted < ASSUMED_OUTPUT_TOKENS).then(|| granted.min(INSERTED_OUTPUT_TOKENS)),
        };
        if let Some(bound) = write {
            match self.bound {
                Bound::Key(key) => self.body.set(key, bound.into()),
                Bound::Gemini { config, key } => {
                    if let Some(config) = self.body.object_mut(config) {
                        config.set(key, bound.into());
                    }
                }
                Bound::Nothing => {}
            }
        }
        Json::Object(self.body).to_bytes()
    }
}

fn shown(text: &str) -> String {
    let cut: String = text.chars().take(60).collect();
    format!("{cut:?}")
}

/// A bound that is there must be a whole number, so that it can be compared.
fn check_bound(body: &Object, key: &str) -> Result<(), Refusal> {
    match body.get(key) {
        None | Some(Json::Null) => Ok(()),
        Some(value) if value.as_u64().is_some() => Ok(()),
        Some(_) => Err(Refusal::new(400, codes::FIELD, format!("{key} must be a whole number"))),
    }
}

/// Removes what the client sent as `null`, where a value will be read or written.
fn flag(body: &Object, key: &str) -> Result<bool, Refusal> {
    match body.get(key) {
        None | Some(Json::Null) => Ok(false),
        Some(Json::Bool(value)) => Ok(*value),
        Some(_) => Err(Refusal::new(400, codes::FIELD, format!("{key} must be true or false"))),
    }
}

/// More than one answer per call would multiply what was reserved.
fn one_answer(body: &Object, key: &str) -> Result<(), Refusal> {
    match body.get(key) {
        None | Some(Json::Null) => Ok(()),
        Some(value) if value.as_u64() == Some(1) => Ok(()),
        Some(_) => {
            Err(Refusal::forbidden(codes::FIELD, format!("{key} must be 1: one answer per call")))
        }
    }
}

/// Tiers with another price than the listed one are not admitted.
fn service_tier(body: &Object) -> Result<(), Refusal> {
    match body.get("service_tier") {
        None | Some(Json::Null) => Ok(()),
        Some(value)
            if matches!(value.as_str(), Some("auto" | "default" | "standard_only" | "flex")) =>
        {
            Ok(())
        }
        Some(_) => Err(Refusal::forbidden(
            codes::FIELD,
            "this service_tier is not admitted, since it costs more than the listed price; leave it out",
        )),
    }
}

fn no_tool(kind: &str) -> Refusal {
    Refusal::forbidden(
        codes::TOOL,
        format!(
            "tools of type {} are not admitted: the provider would run them outside the sandbox, or the type is \
             unknown here; the operator can name it in [gateway] types of its configuration",
            shown(kind)
        ),
    )
}

fn no_content(kind: &str) -> Refusal {
    Refusal::forbidden(
        codes::CONTENT,
        format!(
            "content of type {} is not admitted; the operator can name it in [gateway] types of its configuration",
            shown(kind)
        ),
    )
}

/// The list at `key`; empty when absent or null.
fn list<'a>(body: &'a Object, key: &str) -> Result<&'a [Json], Refusal> {
    match body.get(key) {
        None | Some(Json::Null) => Ok(&[]),
        Some(Json::List(list)) => Ok(list),
        Some(_) => Err(malformed(&format!("{key} must be a list"))),
    }
}

/// The text at `key`; `None` when absent or null.
fn text<'a>(object: &'a Object, key: &str) -> Result<Option<&'a str>, Refusal> {
    match object.get(key) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Text(text)) => Ok(Some(text)),
        Some(_) => Err(malformed(&format!("{key} must be text"))),
    }
}

fn malformed(what: &str) -> Refusal {
    Refusal::new(400, codes::MALFORMED, what)
}
