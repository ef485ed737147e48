//! The host's end against a guest that does not keep to the protocol.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use bytes::Bytes;
use cofferdam_link::frames::{FrameError, FrameReader, FrameWriter};
use cofferdam_link::limits::{
    GUEST_STREAMS, INCOMING_QUEUE, MAX_JSON_FRAME, MAX_STREAMS, STREAM_WINDOW,
};
use cofferdam_link::{Ending, Link, LinkError};
use http::{Method, Request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[tokio::test]
async fn garbage_instead_of_a_preface_is_an_error() {
    let (a, mut b) = tokio::io::duplex(4 << 10);
    let garbage = tokio::spawn(async move {
        let _ = b.write_all(&[0xff; 4000]).await;
    });
    assert!(matches!(Link::host(a).await, Err(LinkError::Handshake(_))));
    garbage.await.unwrap();
}

#[tokio::test]
async fn garbage_after_the_preface_ends_the_link() {
    // A few fixed kinds and many pseudo-random ones.
    let mut tails: Vec<Vec<u8>> =
        vec![vec![0xff; 300], vec![0; 300], b"GET / HTTP/1.1\r\n\r\n".to_vec()];
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..200 {
        let mut tail = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
        for _ in 0..400 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            tail.push(seed.to_le_bytes()[2]);
        }
        tails.push(tail);
    }
    for tail in tails {
        let (a, mut b) = tokio::io::duplex(64 << 10);
        b.write_all(PREFACE).await.unwrap();
        b.write_all(&tail).await.unwrap();
        let Ok((link, mut incoming)) = Link::host(a).await else { continue };
        let drain = tokio::spawn(async move {
            let mut sink = Vec::new();
            // A random tail can announce a long frame; the end of the stream settles it.
            b.shutdown().await.unwrap();
            let _ = b.read_to_end(&mut sink).await;
        });
        while incoming.next().await.is_some() {}
        assert_ne!(link.closed().await, Ending::Closed);
        drop((link, incoming));
        drain.await.unwrap();
    }
}

fn post(path: &str) -> Request<()> {
    Request::builder().method(Method::POST).uri(format!("http://guest{path}")).body(()).unwrap()
}

struct Raw {
    host: Link,
    incoming: cofferdam_link::Incoming,
    requests: h2::client::SendRequest<Bytes>,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

async fn raw(initial_streams: usize) -> Raw {
    let (a, b) = tokio::io::duplex(16 << 10);
    let mut builder = h2::client::Builder::new();
    builder.initial_max_send_streams(initial_streams);
    let (host, client) = tokio::join!(Link::host(a), builder.handshake(b));
    let ((host, incoming), (requests, connection)) = (host.unwrap(), client.unwrap());
    Raw { host, incoming, requests, connection: tokio::spawn(connection) }
}

#[tokio::test]
async fn unknown_requests_are_refused_and_the_link_stands() {
    let mut raw = raw(10).await;
    for request in [
        post("/else"),
        post("/open"),
        post("/answer"),
        Request::builder().uri("http://guest/open").body(()).unwrap(),
        Request::builder()
            .method("POST")
            .uri("http://guest/open")
            .header("cofferdam-open", "%%%")
            .body(())
            .unwrap(),
        Request::builder()
            .method("POST")
            .uri("http://guest/answer")
            .header("cofferdam-answer", "1")
            .body(())
            .unwrap(),
    ] {
        raw.requests = raw.requests.ready().await.unwrap();
        let (response, _send) = raw.requests.send_request(request, false).unwrap();
        let error = response.await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM));
    }
    let open = Request::builder()
        .method("POST")
        .uri("http://guest/open")
        .header("cofferdam-open", "aGk")
        .body(())
        .unwrap();
    let (response, _send) = raw.requests.send_request(open, false).unwrap();
    response.await.unwrap();
    assert_eq!(raw.incoming.next().await.unwrap().0, b"hi");
}

#[tokio::test]
async fn second_signalling_stream_is_refused() {
    let mut raw = raw(10).await;
    let (first, _send) = raw.requests.send_request(post("/signal"), false).unwrap();
    first.await.unwrap();
    let (second, _send) = raw.requests.send_request(post("/signal"), false).unwrap();
    assert_eq!(second.await.unwrap_err().reason(), Some(h2::Reason::REFUSED_STREAM));
}

#[tokio::test]
async fn streams_over_the_limit_are_refused() {
    let mut raw = raw(10_000).await;
    // Before the host's settings arrive h2's client sends as many as it was told it may.
    let mut held = Vec::new();
    for _ in 0..(MAX_STREAMS + 20) {
        let open = Request::builder()
            .method("POST")
            .uri("http://guest/open")
            .header("cofferdam-open", "")
            .body(())
            .unwrap();
        held.push(raw.requests.send_request(open, false).unwrap());
    }
    let mut taken = Vec::new();
    for _ in 0..MAX_STREAMS {
        taken.push(raw.incoming.next().await.unwrap());
    }
    assert!(taken.len() >= GUEST_STREAMS);
    let next =
        tokio::time::timeout(std::time::Duration::from_millis(50), raw.incoming.next()).await;
    assert!(next.is_err(), "one more than the limit was handed out");
}

#[tokio::test]
async fn flood_of_opened_and_reset_streams_is_bounded() {
    let mut raw = raw(1_000_000).await;
    let mut opened = 0;
    for _ in 0..20_000 {
        let open = Request::builder()
            .method("POST")
            .uri("http://guest/open")
            .header("cofferdam-open", "")
            .body(())
            .unwrap();
        let Ok(ready) = raw.requests.clone().ready().await else { break };
        raw.requests = ready;
        let Ok((_response, mut send)) = raw.requests.send_request(open, false) else { break };
        send.send_reset(h2::Reason::CANCEL);
        opened += 1;
        if opened % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    // Nobody takes from `incoming`: what waits there is bounded, whatever was thrown at it.
    raw.host.close();
    let mut waiting = 0;
    while raw.incoming.next().await.is_some() {
        waiting += 1;
    }
    assert!(waiting <= INCOMING_QUEUE, "{waiting} streams waited");
    let _ = raw.connection.await.unwrap();
}

#[tokio::test]
async fn flood_of_tiny_unread_frames_ends_the_link() {
    let (a, mut b) = tokio::io::duplex(64 << 10);
    let mut bytes = PREFACE.to_vec();
    bytes.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let host = tokio::spawn(Link::host(a));
    b.write_all(&bytes).await.unwrap();
    let (link, mut incoming) = host.await.unwrap().unwrap();
    let (mut reader, mut writer) = tokio::io::split(b);
    let drain =
        tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
    // Each stream is opened with POST /open and then filled with one-byte DATA frames up to its
    // window. The field block is HPACK literals without indexing.
    let mut block = vec![0x83, 0x86, 0x04, 5];
    block.extend_from_slice(b"/open");
    block.extend_from_slice(&[0x00, 14]);
    block.extend_from_slice(b"cofferdam-open");
    block.push(0);
    let mut held = Vec::new();
    let flood = async {
        for stream in (1u32..).step_by(2).take(GUEST_STREAMS) {
            let mut frames = vec![0, 0, u8::try_from(block.len()).unwrap(), 1, 4];
            frames.extend_from_slice(&stream.to_be_bytes());
            frames.extend_from_slice(&block);
            for _ in 0..STREAM_WINDOW {
                frames.extend_from_slice(&[0, 0, 1, 0, 0]);
                frames.extend_from_slice(&stream.to_be_bytes());
                frames.push(b'x');
            }
            if writer.write_all(&frames).await.is_err() {
                return stream;
            }
        }
        u32::MAX
    };
    let take = async {
        while let Some(stream) = incoming.next().await {
            held.push(stream);
        }
    };
    let (last, ()) = tokio::join!(flood, take);
    assert!(last < 9, "the host buffered tiny frames on {last} stream ids");
    assert!(!held.is_empty(), "the opening request itself was not understood");
    assert!(matches!(link.closed().await, Ending::Fault(_)));
    let _ = drain.await.unwrap();
}

#[tokio::test]
async fn json_frames_are_bounded_and_typed() {
    let (a, b) = tokio::io::duplex(64 << 10);
    let mut writer = FrameWriter::<String, _>::new(a);
    let mut reader = FrameReader::<String, _>::new(b);
    writer.send(&"hello".to_owned()).await.unwrap();
    assert_eq!(reader.next().await.unwrap().as_deref(), Some("hello"));
    let long = "x".repeat(MAX_JSON_FRAME);
    assert!(matches!(writer.send(&long).await, Err(FrameError::TooLarge(_))));
    let fits = "x".repeat(MAX_JSON_FRAME - 2);
    let (sent, got) = tokio::join!(writer.send(&fits), reader.next());
    sent.unwrap();
    assert_eq!(got.unwrap(), Some(fits));
    writer.finish().await.unwrap();
    assert!(matches!(reader.next().await, Ok(None)));

    let cut: &[u8] = &[0, 0, 0, 9, b'"'];
    assert!(matches!(FrameReader::<String, _>::new(cut).next().await, Err(FrameError::Io(_))));
    let huge: &[u8] = &[0xff; 16];
    assert!(matches!(FrameReader::<String, _>::new(huge).next().await, Err(FrameError::Io(_))));
    let other: &[u8] = &[0, 0, 0, 2, b'1', b'2'];
    assert!(matches!(FrameReader::<String, _>::new(other).next().await, Err(FrameError::Shape(_))));
}
