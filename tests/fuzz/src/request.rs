//! Request heads of the egress door, beside `httparse` and `http::Uri`.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use cofferdam_broker::egress::fuzzing::{BodyFraming, SeenRequest, limits, request};
use cofferdam_broker::{RunToken, Secret};
use cofferdam_policy::Authority;

use crate::{choice, has_controls};

const TOKEN: &str = "t0ken";
const LINES: usize = limits::MAX_HEAD_LINES;
/// Fields that are about this hop, and must not be seen by the next one.
const OWN: [&str; 12] = [
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
    "host",
    "content-length",
];

pub(crate) fn body(data: &[u8]) {
    let (first, bytes) = choice(data);
    let token = RunToken::new(Secret::new(TOKEN.to_owned()));
    let whole = request(bytes, usize::MAX, &token).expect("memory never waits");
    let pieces = request(bytes, 1 + first % 61, &token).expect("memory never waits");
    assert_eq!(whole, pieces, "the answer must not depend on how the bytes arrive");
    let Ok(seen) = whole else { return };
    assert!(seen.taken <= limits::MAX_HEAD_BYTES + 1 && seen.taken <= bytes.len());

    let head = &bytes[..seen.taken];
    let mut fields = [httparse::EMPTY_HEADER; LINES];
    let mut reference = httparse::Request::new(&mut fields);
    let length = reference.parse(head).expect("what is admitted is HTTP to others too");
    assert_eq!(length, httparse::Status::Complete(seen.taken), "both see the same end");
    check_target(&seen, &reference);
    check_framing(&seen, reference.headers);
    check_token(&seen, reference.headers);
    check_forwarded(&seen);
    for (name, _) in &seen.end_to_end {
        let name = String::from_utf8(name.to_vec()).unwrap().to_ascii_lowercase();
        assert!(!OWN.contains(&name.as_str()), "{name} travels on");
    }
}

fn values<'a>(fields: &'a [httparse::Header<'a>], name: &str) -> Vec<&'a [u8]> {
    let wanted = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(name);
    fields.iter().filter(wanted).map(|field| field.value).collect()
}

fn check_target(seen: &SeenRequest, reference: &httparse::Request<'_, '_>) {
    let shown = seen.authority.to_string();
    assert!(!has_controls(&shown));
    assert_eq!(shown.parse::<Authority>().as_ref(), Ok(&seen.authority));
    let (method, target) = (reference.method.unwrap(), reference.path.unwrap());
    assert_eq!(seen.tunnel, method == "CONNECT");
    if seen.tunnel {
        assert_eq!(Authority::parse(target).as_ref(), Ok(&seen.authority));
        assert!(matches!(seen.framing, BodyFraming::Empty | BodyFraming::Length(0)));
        return;
    }
    if let Ok(uri) = target.parse::<http::Uri>() {
        assert_eq!(uri.scheme_str(), Some("http"));
        assert_eq!(uri.port_u16().unwrap_or(80), seen.authority.port(), "{target}");
        let host = uri.host().unwrap().to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let own = seen.authority.host();
        match own.literal() {
            Some(std::net::IpAddr::V6(address)) => {
                let inner = host.trim_start_matches('[').trim_end_matches(']');
                assert_eq!(inner.parse(), Ok(address));
            }
            _ => assert_eq!(host, own.to_string(), "{target}"),
        }
    }
    // A Host field that says something else would send the request to two places.
    for host in values(reference.headers, "host") {
        let host = std::str::from_utf8(host).unwrap();
        assert_eq!(Authority::parse_or(host, 80).as_ref(), Ok(&seen.authority));
    }
}

fn check_framing(seen: &SeenRequest, fields: &[httparse::Header<'_>]) {
    let lengths = values(fields, "content-length");
    let encodings = values(fields, "transfer-encoding");
    match (lengths.as_slice(), encodings.as_slice()) {
        ([], []) => assert_eq!(seen.framing, BodyFraming::Empty),
        ([length], []) => {
            let length = std::str::from_utf8(length).unwrap().parse().unwrap();
            assert_eq!(seen.framing, BodyFraming::Length(length));
        }
        ([], [encoding]) => {
            assert!(encoding.eq_ignore_ascii_case(b"chunked"));
            assert_eq!(seen.framing, BodyFraming::Chunked);
        }
        other => panic!("ambiguous framing was admitted: {other:?}"),
    }
}

fn check_token(seen: &SeenRequest, fields: &[httparse::Header<'_>]) {
    let given = values(fields, "proxy-authorization");
    let right = BASE64_STANDARD.encode(format!("run:{TOKEN}"));
    if seen.carries {
        let [value] = given[..] else { panic!("{} credentials were taken for one", given.len()) };
        assert!(value.ends_with(right.as_bytes()), "another credential was taken for the token");
        assert!(value[..5].eq_ignore_ascii_case(b"basic"));
    } else if let [value] = given[..] {
        assert_ne!(value, format!("Basic {right}").as_bytes(), "the token was not recognised");
    }
}

/// What goes to the host is read there by a parser that is not ours.
fn check_forwarded(seen: &SeenRequest) {
    if seen.tunnel {
        return assert!(seen.forwarded.is_empty());
    }
    let mut fields = [httparse::EMPTY_HEADER; LINES + 4];
    let mut reference = httparse::Request::new(&mut fields);
    let length = reference.parse(&seen.forwarded).expect("what goes out is HTTP");
    assert_eq!(length, httparse::Status::Complete(seen.forwarded.len()));
    assert_eq!(reference.version, Some(1));
    let path = reference.path.unwrap();
    assert!(path.starts_with('/') || path == "*", "{path}");
    let [host] = values(reference.headers, "host")[..] else { panic!("not one Host") };
    let host = std::str::from_utf8(host).unwrap();
    assert_eq!(Authority::parse_or(host, 80).as_ref(), Ok(&seen.authority));
    assert_eq!(values(reference.headers, "connection"), [b"close"]);
    check_framing(seen, reference.headers);
    for name in ["proxy-authorization", "proxy-connection", "te", "upgrade", "trailer"] {
        assert!(values(reference.headers, name).is_empty(), "{name} went out");
    }
}
