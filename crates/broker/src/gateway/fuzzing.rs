//! Doors into this module's parsers for the fuzz targets: the product's own code, called without a
//! connection around it.
//!
//! Hidden from the documentation and no part of the crate's promises. It must never hold a parser,
//! a limit or a decision of its own: what is tried here is what runs.

use cofferdam_run::spec::Dialect;
use http::{HeaderMap, Method, Uri};

use super::json::Json;
use super::policy::GatewayPolicy;
use super::request::Rules;
use super::route::{Endpoint, route};
use super::scrub::Scrubber;
use super::sse::Events;
use crate::secret::Secret;

pub use super::limits;

/// A call as it would go to the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenCall {
    /// Path and query.
    pub target: String,
    /// The body that was made from what was checked.
    pub body: Vec<u8>,
    /// The model that it names.
    pub model: String,
    /// Output tokens that were reserved, before the grant.
    pub output: u64,
    /// It makes no output.
    pub counts: bool,
    /// It asks for a stream.
    pub stream: bool,
}

/// What a call is checked against.
#[derive(Debug)]
pub struct Case<'a> {
    /// The run's dialect.
    pub dialect: Dialect,
    /// The run's model.
    pub model: &'a str,
    /// What is opened.
    pub policy: &'a GatewayPolicy,
    /// Output tokens to grant.
    pub granted: u64,
}

/// Routes, checks and rewrites a call. The error is the refusal's code; `None` is a call that is
/// answered by the gateway itself.
///
/// # Errors
/// The code of the refusal.
pub fn call(
    case: &Case<'_>,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Option<SeenCall>, &'static str> {
    let (target, counts) =
        match route(case.dialect, method, uri, headers).map_err(|refusal| refusal.code)? {
            Endpoint::Generate(target) => (target, false),
            Endpoint::Count(target) => (target, true),
            Endpoint::Models | Endpoint::Model(_) => return Ok(None),
        };
    let json = Json::parse(body).map_err(|_| "no plain JSON")?;
    let rules =
        Rules { dialect: case.dialect, model: case.model, policy: case.policy, openai: false };
    let admitted = rules.admit(&target, counts, json).map_err(|refusal| refusal.code)?;
    let target = match target.query {
        Some(query) => format!("{}?{query}", target.path),
        None => target.path,
    };
    Ok(Some(SeenCall {
        target,
        model: admitted.model.clone(),
        output: admitted.output_tokens(),
        counts,
        stream: admitted.stream,
        body: admitted.into_body(case.granted),
    }))
}

/// The data of the events in `chunks`.
#[must_use]
pub fn events<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let (mut reader, mut out) = (Events::default(), Vec::new());
    for chunk in chunks {
        reader.push(chunk, |data| out.push(data.to_vec()));
    }
    out
}

/// What a guest gets of `chunks` when `key` is the host's key.
#[must_use]
pub fn scrubbed<'a>(key: &str, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut scrubber = Scrubber::new(&Secret::new(key.to_owned()));
    let mut out = Vec::new();
    for chunk in chunks {
        out.extend_from_slice(&scrubber.push(bytes::Bytes::copy_from_slice(chunk)));
    }
    out.extend_from_slice(&scrubber.finish());
    out
}
