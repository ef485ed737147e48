//! What every request passes before anything looks at what it wants.
//!
//! Over TCP a web page of any site can send requests here, so the name that it used, the page that it
//! came from and the kind of body are checked before the token. Over the local socket no browser
//! can, and the kernel names the peer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, HeaderValue, Method, header};

use crate::access::{Principal, Role, Via};
use crate::problem::Problem;
use crate::service::Service;

/// Longest body of a request, bytes. A longer one is refused with API-006.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;

/// Which door a request came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The local socket; the peer is this person's or root's.
    Socket,
    /// A loopback address.
    Tcp,
}

/// The names under which the TCP door may be addressed, as `host:port` in lower case.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(Vec<String>);

impl Names {
    /// Of a loopback port, and of names that the operator added (with their port when not 80/443).
    pub(crate) fn of(port: u16, added: &[String]) -> Self {
        let mut names: Vec<String> =
            ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}")).to_vec();
        names.extend(added.iter().map(|name| name.to_ascii_lowercase()));
        Self(names)
    }

    fn has(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.0.contains(&host)
    }

    /// The origin of a page of ours: the scheme is ours to choose only behind a proxy.
    fn has_origin(&self, origin: &str) -> bool {
        ["http://", "https://"]
            .iter()
            .any(|scheme| origin.strip_prefix(scheme).is_some_and(|host| self.has(host)))
    }
}

fn one<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Result<Option<&'h str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(Problem::malformed(format!("the header {name} is there twice")));
    }
    first
        .map(|value| value.to_str())
        .transpose()
        .map_err(|_| Problem::malformed(format!("the header {name} is not text")))
}

/// Host, Origin and fetch metadata: a page of another site, or of this machine under another name,
/// gets nothing (DNS rebinding, foreign origins).
fn same_site(request: &Request, names: &Names) -> Result<(), Problem> {
    let headers = request.headers();
    let host = one(headers, &header::HOST)?.ok_or_else(|| Problem::foreign("no host"))?;
    if !names.has(host) {
        return Err(Problem::foreign("the host"));
    }
    if let Some(authority) = request.uri().authority()
        && !names.has(authority.as_str())
    {
        return Err(Problem::foreign("the host"));
    }
    if let Some(origin) = one(headers, &header::ORIGIN)?
        && !names.has_origin(origin)
    {
        return Err(Problem::foreign("the origin"));
    }
    let site = header::HeaderName::from_static("sec-fetch-site");
    if let Some(site) = one(headers, &site)?
        && !matches!(site, "same-origin" | "none")
    {
        return Err(Problem::foreign("the page"));
    }
    Ok(())
}

/// What changes something carries JSON and says so: a form of a foreign page cannot.
fn is_json(request: &Request) -> Result<(), Problem> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let kind = one(request.headers(), &header::CONTENT_TYPE)?.unwrap_or_default();
    let mut parts = kind.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let plain = parts.all(|parameter| parameter.eq_ignore_ascii_case("charset=utf-8"));
    if essence.eq_ignore_ascii_case("application/json") && plain {
        return Ok(());
    }
    Err(Problem::not_json())
}

fn caller(request: &Request, door: Door, service: &Service) -> Result<Option<Principal>, Problem> {
    let given = one(request.headers(), &header::AUTHORIZATION)?;
    match (given, door) {
        (Some(text), _) => {
            let token = text.strip_prefix("Bearer ").ok_or_else(Problem::unauthorised)?;
            let who = service.secrets.who(token, service.now());
            who.map(Some).ok_or_else(Problem::unauthorised)
        }
        (None, Door::Socket) => Ok(Some(Principal { role: Role::Operator, via: Via::Socket })),
        (None, Door::Tcp) => Ok(None),
    }
}

/// State of the guard: the service, the door, and the names of that door.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) service: Arc<Service>,
    pub(crate) door: Door,
    pub(crate) names: Names,
}

fn check(guard: &Guard, request: &Request) -> Result<Option<Principal>, Problem> {
    if guard.door == Door::Tcp {
        same_site(request, &guard.names)?;
    }
    is_json(request)?;
    caller(request, guard.door, &guard.service)
}

/// The middleware around every route, known or not.
pub(crate) async fn guard(
    State(guard): State<Guard>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match check(&guard, &request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    protect(response.headers_mut());
    response
}

/// Headers that each answer carries: nothing of ours is cached, framed, sniffed or run elsewhere.
fn protect(headers: &mut HeaderMap) {
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        (
            "permissions-policy",
            "camera=(), microphone=(), geolocation=(), payment=(), usb=(), clipboard-read=()",
        ),
        (
            "content-security-policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
             connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'; require-trusted-types-for 'script'",
        ),
    ] {
        let name = header::HeaderName::from_static(name);
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// Reads a body up to [`MAX_BODY_BYTES`].
pub(crate) async fn body(body: Body) -> Result<bytes::Bytes, Problem> {
    axum::body::to_bytes(body, MAX_BODY_BYTES)
        .await
        .map_err(|_cut| Problem::too_large(MAX_BODY_BYTES))
}
