//! Which headers cross, in each direction: short lists, everything else stays.
//!
//! Toward the provider nothing of the guest's own credentials can pass, since nothing passes that is
//! not named. Toward the guest nothing passes that tells about the host's account.

use cofferdam_run::spec::Dialect;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::scrub::Scrubber;
use crate::secret::Secret;

/// Names of Anthropic's beta features, without their dates, that change only how the model answers.
/// Those that make the provider fetch, run or keep something are not here.
const BETAS: [&str; 17] = [
    "claude-code",
    "interleaved-thinking",
    "fine-grained-tool-streaming",
    "token-efficient-tools",
    "token-counting",
    "prompt-caching",
    "prompt-caching-scope",
    "extended-cache-ttl",
    "output-128k",
    "context-1m",
    "context-management",
    "structured-outputs",
    "effort",
    "max-tokens-3-5-sonnet",
    "pdfs",
    "adaptive-thinking",
    "redact-thinking",
];

/// Answer headers that clients use.
const ANSWER: [&str; 8] = [
    "content-type",
    "content-encoding",
    "cache-control",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "request-id",
    "x-request-id",
];

/// Prefixes of answer headers that clients use.
const ANSWER_PREFIXES: [&str; 2] = ["anthropic-ratelimit-", "x-ratelimit-"];

/// Longest time that an answer can ask to wait, milliseconds. A longer one counts as this long.
const MAX_RETRY_AFTER_MS: u64 = 24 * 60 * 60 * 1000;

/// How long the provider asks to wait before another call; `None` when it names no number. A date
/// is not read: it needs the provider's clock to agree with ours.
pub(super) fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    number("retry-after-ms")
        .or_else(|| number("retry-after").map(|seconds| seconds.saturating_mul(1_000)))
        .map(|ms| ms.min(MAX_RETRY_AFTER_MS))
}

/// A key with bytes that no header can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnusableKey;

/// The header that carries the host's key; `None` when there is no key.
pub(super) fn credential(
    dialect: Dialect,
    key: &Secret,
) -> Result<Option<(HeaderName, HeaderValue)>, UnusableKey> {
    if key.expose().is_empty() {
        return Ok(None);
    }
    let (name, text) = match dialect {
        Dialect::Anthropic => {
            (HeaderName::from_static("x-api-key"), Secret::new(key.expose().to_owned()))
        }
        Dialect::OpenaiChat | Dialect::OpenaiResponses => {
            (header::AUTHORIZATION, Secret::new(format!("Bearer {}", key.expose())))
        }
        Dialect::Gemini => {
            (HeaderName::from_static("x-goog-api-key"), Secret::new(key.expose().to_owned()))
        }
    };
    let mut value = HeaderValue::from_str(text.expose()).map_err(|_| UnusableKey)?;
    value.set_sensitive(true);
    Ok(Some((name, value)))
}

/// The headers of the request upstream, the key left out.
pub(super) fn request(dialect: Dialect, guest: &HeaderMap, stream: bool) -> HeaderMap {
    let mut out = HeaderMap::new();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    out.insert(
        header::USER_AGENT,
        HeaderValue::from_static(concat!("cofferdam/", env!("CARGO_PKG_VERSION"))),
    );
    // Encoded answers could not be metered.
    out.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let accept = if stream { "text/event-stream, application/json" } else { "application/json" };
    out.insert(header::ACCEPT, HeaderValue::from_static(accept));
    if dialect == Dialect::Anthropic {
        let version = guest.get("anthropic-version").filter(|v| is_date(v.as_bytes())).cloned();
        let version = version.unwrap_or(HeaderValue::from_static("2023-06-01"));
        out.insert("anthropic-version", version);
        if let Some(betas) = betas(guest) {
            out.insert("anthropic-beta", betas);
        }
    }
    out
}

fn is_date(text: &[u8]) -> bool {
    text.len() == 10 && text.iter().all(|b| b.is_ascii_digit() || *b == b'-')
}

/// The admitted ones of the client's beta features.
fn betas(guest: &HeaderMap) -> Option<HeaderValue> {
    let mut kept: Vec<&str> = Vec::new();
    for value in guest.get_all("anthropic-beta") {
        for beta in value.to_str().unwrap_or("").split(',').map(str::trim) {
            if is_admitted_beta(beta) && !kept.contains(&beta) {
                kept.push(beta);
            }
        }
    }
    if kept.is_empty() { None } else { HeaderValue::from_str(&kept.join(",")).ok() }
}

/// `NAME` or `NAME-DATE`, where the date is `YYYY-MM-DD` or `YYYYMMDD`.
fn is_admitted_beta(beta: &str) -> bool {
    BETAS.iter().any(|name| match beta.strip_prefix(name) {
        Some("") => true,
        Some(rest) => {
            rest.len() <= 11
                && rest.starts_with('-')
                && rest.bytes().all(|b| b.is_ascii_digit() || b == b'-')
        }
        None => false,
    })
}

/// The headers of the answer to the guest.
pub(super) fn answer(upstream: &HeaderMap, key: &Secret) -> HeaderMap {
    let mut out = HeaderMap::new();
    for (name, value) in upstream {
        let text = name.as_str();
        let known = ANSWER.contains(&text) || ANSWER_PREFIXES.iter().any(|p| text.starts_with(p));
        if known && !Scrubber::finds_in(key, value.as_bytes()) {
            out.append(name.clone(), value.clone());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&'static str, &str)]) -> HeaderMap {
        entries.iter().map(|(k, v)| (HeaderName::from_static(k), v.parse().unwrap())).collect()
    }

    #[test]
    fn no_credential_of_the_guest_crosses() {
        let guest = map(&[
            ("authorization", "Bearer mine"),
            ("x-api-key", "mine"),
            ("x-goog-api-key", "mine"),
            ("api-key", "mine"),
            ("cookie", "s=mine"),
            ("proxy-authorization", "mine"),
            ("openai-organization", "mine"),
            ("x-anything", "mine"),
            ("anthropic-version", "mine"),
        ]);
        for dialect in
            [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini]
        {
            for value in request(dialect, &guest, true).values() {
                assert!(!value.to_str().unwrap().contains("mine"));
            }
        }
    }

    #[test]
    fn beta_features_that_act_at_the_provider_are_dropped() {
        let guest = map(&[(
            "anthropic-beta",
            "claude-code-20250219, mcp-client-2025-04-04,interleaved-thinking-2025-05-14,code-execution-2025-05-22,\
             files-api-2025-04-14,effort-2025-11-24,effort-x",
        )]);
        let sent = request(Dialect::Anthropic, &guest, false);
        assert_eq!(
            sent["anthropic-beta"],
            "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24"
        );
    }

    #[test]
    fn the_time_to_wait_is_read_as_a_bounded_number() {
        let of = |pairs: &[(&'static str, &'static str)]| retry_after_ms(&map(pairs));
        assert_eq!(of(&[("retry-after", "7")]), Some(7_000));
        assert_eq!(of(&[("retry-after", "7"), ("retry-after-ms", "250")]), Some(250));
        assert_eq!(of(&[("retry-after", "18446744073709551615")]), Some(MAX_RETRY_AFTER_MS));
        assert_eq!(of(&[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")]), None);
        assert_eq!(of(&[("retry-after", "-1")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_guest_learns_nothing_about_the_account() {
        let key = Secret::new("sk-secret-key".to_owned());
        let upstream = map(&[
            ("content-type", "text/event-stream"),
            ("retry-after", "3"),
            ("x-ratelimit-remaining-tokens", "5"),
            ("openai-organization", "acme"),
            ("set-cookie", "a=b"),
            ("location", "https://elsewhere/"),
            ("x-request-id", "echo sk-secret-key"),
        ]);
        let out = answer(&upstream, &key);
        let names: Vec<&str> = out.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["content-type", "retry-after", "x-ratelimit-remaining-tokens"]);
    }

    #[test]
    fn the_key_is_marked_sensitive() {
        let (_, value) =
            credential(Dialect::OpenaiChat, &Secret::new("sk-secret".into())).unwrap().unwrap();
        assert!(!format!("{value:?}").contains("secret"));
        assert!(credential(Dialect::Anthropic, &Secret::new("a\nb".into())).is_err());
        assert!(credential(Dialect::Anthropic, &Secret::new(String::new())).unwrap().is_none());
    }
}
