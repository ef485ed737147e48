//! One body for each fuzz target. libFuzzer runs them without end (`fuzz/`, `cargo xtask lane
//! fuzz`); CI replays the committed corpora and a bounded number of mutations (`tests/replay.rs`).
//!
//! A body asserts what must hold for *any* bytes: that a reader gives the same answer however its
//! input is cut into pieces, that what it admits a second, independent reader understands in the
//! same way, that nothing comes out which was not admitted, that sizes stay within their limits. It
//! must never do I/O beyond memory, and never share code with what it checks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a body's way to report is to panic; sizes come from single bytes"
)]

mod authority;
mod body;
mod bundle;
mod config;
mod gateway;
mod hello;
mod link;
mod record;
mod request;
mod response;
mod rules;
mod sse;
mod wire;

/// A target: its name, which is also its corpus folder, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 15] = [
    ("http_request", request::body),
    ("http_response", response::body),
    ("http_body", body::body),
    ("tls_hello", hello::body),
    ("authority", authority::body),
    ("egress_rules", rules::body),
    ("link_frames", link::frames),
    ("link_header", link::header),
    ("link_host", link::host),
    ("wire", wire::body),
    ("bundle_header", bundle::body),
    ("config", config::body),
    ("gateway_call", gateway::body),
    ("sse", sse::body),
    ("record", record::body),
];

/// Runs the body of the target with that name.
///
/// # Panics
/// When something does not hold, and for an unknown name.
pub fn run(target: &str, data: &[u8]) {
    let (_, body) = TARGETS.iter().find(|(name, _)| *name == target).expect("a known target");
    body(data);
}

/// The first byte as a number, and the rest.
fn choice(data: &[u8]) -> (usize, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (usize::from(*first), rest))
}

/// Bytes that no text for people or other parsers may hold.
fn has_controls(text: &str) -> bool {
    text.chars().any(char::is_control)
}
