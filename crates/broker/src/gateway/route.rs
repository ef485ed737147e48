//! Which endpoint a request is for: the known methods and paths of the run's dialect, nothing else.
//!
//! Paths are compared as bytes. Nothing is decoded or normalised, so that there is nothing that the
//! provider could decode another way.

use cofferdam_run::spec::Dialect;
use http::{HeaderMap, Method, Uri, header};

use super::refusal::{Refusal, codes};

/// A call that may be looked at further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// Generates; goes upstream.
    Generate(Target),
    /// Counts tokens; goes upstream, costs no tokens.
    Count(Target),
    /// Lists the admitted models; answered here.
    Models,
    /// Describes one model; answered here.
    Model(String),
}

/// Where a call goes upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Path without query.
    pub(super) path: String,
    /// Query to send, made here.
    pub(super) query: Option<&'static str>,
    /// Model named in the path, in the dialect that does that.
    pub(super) model: Option<String>,
    /// Whether the path asks for a stream, in the dialect that does that.
    pub(super) stream: Option<bool>,
}

impl Target {
    fn plain(path: &str) -> Self {
        Self { path: path.to_owned(), query: None, model: None, stream: None }
    }
}

/// Finds the endpoint.
pub(super) fn route(
    dialect: Dialect,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Endpoint, Refusal> {
    if headers.contains_key(header::UPGRADE) {
        return Err(Refusal::new(
            426,
            codes::UPGRADE,
            "WebSocket is not carried; ask with POST, the answer streams as server-sent events",
        ));
    }
    if uri.authority().is_some() {
        return Err(unknown(dialect, "this is a model endpoint and no proxy"));
    }
    let path = uri.path();
    let query = Query::read(uri.query().unwrap_or(""))?;
    match dialect {
        Dialect::Anthropic => match (method, path) {
            (&Method::POST, "/v1/messages") => Ok(Endpoint::Generate(query.anthropic(path))),
            (&Method::POST, "/v1/messages/count_tokens") => {
                Ok(Endpoint::Count(query.anthropic(path)))
            }
            _ => models(dialect, method, path, "/v1/models"),
        },
        Dialect::OpenaiChat => match (method, path) {
            (&Method::POST, "/v1/chat/completions") => Ok(Endpoint::Generate(Target::plain(path))),
            _ => models(dialect, method, path, "/v1/models"),
        },
        Dialect::OpenaiResponses => match (method, path) {
            (&Method::POST, "/v1/responses") => Ok(Endpoint::Generate(Target::plain(path))),
            _ => models(dialect, method, path, "/v1/models"),
        },
        Dialect::Gemini => gemini(method, path, &query),
    }
}

fn unknown(dialect: Dialect, why: &str) -> Refusal {
    let admitted = match dialect {
        Dialect::Anthropic => "POST /v1/messages, POST /v1/messages/count_tokens, GET /v1/models",
        Dialect::OpenaiChat => "POST /v1/chat/completions, GET /v1/models",
        Dialect::OpenaiResponses => "POST /v1/responses, GET /v1/models",
        Dialect::Gemini => {
            "POST /v1beta/models/MODEL:generateContent, :streamGenerateContent?alt=sse and :countTokens, \
             GET /v1beta/models"
        }
    };
    Refusal::new(404, codes::ENDPOINT, format!("{why}; this run may use: {admitted}"))
}

fn models(dialect: Dialect, method: &Method, path: &str, list: &str) -> Result<Endpoint, Refusal> {
    let refuse = || unknown(dialect, "no such endpoint here");
    if method != Method::GET {
        return Err(refuse());
    }
    match path.strip_prefix(list) {
        Some("") => Ok(Endpoint::Models),
        Some(rest) => match rest.strip_prefix('/') {
            Some(model) if is_model_name(model) => Ok(Endpoint::Model(model.to_owned())),
            _ => Err(refuse()),
        },
        None => Err(refuse()),
    }
}

fn is_model_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !text.contains("..")
}

fn gemini(method: &Method, path: &str, query: &Query) -> Result<Endpoint, Refusal> {
    let refuse = || unknown(Dialect::Gemini, "no such endpoint here");
    if method == Method::GET {
        return models(Dialect::Gemini, method, path, "/v1beta/models");
    }
    let named = path.strip_prefix("/v1beta/models/").and_then(|rest| rest.split_once(':'));
    let Some((model, verb)) =
        named.filter(|(model, _)| method == Method::POST && is_model_name(model))
    else {
        return Err(refuse());
    };
    let target = |query, stream| Target {
        path: path.to_owned(),
        query,
        model: Some(model.to_owned()),
        stream: Some(stream),
    };
    match verb {
        "generateContent" => Ok(Endpoint::Generate(target(None, false))),
        "countTokens" => Ok(Endpoint::Count(target(None, false))),
        "streamGenerateContent" if query.sse => {
            Ok(Endpoint::Generate(target(Some("alt=sse"), true)))
        }
        "streamGenerateContent" => Err(Refusal::new(
            400,
            codes::FIELD,
            "a stream is carried only as server-sent events: add ?alt=sse",
        )),
        _ => Err(refuse()),
    }
}

/// What of a query is understood. The client's key is dropped here.
#[derive(Debug, Default)]
struct Query {
    sse: bool,
    beta: bool,
}

impl Query {
    fn read(text: &str) -> Result<Self, Refusal> {
        let mut query = Self::default();
        for part in text.split('&').filter(|p| !p.is_empty()) {
            match part.split_once('=').unwrap_or((part, "")) {
                ("key", _) => {}
                ("alt", "sse") => query.sse = true,
                ("alt", "json") => {}
                ("beta", "true") => query.beta = true,
                _ => {
                    return Err(Refusal::new(
                        400,
                        codes::FIELD,
                        "a query parameter that this gateway does not know; it admits alt=sse and beta=true",
                    ));
                }
            }
        }
        Ok(query)
    }

    fn anthropic(&self, path: &str) -> Target {
        Target { query: self.beta.then_some("beta=true"), ..Target::plain(path) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dialect: Dialect, request: &str) -> Result<Endpoint, &'static str> {
        let (method, uri) = request.split_once(' ').unwrap();
        let (method, uri) = (method.parse().unwrap(), uri.parse().unwrap());
        route(dialect, &method, &uri, &HeaderMap::new()).map_err(|r| r.code)
    }

    #[test]
    fn only_the_dialects_own_endpoints_exist() {
        use Dialect::{Anthropic, Gemini, OpenaiChat, OpenaiResponses};
        for (dialect, request) in [
            (Anthropic, "POST /v1/messages"),
            (Anthropic, "POST /v1/messages?beta=true"),
            (Anthropic, "POST /v1/messages/count_tokens"),
            (Anthropic, "GET /v1/models"),
            (OpenaiChat, "POST /v1/chat/completions"),
            (OpenaiResponses, "POST /v1/responses"),
            (Gemini, "POST /v1beta/models/gemini-2.5-pro:generateContent?key=abc"),
            (Gemini, "POST /v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"),
            (Gemini, "GET /v1beta/models/gemini-2.5-pro"),
        ] {
            assert!(check(dialect, request).is_ok(), "{request}");
        }
        for (dialect, request) in [
            (Anthropic, "POST /v1/chat/completions"),
            (Anthropic, "POST /v1/messages/batches"),
            (Anthropic, "POST /v1/files"),
            (Anthropic, "GET /v1/messages"),
            (Anthropic, "POST /v1/messages/"),
            (Anthropic, "POST //v1/messages"),
            (Anthropic, "POST /v1/../v1/messages"),
            (Anthropic, "POST /v1/%6dessages"),
            (Anthropic, "POST http://other/v1/messages"),
            (Anthropic, "DELETE /v1/models/x"),
            (Anthropic, "GET /v1/models/../files"),
            (OpenaiChat, "POST /v1/responses"),
            (OpenaiChat, "POST /v1/embeddings"),
            (OpenaiResponses, "GET /v1/responses/resp_1"),
            (OpenaiResponses, "POST /v1/responses/resp_1/cancel"),
            (Gemini, "POST /v1beta/models/a/../b:generateContent"),
            (Gemini, "POST /v1beta/models/a:batchGenerateContent"),
            (Gemini, "POST /v1beta/cachedContents"),
            (Gemini, "POST /upload/v1beta/files"),
        ] {
            assert_eq!(check(dialect, request), Err(codes::ENDPOINT), "{request}");
        }
    }

    #[test]
    fn queries_are_understood_or_refused_and_never_copied() {
        let Ok(Endpoint::Generate(target)) =
            check(Dialect::Anthropic, "POST /v1/messages?beta=true&key=mine")
        else {
            panic!("refused")
        };
        assert_eq!(target.query, Some("beta=true"));
        assert_eq!(
            check(Dialect::OpenaiChat, "POST /v1/chat/completions?api-version=1"),
            Err(codes::FIELD)
        );
        assert_eq!(
            check(Dialect::Gemini, "POST /v1beta/models/a:streamGenerateContent"),
            Err(codes::FIELD)
        );
    }

    #[test]
    fn an_upgrade_is_told_to_use_post() {
        let mut headers = HeaderMap::new();
        headers.insert(header::UPGRADE, "websocket".parse().unwrap());
        let uri = "/v1/responses".parse().unwrap();
        let refusal = route(Dialect::OpenaiResponses, &Method::GET, &uri, &headers).unwrap_err();
        assert_eq!((refusal.status, refusal.code), (426, codes::UPGRADE));
    }
}
