//! One exchange: admit, reserve, send, answer.
//!
//! The order is the point: nothing leaves before it was parsed, checked and reserved for, and the
//! key is added last, to a request that was made here from nothing.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::call::Call;
use super::json::Json;
use super::limits::{MAX_ERROR_BODY_BYTES, SMALL_REQUEST_BYTES};
use super::meter::Ask;
use super::refusal::{Refusal, codes};
use super::relay::{self, GuestBody};
use super::route::{Endpoint, Target, route};
use super::scrub::Scrubber;
use super::shared::{Shared, shortage};
use super::upstream::{Lease, SendError};
use super::{body, headers};
use cofferdam_run::spec::Dialect;

/// What becomes of an admitted request.
enum Plan {
    /// Answered here.
    Here(Value),
    /// To be sent.
    Send { request: Box<Request<Full<Bytes>>>, counts: bool, permit: OwnedSemaphorePermit },
}

/// Carries one request.
pub(super) async fn exchange(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Response<GuestBody> {
    let (parts, incoming) = request.into_parts();
    let mut call = Call::new(Arc::clone(&shared), &parts.method, parts.uri.path());
    let plan = match plan(&shared, &mut call, &parts, incoming).await {
        Ok(plan) => plan,
        Err(refusal) => return refuse(&mut call, &refusal),
    };
    let (request, counts, permit) = match plan {
        Plan::Send { request, counts, permit } => (request, counts, permit),
        Plan::Here(document) => {
            call.answered(200);
            return whole(StatusCode::OK, Bytes::from(document.to_string()));
        }
    };
    match send(&shared, &mut call, *request).await {
        Ok((response, lease)) => answer(call, response, lease, counts, permit).await,
        Err(refusal) => refuse(&mut call, &refusal),
    }
}

async fn plan(
    shared: &Arc<Shared>,
    call: &mut Call,
    parts: &request::Parts,
    incoming: Incoming,
) -> Result<Plan, Refusal> {
    let endpoint = route(shared.dialect, &parts.method, &parts.uri, &parts.headers)?;
    let (target, counts) = match endpoint {
        Endpoint::Generate(target) => (target, false),
        Endpoint::Count(target) => (target, true),
        Endpoint::Models => return Ok(Plan::Here(models(shared))),
        Endpoint::Model(id) => {
            call.model(&id);
            return one_model(shared, &id).map(Plan::Here);
        }
    };
    if let Some(refusal) = shared.over() {
        return Err(refusal);
    }
    let permit = Arc::clone(&shared.calls).try_acquire_owned().map_err(|_| {
        Refusal::later(codes::BUSY, "too many calls at once; retry when one has ended")
    })?;
    let read = body::read(&parts.headers, incoming, &shared.large_bodies).await?;
    call.request_bytes(read.bytes.len());
    let json = parse(read.bytes.clone()).await?;
    if let Some(model) = json.as_object().and_then(|b| b.text("model")).or(target.model.as_deref())
    {
        call.model(model);
    }
    let admitted = shared.rules().admit(&target, counts, json)?;
    let ask = Ask {
        input: if counts { 0 } else { admitted.input_tokens(read.bytes.len()) },
        output: admitted.output_tokens(),
        least_output: admitted.least_output(),
        price: shared.prices.find(&admitted.model),
    };
    let reservation = shared.meter.reserve(ask).map_err(shortage)?;
    let (granted, stream) = (reservation.output(), admitted.stream);
    call.reserved(reservation);
    let bytes = admitted.into_body(granted);
    let request = outgoing(shared, parts, &target, stream, bytes)?;
    Ok(Plan::Send { request: Box::new(request), counts, permit })
}

/// Parses a body; a large one beside the tasks that carry other calls.
async fn parse(bytes: Bytes) -> Result<Json, Refusal> {
    let parsed = if bytes.len() > SMALL_REQUEST_BYTES {
        let task = tokio::task::spawn_blocking(move || Json::parse(&bytes));
        task.await.map_err(|_| {
            Refusal::new(500, codes::MALFORMED, "the body could not be parsed; retry")
        })?
    } else {
        Json::parse(&bytes)
    };
    parsed
        .map_err(|e| Refusal::new(400, codes::MALFORMED, format!("the body is no plain JSON: {e}")))
}

/// The request to the provider, made from nothing.
fn outgoing(
    shared: &Shared,
    parts: &request::Parts,
    target: &Target,
    stream: bool,
    bytes: Vec<u8>,
) -> Result<Request<Full<Bytes>>, Refusal> {
    let broken = |what: &str| {
        Refusal::new(500, codes::BROKEN, format!("the request could not be made: {what}"))
    };
    let origin = shared.upstream.origin();
    let uri = origin
        .target(&target.path, target.query)
        .parse::<http::Uri>()
        .map_err(|_| broken("path"))?;
    let host = HeaderValue::from_str(&origin.host_header).map_err(|_| broken("host"))?;
    let mut request = Request::new(Full::from(bytes));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers::request(shared.dialect, &parts.headers, stream);
    request.headers_mut().insert(header::HOST, host);
    if let Some((name, value)) = &shared.credential {
        request.headers_mut().insert(name.clone(), value.clone());
    }
    Ok(request)
}

async fn send(
    shared: &Arc<Shared>,
    call: &mut Call,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, Lease), Refusal> {
    call.mark_sent();
    let sent = tokio::select! {
        biased;
        refusal = shared.cut() => return Err(refusal),
        sent = shared.upstream.send(request, shared.timeouts.answer_head) => sent,
    };
    sent.map_err(|error| {
        if let SendError::NotSent(_) = error {
            call.release();
        }
        failure(shared, error)
    })
}

fn failure(shared: &Shared, error: SendError) -> Refusal {
    // The host part of the address is the operator's to know; the guest learns that it failed.
    match error {
        SendError::NotSent(why) => {
            tracing::warn!(provider = %shared.upstream.origin().authority, error = %why, "model provider unreachable");
            Refusal::new(
                502,
                codes::UNREACHABLE,
                "the model provider cannot be reached from the host; retry later",
            )
        }
        SendError::NoAnswer(why) => {
            tracing::warn!(provider = %shared.upstream.origin().authority, error = %why, "model provider broke off");
            Refusal::new(
                502,
                codes::BROKEN,
                "the model provider closed the connection without an answer",
            )
        }
        SendError::Silent => {
            Refusal::new(504, codes::SILENT, "the model provider did not begin to answer in time")
        }
    }
}

async fn answer(
    mut call: Call,
    response: Response<Incoming>,
    lease: Lease,
    counts: bool,
    permit: OwnedSemaphorePermit,
) -> Response<GuestBody> {
    let status = response.status();
    if status.is_success() {
        call.answered(status.as_u16());
        let head = headers::answer(response.headers(), &call.shared.key);
        let body = relay::body(call, response, lease, counts, permit);
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        *answer.headers_mut() = head;
        return answer;
    }
    // Providers bill no refused call.
    call.release();
    if status == StatusCode::UNAUTHORIZED {
        // The provider's own text may quote the key in part.
        let refusal = Refusal::new(
            401,
            codes::KEY,
            "the model provider does not accept the host's key; the key is set on the host, not in here",
        );
        return refuse(&mut call, &refusal);
    }
    if !status.is_client_error() && !status.is_server_error() {
        let text =
            format!("the model provider answered {}; redirects are not followed", status.as_u16());
        return refuse(&mut call, &Refusal::new(502, codes::BROKEN, text));
    }
    let head = headers::answer(response.headers(), &call.shared.key);
    let asked = headers::retry_after_ms(response.headers());
    let (text, complete) = error_body(&call, response).await;
    if complete {
        lease.give_back();
    }
    call.answered(status.as_u16());
    call.asked_to_wait(asked);
    call.answer_bytes(text.len());
    let mut answer = whole(status, text);
    *answer.headers_mut() = head;
    answer
}

/// The provider's error text, bounded and without the key; and whether that was all of it.
async fn error_body(call: &Call, response: Response<Incoming>) -> (Bytes, bool) {
    let mut incoming = response.into_body();
    let mut scrubber = Scrubber::new(&call.shared.key);
    let mut out = BytesMut::new();
    loop {
        let frame = tokio::select! {
            _ = call.shared.cut() => return (out.freeze(), false),
            frame = timeout(call.shared.timeouts.answer_idle, incoming.frame()) => frame,
        };
        match frame {
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                out.extend_from_slice(&scrubber.push(data));
            }
            Ok(None) => {
                out.extend_from_slice(&scrubber.finish());
                return (out.freeze(), true);
            }
            Ok(Some(Err(_))) | Err(_) => return (out.freeze(), false),
        }
        if out.len() > MAX_ERROR_BODY_BYTES {
            out.truncate(MAX_ERROR_BODY_BYTES);
            return (out.freeze(), false);
        }
    }
}

fn refuse(call: &mut Call, refusal: &Refusal) -> Response<GuestBody> {
    call.refused(refusal);
    refusal.response(call.shared.dialect).map(relay::full)
}

fn whole(status: StatusCode, bytes: Bytes) -> Response<GuestBody> {
    let mut response = Response::new(relay::full(bytes));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn admitted_models(shared: &Shared) -> impl Iterator<Item = &str> {
    let more = shared.policy.models.iter().map(String::as_str).filter(|m| *m != shared.model);
    std::iter::once(shared.model.as_str()).chain(more)
}

fn describe_model(dialect: Dialect, id: &str) -> Value {
    match dialect {
        Dialect::Anthropic => {
            json!({"type": "model", "id": id, "display_name": id, "created_at": "1970-01-01T00:00:00Z"})
        }
        Dialect::OpenaiChat | Dialect::OpenaiResponses => {
            json!({"id": id, "object": "model", "created": 0, "owned_by": "cofferdam"})
        }
        Dialect::Gemini => json!({
            "name": format!("models/{id}"), "displayName": id,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }),
    }
}

/// The list of models: those that this run admits, whatever the account has.
fn models(shared: &Shared) -> Value {
    let list: Vec<Value> =
        admitted_models(shared).map(|id| describe_model(shared.dialect, id)).collect();
    match shared.dialect {
        Dialect::Anthropic => json!({
            "first_id": list.first().map(|m| m["id"].clone()), "last_id": list.last().map(|m| m["id"].clone()),
            "has_more": false, "data": list,
        }),
        Dialect::OpenaiChat | Dialect::OpenaiResponses => json!({"object": "list", "data": list}),
        Dialect::Gemini => json!({"models": list}),
    }
}

fn one_model(shared: &Shared, id: &str) -> Result<Value, Refusal> {
    if admitted_models(shared).any(|model| model == id) {
        return Ok(describe_model(shared.dialect, id));
    }
    Err(Refusal::new(
        404,
        codes::MODEL,
        format!("this run is pinned to the model {}", shared.model),
    ))
}
