//! Answers of hosts, beside `httparse`: a guest may control the host.

use cofferdam_broker::egress::fuzzing::{BodyFraming, limits, response};

use crate::choice;

const METHODS: [&[u8]; 3] = [b"GET", b"HEAD", b"POST"];

pub(crate) fn body(data: &[u8]) {
    let (first, bytes) = choice(data);
    let method = METHODS[first % METHODS.len()];
    let whole = response(bytes, usize::MAX, method).expect("memory never waits");
    let pieces = response(bytes, 1 + first % 61, method).expect("memory never waits");
    assert_eq!(whole, pieces, "the answer must not depend on how the bytes arrive");
    let Ok(seen) = whole else { return };
    assert!(seen.taken <= limits::MAX_RESPONSE_HEAD_BYTES + 1);

    let mut fields = [httparse::EMPTY_HEADER; limits::MAX_HEAD_LINES];
    let mut reference = httparse::Response::new(&mut fields);
    let length = reference.parse(&bytes[..seen.taken]).expect("what is relayed is HTTP");
    assert_eq!(length, httparse::Status::Complete(seen.taken), "both see the same end");
    assert_eq!(reference.code, Some(seen.status));
    assert_ne!(seen.status, 101, "a switch of protocols would make the connection opaque");
    let count =
        |name: &str| reference.headers.iter().filter(|f| f.name.eq_ignore_ascii_case(name)).count();
    assert!(count("content-length") + count("transfer-encoding") <= 1, "ambiguous framing");
    let bodiless =
        method == b"HEAD" || seen.status < 200 || seen.status == 204 || seen.status == 304;
    if bodiless {
        assert_eq!(seen.framing, BodyFraming::Empty);
    } else if count("transfer-encoding") == 1 {
        assert_eq!(seen.framing, BodyFraming::Chunked);
    } else if count("content-length") == 1 {
        assert!(matches!(seen.framing, BodyFraming::Length(_)));
    } else {
        assert_eq!(seen.framing, BodyFraming::UntilClose);
    }
    for (name, value) in &seen.end_to_end {
        assert!(!value.iter().any(|b| (*b < 0x20 && *b != b'\t') || *b == 0x7f));
        for own in ["connection", "transfer-encoding", "content-length", "proxy-authenticate"] {
            assert!(!name.eq_ignore_ascii_case(own.as_bytes()), "{own} travels on");
        }
    }
}
