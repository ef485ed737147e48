//! A door into the reader of stream headers for the fuzz targets.
//!
//! Hidden from the documentation and no part of the crate's promises. It must never hold a parser
//! or a limit of its own: what is tried here is what runs.

use http::{HeaderName, HeaderValue, Request};

use crate::header::{self, Ask};

/// What a request of the guest is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeenAsk {
    /// A stream with this header.
    Open(Vec<u8>),
    /// The answer to the host's open of that number.
    Answer(u64),
    /// The signalling stream.
    Signal,
}

/// Reads what h2 hands over as a request; `None` for what is refused. Fields that no HTTP/2 peer
/// could send are left out.
#[must_use]
pub fn ask(method: &str, path: &str, fields: &[(&[u8], &[u8])]) -> Option<SeenAsk> {
    let mut request = Request::new(());
    *request.method_mut() = method.parse().ok()?;
    *request.uri_mut() = path.parse().ok()?;
    for (name, value) in fields {
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        else {
            continue;
        };
        request.headers_mut().append(name, value);
    }
    let (parts, ()) = request.into_parts();
    Some(match header::parse_request(&parts)? {
        Ask::Open(header) => SeenAsk::Open(header),
        Ask::Answer(id) => SeenAsk::Answer(id),
        Ask::Signal => SeenAsk::Signal,
    })
}

/// The field that a guest sends to open a stream with that header; `None` over the bound.
#[must_use]
pub fn open_field(header: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let request = header::open_request(header).ok()?;
    let (name, value) = request.headers().iter().next()?;
    Some((name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec()))
}
