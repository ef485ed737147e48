//! Bodies taken out of one framing and put into another, beside `httparse`'s reading of chunks.

use cofferdam_broker::egress::fuzzing::{BodyFraming, body as read, limits};

use crate::choice;

pub(crate) fn body(data: &[u8]) {
    let (first, rest) = choice(data);
    let (length, bytes) = choice(rest);
    let framing = match first % 4 {
        0 => BodyFraming::Length(length as u64),
        1 => BodyFraming::UntilClose,
        2 => BodyFraming::Empty,
        _ => BodyFraming::Chunked,
    };
    let whole = read(bytes, usize::MAX, framing).expect("memory never waits");
    let pieces = read(bytes, 1 + first % 61, framing).expect("memory never waits");
    match (&whole, &pieces) {
        (Ok(whole), Ok(pieces)) => {
            assert_eq!(whole.content, pieces.content);
            assert_eq!(whole.taken, pieces.taken);
        }
        (Err(_), Err(_)) => {}
        other => panic!("the answer depends on how the bytes arrive: {other:?}"),
    }
    let Ok(seen) = whole else { return };
    assert!(seen.largest <= limits::COPY_BYTES && seen.content.len() <= bytes.len());
    match framing {
        BodyFraming::Empty => assert!(seen.content.is_empty() && seen.taken == 0),
        BodyFraming::Length(length) => {
            assert_eq!(seen.content.len() as u64, length);
            assert_eq!(seen.content, bytes[..seen.taken]);
        }
        BodyFraming::UntilClose => assert_eq!(seen.content, bytes),
        BodyFraming::Chunked => {
            assert_eq!(chunks(&bytes[..seen.taken]), Some((seen.content.clone(), seen.taken)));
        }
    }
    // What goes out is one chunked body that holds the same, to our reader and to the other one.
    let again = read(&seen.rechunked, usize::MAX, BodyFraming::Chunked).unwrap().unwrap();
    assert_eq!((&again.content, again.taken), (&seen.content, seen.rechunked.len()));
    assert_eq!(chunks(&seen.rechunked), Some((seen.content, seen.rechunked.len())));
}

/// Content and length of a chunked body, as another parser reads it.
fn chunks(mut rest: &[u8]) -> Option<(Vec<u8>, usize)> {
    let length = rest.len();
    let mut content = Vec::new();
    loop {
        let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(rest) else {
            return None;
        };
        rest = &rest[line..];
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).ok()?;
        content.extend_from_slice(rest.get(..size)?);
        rest = rest[size..].strip_prefix(b"\r\n")?;
    }
    let mut fields = [httparse::EMPTY_HEADER; 4096];
    match httparse::parse_headers(rest, &mut fields) {
        Ok(httparse::Status::Complete((trailers, _))) => {
            Some((content, length - rest.len() + trailers))
        }
        _ => None,
    }
}
