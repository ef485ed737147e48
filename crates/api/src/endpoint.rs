//! One definition per route: handler, authorisation row and OpenAPI entry are the same value.
//!
//! What a handler takes and gives is in its type, and the document is made from that type: the two
//! cannot say different things. The check of the caller's role is in the wrapper, not in a handler.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, RawQuery, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use cofferdam_run::{RunId, TimestampMs};
use http::{HeaderValue, StatusCode, header};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access::{Access, Principal, Via};
use crate::guard;
use crate::problem::Problem;
use crate::service::Service;

/// Longest idempotency key, bytes. A longer one is refused with API-005.
pub(crate) const MAX_KEY_BYTES: usize = 200;

/// A request without a body, or an empty object.
#[derive(Debug, Clone, Default, Serialize, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A call that was let in and understood.
pub(crate) struct Call<Q = Nothing, B = Nothing> {
    pub(crate) service: Arc<Service>,
    pub(crate) caller: Option<Principal>,
    pub(crate) query: Q,
    pub(crate) body: B,
    path: HashMap<String, String>,
    headers: http::HeaderMap,
}

impl<Q, B> Call<Q, B> {
    /// The run that the path names, by its id or the beginning of one.
    pub(crate) async fn run(&self) -> Result<RunId, Problem> {
        let text = self.part("run");
        if let Ok(id) = text.parse::<RunId>() {
            return Ok(id);
        }
        Ok(self.service.host.ledger().resolve_prefix(text).await?)
    }

    /// A part of the path, as it stands there.
    pub(crate) fn part(&self, name: &str) -> &str {
        self.path.get(name).map(String::as_str).unwrap_or_default()
    }

    /// A header's text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The caller's key for a creation, checked for size and kind.
    pub(crate) fn idempotency_key(&self) -> Result<Option<String>, Problem> {
        let Some(key) = self.header("idempotency-key") else { return Ok(None) };
        let fine = !key.is_empty()
            && key.len() <= MAX_KEY_BYTES
            && key.bytes().all(|b| b.is_ascii_graphic());
        if fine {
            return Ok(Some(key.to_owned()));
        }
        Err(Problem::malformed(format!(
            "an Idempotency-Key has 1 to {MAX_KEY_BYTES} visible ASCII characters"
        )))
    }

    /// The bearer's text, for ending a session.
    pub(crate) fn bearer(&self) -> Option<&str> {
        self.header(header::AUTHORIZATION.as_str())?.strip_prefix("Bearer ")
    }

    /// Who asks, for people.
    pub(crate) fn by(&self) -> &'static str {
        match self.caller.map(|c| c.via) {
            Some(Via::Socket) => "the person at the terminal",
            Some(Via::Session) => "the person at the browser",
            Some(Via::Token) | None => "a program with the operator's token",
        }
    }

    pub(crate) fn now(&self) -> TimestampMs {
        self.service.now()
    }
}

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// What a route answers with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    /// JSON of a type.
    Json { status: u16, schema: MakeSchema },
    /// Server-sent events whose data is JSON of a type.
    Events { schema: MakeSchema },
    /// A document of another kind.
    Document { media: &'static str },
}

/// A route.
pub(crate) struct Endpoint {
    pub(crate) method: http::Method,
    pub(crate) path: &'static str,
    /// Unique name, as clients that are generated call it.
    pub(crate) id: &'static str,
    pub(crate) access: Access,
    pub(crate) summary: &'static str,
    pub(crate) query: Option<MakeSchema>,
    pub(crate) body: Option<MakeSchema>,
    pub(crate) answer: Answer,
    pub(crate) handler: MethodRouter<Arc<Service>>,
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn some_schema<T: JsonSchema + 'static>() -> Option<MakeSchema> {
    let nothing = std::any::TypeId::of::<T>() == std::any::TypeId::of::<Nothing>();
    (!nothing).then_some(schema::<T> as MakeSchema)
}

/// Name, place and row of a route.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) summary: &'static str,
}

/// What a handler must be able to take from a request's query or body.
pub(crate) trait Input: DeserializeOwned + JsonSchema + Send + 'static {}
impl<T: DeserializeOwned + JsonSchema + Send + 'static> Input for T {}

/// What a handler may give as JSON.
pub(crate) trait Output: Serialize + JsonSchema + Send + 'static {}
impl<T: Serialize + JsonSchema + Send + 'static> Output for T {}

async fn understood<Q: Input, B: Input>(
    service: Arc<Service>,
    access: Access,
    path: HashMap<String, String>,
    query: Option<String>,
    request: Request,
) -> Result<Call<Q, B>, Problem> {
    let caller = request.extensions().get::<Option<Principal>>().copied().flatten();
    if !access.admits(caller) {
        return Err(match caller {
            None => Problem::unauthorised(),
            Some(_) => Problem::forbidden(access.as_str()),
        });
    }
    let query = serde_urlencoded(query.as_deref().unwrap_or_default())?;
    let (parts, body) = request.into_parts();
    let bytes = guard::body(body).await?;
    let bytes = if bytes.is_empty() { &b"{}"[..] } else { &bytes[..] };
    let body = serde_json::from_slice(bytes).map_err(Problem::malformed)?;
    Ok(Call { service, caller, query, body, path, headers: parts.headers })
}

fn serde_urlencoded<Q: DeserializeOwned>(text: &str) -> Result<Q, Problem> {
    // The query of a well-known place is all that axum's extractor looks at.
    let uri = http::Uri::builder()
        .path_and_query(format!("/?{text}"))
        .build()
        .map_err(Problem::malformed)?;
    let query = axum::extract::Query::<Q>::try_from_uri(&uri);
    query.map(|q| q.0).map_err(|rejection| Problem::malformed(rejection.body_text()))
}

fn wrapped<Q, B, F, Fut, R>(
    method: MethodFilter,
    access: Access,
    handler: F,
) -> MethodRouter<Arc<Service>>
where
    Q: Input,
    B: Input,
    F: Fn(Call<Q, B>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<R, Problem>> + Send,
    R: IntoResponse + 'static,
{
    let outer = move |State(service): State<Arc<Service>>,
                      Path(path): Path<HashMap<String, String>>,
                      RawQuery(query): RawQuery,
                      Extension(_checked): Extension<Option<Principal>>,
                      request: Request| {
        let handler = handler.clone();
        async move {
            let answer = match understood::<Q, B>(service, access, path, query, request).await {
                Ok(call) => handler(call).await,
                Err(problem) => Err(problem),
            };
            answer.map_or_else(Problem::into_response, IntoResponse::into_response)
        }
    };
    on(method, outer)
}

/// A value as JSON with a status.
pub(crate) struct Json<T>(pub(crate) StatusCode, pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.1) {
            Ok(body) => {
                let kind = HeaderValue::from_static("application/json");
                (self.0, [(header::CONTENT_TYPE, kind)], body).into_response()
            }
            Err(error) => {
                tracing::error!(%error, "an answer did not serialise");
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "HOST-008", "no answer was made")
                    .into_response()
            }
        }
    }
}

/// A text of another kind.
pub(crate) struct Document(pub(crate) &'static str, pub(crate) String);

impl IntoResponse for Document {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static(self.0);
        ([(header::CONTENT_TYPE, kind)], self.1).into_response()
    }
}

impl Endpoint {
    /// What all kinds have in common; the schemas come from the types that the handler takes.
    fn new<Q: Input, B: Input, F, Fut, R>(
        row: Row,
        method: http::Method,
        filter: MethodFilter,
        answer: Answer,
        handler: F,
    ) -> Self
    where
        F: Fn(Call<Q, B>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Problem>> + Send,
        R: IntoResponse + 'static,
    {
        let Row { id, path, access, summary } = row;
        Self {
            method,
            path,
            id,
            access,
            summary,
            query: some_schema::<Q>(),
            body: some_schema::<B>(),
            answer,
            handler: wrapped(filter, access, handler),
        }
    }

    /// Looks something up.
    pub(crate) fn get<Q: Input, A: Output, F, Fut>(row: Row, handler: F) -> Self
    where
        F: Fn(Call<Q>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<A, Problem>> + Send,
    {
        let answer = Answer::Json { status: 200, schema: schema::<A> };
        let json = move |call| {
            let answer = handler(call);
            async move { answer.await.map(|value| Json(StatusCode::OK, value)) }
        };
        Self::new(row, http::Method::GET, MethodFilter::GET, answer, json)
    }

    /// Changes something.
    pub(crate) fn post<B: Input, A: Output, F, Fut>(
        row: Row,
        status: StatusCode,
        handler: F,
    ) -> Self
    where
        F: Fn(Call<Nothing, B>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<A, Problem>> + Send,
    {
        let answer = Answer::Json { status: status.as_u16(), schema: schema::<A> };
        let json = move |call| {
            let answer = handler(call);
            async move { answer.await.map(|value| Json(status, value)) }
        };
        Self::new(row, http::Method::POST, MethodFilter::POST, answer, json)
    }

    /// Tells what happens, as server-sent events.
    pub(crate) fn events<Q: Input, E: Output, F, Fut, R>(row: Row, handler: F) -> Self
    where
        F: Fn(Call<Q>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Problem>> + Send,
        R: IntoResponse + 'static,
    {
        let answer = Answer::Events { schema: schema::<E> };
        Self::new(row, http::Method::GET, MethodFilter::GET, answer, handler)
    }

    /// Hands out a text as it is.
    pub(crate) fn document<F, Fut>(row: Row, media: &'static str, handler: F) -> Self
    where
        F: Fn(Call) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<String, Problem>> + Send,
    {
        let text = move |call| {
            let answer = handler(call);
            async move { answer.await.map(|text| Document(media, text)) }
        };
        Self::new(row, http::Method::GET, MethodFilter::GET, Answer::Document { media }, text)
    }
}
