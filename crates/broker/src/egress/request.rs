//! From a header to a request that the door understands: one target, one framing.
//!
//! Accepted are `CONNECT host:port` and absolute-form `http` requests. Everything in which two
//! readers could disagree (target and Host, lengths, connection options) is refused here, before
//! credential and rules are looked at. It must never rewrite what it cannot read in one way only.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use cofferdam_policy::{Authority, Refusal, RefusalCode};
use cofferdam_run::spec::Principal;
use zeroize::Zeroizing;

use super::head::{Field, Head, is_token_byte, list_members};
use super::limits::MAX_TARGET_BYTES;
use crate::token::{TOKEN_USER, Tokens};

/// HTTP version of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Http10,
    Http11,
}

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is none.
    Empty,
    /// So many bytes.
    Length(u64),
    /// Chunked.
    Chunked,
    /// Responses only: until the peer closes.
    UntilClose,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// `CONNECT`.
    Tunnel,
    /// Plain HTTP; the origin-form target to send on.
    Plain { method: Bytes, path: String },
}

/// A request that can be read in one way only.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) authority: Authority,
    pub(super) form: Form,
    pub(super) version: Version,
    pub(super) framing: Framing,
    /// A protocol upgrade is asked for.
    pub(super) upgrade: bool,
    /// The client wants the connection closed afterwards.
    pub(super) close: bool,
    head: Head,
    nominated: Vec<Bytes>,
}

/// Fields that are about one connection only, or about this proxy.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "proxy-authentication-info",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that decide where a message goes or ends: `Connection` must not have them removed.
const NEVER_NOMINATED: [&str; 3] = ["content-length", "transfer-encoding", "host"];

fn malformed(reason: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Malformed, reason)
}

impl Request {
    /// Reads a header.
    pub(super) fn parse(head: Head) -> Result<Self, Refusal> {
        let (method, target, version) = parse_request_line(&head.start)?;
        let (authority, form) = if method.as_ref() == b"CONNECT" {
            let authority = Authority::parse(target)
                .map_err(|error| malformed(format!("CONNECT target: {error}")))?;
            (authority, Form::Tunnel)
        } else {
            let (authority, path) = parse_absolute(target, &method)?;
            (authority, Form::Plain { method, path })
        };
        check_host(&head, &authority, &form, version)?;
        let framing = request_framing(&head, version)?;
        if form == Form::Tunnel && !matches!(framing, Framing::Empty | Framing::Length(0)) {
            return Err(malformed("CONNECT with a body"));
        }
        let nominated = connection_options(&head)?;
        let has =
            |option: &str| nominated.iter().any(|n| n.eq_ignore_ascii_case(option.as_bytes()));
        Ok(Self {
            upgrade: has("upgrade") && head.all("upgrade").next().is_some(),
            close: has("close") || version == Version::Http10,
            authority,
            form,
            version,
            framing,
            head,
            nominated,
        })
    }

    /// Whose token the request carries, exactly once.
    pub(super) fn principal(&self, tokens: &Tokens) -> Option<Principal> {
        let mut values = self.head.all("proxy-authorization");
        match (values.next(), values.next()) {
            (Some(value), None) => basic_token(value).and_then(|given| tokens.owner(&given)),
            _ => None,
        }
    }

    /// True for HEAD, whose answers have no body.
    pub(super) fn is_head(&self) -> bool {
        matches!(&self.form, Form::Plain { method, .. } if method.as_ref() == b"HEAD")
    }

    /// The fields that travel on: neither hop-by-hop nor nominated, neither Host nor framing.
    pub(super) fn end_to_end(&self) -> impl Iterator<Item = &Field> {
        end_to_end(&self.head, &self.nominated)
    }
}

/// Fields of `head` that concern the next hop too, without Host and framing, which each hop
/// writes itself.
pub(super) fn end_to_end<'a>(
    head: &'a Head,
    nominated: &'a [Bytes],
) -> impl Iterator<Item = &'a Field> {
    head.fields.iter().filter(|field| {
        !HOP_BY_HOP.iter().any(|name| field.is(name))
            && !field.is("host")
            && !field.is("content-length")
            && !nominated.iter().any(|name| field.name.eq_ignore_ascii_case(name))
    })
}

fn parse_request_line(line: &Bytes) -> Result<(Bytes, &str, Version), Refusal> {
    let mut parts = line.split(|b| *b == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed("the request line is not three parts with single blanks"));
    };
    if method.is_empty() || !method.iter().all(|b| is_token_byte(*b)) {
        return Err(malformed("the method is not a token"));
    }
    if target.len() > MAX_TARGET_BYTES {
        return Err(Refusal::new(RefusalCode::TooLarge, "the request target is too long"));
    }
    let target = std::str::from_utf8(target)
        .ok()
        .filter(|target| !target.is_empty() && target.bytes().all(|b| b.is_ascii_graphic()))
        .ok_or_else(|| malformed("the request target is not visible ASCII"))?;
    let version = match version {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        _ => return Err(malformed("the version is neither HTTP/1.1 nor HTTP/1.0")),
    };
    Ok((line.slice(..method.len()), target, version))
}

/// Splits `http://authority[/path][?query]` into authority and origin-form target.
fn parse_absolute(target: &str, method: &[u8]) -> Result<(Authority, String), Refusal> {
    const SCHEME: &str = "http://";
    let rest = match target.get(..SCHEME.len()) {
        Some(scheme) if scheme.eq_ignore_ascii_case(SCHEME) => &target[SCHEME.len()..],
        _ => return Err(malformed("the target is not an absolute http URL")),
    };
    // A fragment never travels, and some parsers end the authority at a backslash.
    if rest.contains(['#', '\\']) {
        return Err(malformed("the URL has a fragment or a backslash"));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let authority = Authority::parse_or(authority, 80)
        .map_err(|error| malformed(format!("URL authority: {error}")))?;
    let path = match path.chars().next() {
        Some('/') => path.to_owned(),
        Some(_) => format!("/{path}"),
        // RFC 9112 section 3.2.4.
        None if method == b"OPTIONS" => "*".to_owned(),
        None => "/".to_owned(),
    };
    Ok((authority, path))
}

fn check_host(
    head: &Head,
    authority: &Authority,
    form: &Form,
    version: Version,
) -> Result<(), Refusal> {
    let mut hosts = head.all("host");
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host,
        (None, _) if version == Version::Http10 => return Ok(()),
        (None, _) => return Err(malformed("Host is missing")),
        (Some(_), Some(_)) => return Err(malformed("more than one Host")),
    };
    let text = std::str::from_utf8(host).map_err(|_| malformed("Host is not ASCII"))?;
    // A Host without a port means the scheme's default; CONNECT has no scheme, so its own port.
    let default_port = match form {
        Form::Tunnel => authority.port(),
        Form::Plain { .. } => 80,
    };
    match Authority::parse_or(text, default_port) {
        Ok(host) if host == *authority => Ok(()),
        Ok(_) => Err(malformed("Host differs from the target")),
        Err(error) => Err(malformed(format!("Host: {error}"))),
    }
}

fn request_framing(head: &Head, version: Version) -> Result<Framing, Refusal> {
    match body_framing(head).map_err(malformed)? {
        Framing::Chunked if version == Version::Http10 => {
            Err(malformed("Transfer-Encoding in an HTTP/1.0 request"))
        }
        framing => Ok(framing),
    }
}

/// Content-Length and Transfer-Encoding: at most one of them, once, in its plainest form.
pub(super) fn body_framing(head: &Head) -> Result<Framing, &'static str> {
    let mut lengths = head.all("content-length");
    let mut encodings = head.all("transfer-encoding");
    match (lengths.next(), encodings.next()) {
        (None, None) => Ok(Framing::Empty),
        (Some(_), Some(_)) => Err("both Content-Length and Transfer-Encoding"),
        (Some(length), None) => {
            if lengths.next().is_some() {
                return Err("more than one Content-Length");
            }
            let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            std::str::from_utf8(length)
                .ok()
                .filter(|_| digits && length.len() <= 18)
                .and_then(|text| text.parse().ok())
                .map(Framing::Length)
                .ok_or("Content-Length is not a plain number")
        }
        (None, Some(encoding)) => {
            if encodings.next().is_some() {
                return Err("more than one Transfer-Encoding");
            }
            if !encoding.eq_ignore_ascii_case(b"chunked") {
                return Err("a Transfer-Encoding other than chunked");
            }
            Ok(Framing::Chunked)
        }
    }
}

/// The options that `Connection` names.
pub(super) fn connection_options(head: &Head) -> Result<Vec<Bytes>, Refusal> {
    let mut options = Vec::new();
    for value in head.all("connection") {
        for member in list_members(value) {
            if !member.iter().all(|b| is_token_byte(*b)) {
                return Err(malformed("a Connection option that is not a token"));
            }
            if NEVER_NOMINATED.iter().any(|name| member.eq_ignore_ascii_case(name.as_bytes())) {
                return Err(malformed("Connection names a field that routes or frames"));
            }
            options.push(value.slice_ref(member));
        }
    }
    Ok(options)
}

/// The password of Basic credentials whose user is [`TOKEN_USER`].
fn basic_token(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let blank = value.iter().position(|b| *b == b' ')?;
    let (scheme, rest) = value.split_at(blank);
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let encoded = rest.iter().position(|b| *b != b' ').map(|from| &rest[from..])?;
    let plain = Zeroizing::new(BASE64_STANDARD.decode(encoded).ok()?);
    let password = plain.strip_prefix(TOKEN_USER.as_bytes())?.strip_prefix(b":")?;
    Some(Zeroizing::new(password.to_vec()))
}
