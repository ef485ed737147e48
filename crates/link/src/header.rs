//! A stream's header as an HTTP field value, and the fixed requests around it.
//!
//! Never accepts a header over its bound, whichever end sends it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};

use crate::error::LinkError;
use crate::limits::MAX_HEADER;

/// Carries the header, base64.
const OPEN: HeaderName = HeaderName::from_static("cofferdam-open");
/// Carries the number of a host's open.
const ANSWER: HeaderName = HeaderName::from_static("cofferdam-answer");

/// A stream opened by the guest. HTTP/2 wants an authority in every request; nobody reads it.
const OPEN_URI: &str = "http://host/open";
/// The guest's answer to a host's open.
const ANSWER_URI: &str = "http://host/answer";
/// The signalling stream.
const SIGNAL_URI: &str = "http://host/signal";

/// What a request of the guest is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A stream opened by the guest.
    Open(Vec<u8>),
    /// The stream for the host's open of that number.
    Answer(u64),
    /// The signalling stream.
    Signal,
}

fn encode(header: &[u8]) -> Result<HeaderValue, LinkError> {
    if header.len() > MAX_HEADER {
        return Err(LinkError::HeaderTooLarge(header.len()));
    }
    // Base64 consists of visible ASCII, which every header value may hold.
    HeaderValue::from_str(&URL_SAFE_NO_PAD.encode(header))
        .map_err(|_| LinkError::HeaderTooLarge(header.len()))
}

fn decode(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = single(headers, &OPEN)?;
    let header = URL_SAFE_NO_PAD.decode(value).ok()?;
    (header.len() <= MAX_HEADER).then_some(header)
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value.as_bytes())
}

fn request(uri: &'static str, field: Option<(HeaderName, HeaderValue)>) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(uri);
    *request.version_mut() = http::Version::HTTP_2;
    if let Some((name, value)) = field {
        request.headers_mut().insert(name, value);
    }
    request
}

pub(crate) fn open_request(header: &[u8]) -> Result<Request<()>, LinkError> {
    Ok(request(OPEN_URI, Some((OPEN, encode(header)?))))
}

pub(crate) fn answer_request(id: u64) -> Request<()> {
    request(ANSWER_URI, Some((ANSWER, HeaderValue::from(id))))
}

pub(crate) fn signal_request() -> Request<()> {
    request(SIGNAL_URI, None)
}

/// Parses a request of the guest; `None` for anything that a guest of ours does not send.
pub(crate) fn parse_request(parts: &http::request::Parts) -> Option<Ask> {
    if parts.method != Method::POST {
        return None;
    }
    match parts.uri.path() {
        "/open" => decode(&parts.headers).map(Ask::Open),
        "/answer" => {
            let id = std::str::from_utf8(single(&parts.headers, &ANSWER)?).ok()?;
            id.parse().ok().map(Ask::Answer)
        }
        "/signal" => Some(Ask::Signal),
        _ => None,
    }
}

pub(crate) fn plain_response() -> Response<()> {
    Response::new(())
}

pub(crate) fn answer_response(header: &[u8]) -> Result<Response<()>, LinkError> {
    let mut response = Response::new(());
    response.headers_mut().insert(OPEN, encode(header)?);
    Ok(response)
}

pub(crate) fn parse_answer_response(response: &Response<h2::RecvStream>) -> Option<Vec<u8>> {
    decode(response.headers())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_bytes_survive_the_field_value() {
        let bytes: Vec<u8> = (0..=255).collect();
        let (parts, ()) = open_request(&bytes).unwrap().into_parts();
        assert_eq!(parse_request(&parts), Some(Ask::Open(bytes)));
    }

    #[test]
    fn header_over_the_bound_is_refused_by_both_ends() {
        assert!(matches!(open_request(&[0; MAX_HEADER + 1]), Err(LinkError::HeaderTooLarge(_))));
        let mut request = open_request(&[0; MAX_HEADER]).unwrap();
        request.headers_mut().insert(OPEN, HeaderValue::from_str(&"A".repeat(6000)).unwrap());
        assert_eq!(parse_request(&request.into_parts().0), None);
    }

    #[test]
    fn doubled_field_is_refused() {
        let mut request = answer_request(7);
        request.headers_mut().append(ANSWER, HeaderValue::from(8u64));
        assert_eq!(parse_request(&request.into_parts().0), None);
    }

    #[test]
    fn unknown_path_and_method_are_refused() {
        assert_eq!(parse_request(&request("http://host/else", None).into_parts().0), None);
        let mut get = signal_request();
        *get.method_mut() = Method::GET;
        assert_eq!(parse_request(&get.into_parts().0), None);
    }
}
