//! The shape of a vector and how to read a file of them: one JSON object a line.

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Deserialize;

/// Most bytes of one request after its repetition. A vector that makes more is refused.
pub(super) const MAX_REQUEST_BYTES: usize = 512 * 1024;

/// A verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// Carried.
    Allow,
    /// Not carried.
    Refuse,
}

impl Expect {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Refuse => "refuse",
        }
    }
}

/// One labelled request. Fields that the check does not need are ignored.
#[derive(Debug, Clone, Deserialize)]
pub struct Vector {
    /// Unique name.
    pub id: String,
    /// Allow list; none means that no policy was given.
    pub rules: Option<Vec<String>>,
    /// Deny list.
    pub deny: Option<Vec<String>>,
    /// The lists must be rejected, naming the rule.
    #[serde(default)]
    pub policy_error: bool,
    /// What the client sends.
    pub request: RequestBytes,
    /// Answers of the first lookup.
    #[serde(default)]
    pub resolves_to: Vec<String>,
    /// Answers of each later lookup, when they differ.
    pub resolves_to_next: Option<Vec<String>>,
    /// How many lookups fail for a moment before the first answer.
    #[serde(default)]
    pub resolve_failures_first: usize,
    /// What dialling an address ends with, when it is not a connection.
    #[serde(default)]
    pub dial_error: BTreeMap<String, String>,
    /// How long an origin takes to accept, milliseconds.
    #[serde(default)]
    pub dial_delay_ms: u64,
    /// The address that must have been connected to.
    pub dial: Option<String>,
    /// Addresses that must not even be tried.
    #[serde(default)]
    pub never_dial: Vec<String>,
    /// How many lookups there must have been.
    pub dns_queries: Option<usize>,
    /// What the client sends after a 200 to CONNECT, Base64.
    pub tunnel_first: Option<String>,
    /// Expected result of each request on the connection.
    pub sequence: Option<Vec<Step>>,
    /// The client waits for each reply before it sends the next request.
    #[serde(default)]
    pub wait_between: bool,
    /// The connection must be closed afterwards.
    #[serde(default)]
    pub close: bool,
    /// What the origin must and must not receive.
    #[serde(default)]
    pub upstream: Upstream,
    /// The fault is in the body: the origin may have been dialled already.
    #[serde(default)]
    pub after_headers: bool,
    /// The verdict on the last request.
    pub expect: Expect,
    /// Its status.
    pub status: u16,
    /// Where it is decided.
    pub stage: String,
    /// Other accepted statuses.
    #[serde(default)]
    pub also_status: Vec<u16>,
    /// `close`: no reply at all is accepted too.
    pub also_wire: Option<String>,
    /// The opposite verdict is accepted too.
    pub also_ok: Option<Expect>,
    /// For people.
    #[serde(default)]
    pub why: String,
}

/// Expected result of one request of several.
#[derive(Debug, Clone, Deserialize)]
pub struct Step {
    /// Verdict.
    pub expect: Expect,
    /// Status.
    pub status: u16,
}

/// Bytes for the origin, as substrings.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Upstream {
    /// Each must occur, as it is.
    #[serde(default)]
    pub must_contain: Vec<String>,
    /// None may occur, in whatever case.
    #[serde(default)]
    pub must_not_contain: Vec<String>,
}

/// How the client's bytes are given.
#[derive(Debug, Clone, Deserialize)]
pub struct RequestBytes {
    /// `connect` or `http`.
    pub kind: String,
    /// Ask for a tunnel to this, in the usual way.
    pub authority: Option<String>,
    /// The exact bytes, Base64.
    pub raw: Option<String>,
    /// Bytes to insert many times.
    pub repeat: Option<Repeat>,
    /// Send slowly.
    pub pace: Option<Pace>,
}

/// `unit` (Base64) `count` times at byte `offset`.
#[derive(Debug, Clone, Deserialize)]
pub struct Repeat {
    /// Where.
    pub offset: usize,
    /// What.
    pub unit: String,
    /// How often.
    pub count: usize,
}

/// `chunk` bytes every `interval_ms`; the client gives up after `max_s` seconds.
#[derive(Debug, Clone, Deserialize)]
pub struct Pace {
    /// Bytes at a time.
    pub chunk: usize,
    /// Milliseconds between.
    pub interval_ms: u64,
    /// Seconds in all.
    pub max_s: u64,
}

impl RequestBytes {
    /// The bytes that the client sends.
    pub(super) fn bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = match (&self.authority, &self.raw) {
            (Some(authority), None) => {
                let credential =
                    BASE64_STANDARD.encode(format!("run:{}", super::VECTOR_TOKEN).as_bytes());
                format!(
                    "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\
                     Proxy-Authorization: Basic {credential}\r\n\r\n"
                )
                .into_bytes()
            }
            (None, Some(raw)) => decode(raw)?,
            _ => return Err("needs either authority or raw".to_owned()),
        };
        if let Some(repeat) = &self.repeat {
            let unit = decode(&repeat.unit)?;
            let added = unit.len().saturating_mul(repeat.count);
            if repeat.offset > bytes.len() || added > MAX_REQUEST_BYTES {
                return Err("the repetition is out of bounds".to_owned());
            }
            let offset = repeat.offset;
            bytes.splice(offset..offset, unit.repeat(repeat.count));
        }
        Ok(bytes)
    }
}

pub(super) fn decode(text: &str) -> Result<Vec<u8>, String> {
    BASE64_STANDARD.decode(text).map_err(|error| format!("not Base64: {error}"))
}

/// Why a file of vectors cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {source}")]
pub struct VectorError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub source: serde_json::Error,
}

/// Reads vectors, one JSON object a line; empty lines are skipped.
///
/// # Errors
/// [`VectorError`] for the first line that is no vector.
pub fn read_vectors(text: &str) -> Result<Vec<Vector>, VectorError> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| {
            serde_json::from_str(line).map_err(|source| VectorError { line: index + 1, source })
        })
        .collect()
}
