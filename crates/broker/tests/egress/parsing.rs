//! Requests that two readers could read differently are refused before anything else happens.

use crate::support::{AUTH, World, code, get, read_head};
use tokio::io::AsyncWriteExt as _;

/// Each is refused with 400 and reaches neither resolver nor dialler.
#[tokio::test]
async fn what_is_not_strict_is_refused_before_any_lookup() {
    let line = "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n";
    let post = "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n";
    let connect = "CONNECT a.example:443 HTTP/1.1\r\n";
    let mut requests: Vec<String> = vec![
        // Request lines.
        format!("GET /origin-form HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET a.example:80 HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("connect a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n{AUTH}\r\n"),
        format!("GET  http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ b HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/\tHTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!(" GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("G(T http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ HTTP/1.2\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ HTTP/2\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ http/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ HTTP/1.1 \r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("\r\n\r\n{line}{AUTH}\r\n"),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        // URLs.
        format!("GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET ftp://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http:/a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http:///a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://user@a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example#x HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example\\@b.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/\\x HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/é HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example: HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        // Host.
        format!("GET http://a.example/ HTTP/1.1\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ HTTP/1.1\r\nHost:\r\n{AUTH}\r\n"),
        format!("{line}Host: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ HTTP/1.1\r\nHost: a.example, b.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ HTTP/1.1\r\nHost: a.example:8080\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ HTTP/1.1\r\nHost: http://a.example\r\n{AUTH}\r\n"),
        format!("{connect}Host: a.example:80\r\n{AUTH}\r\n"),
        format!("{connect}Host: b.example:443\r\n{AUTH}\r\n"),
        format!("{connect}{AUTH}\r\n"),
        // Field lines.
        format!("{line}{AUTH}X-A: 1\r\n folded\r\n\r\n"),
        format!("{line}{AUTH}X-A : 1\r\n\r\n"),
        format!("{line}{AUTH}X A: 1\r\n\r\n"),
        format!("{line}{AUTH}: 1\r\n\r\n"),
        format!("{line}{AUTH}no colon\r\n\r\n"),
        format!("{line}{AUTH}X-A: \x01\r\n\r\n"),
        format!("{line}{AUTH}X-A: \x7f\r\n\r\n"),
        format!("{line}{AUTH}X-A: a\0b\r\n\r\n"),
        format!("{line}{AUTH}X-A: a\rb\r\n\r\n"),
        format!("{line}{AUTH}X-A: 1\r\r\n\r\n"),
        format!("{line}{AUTH}X-A: 1\n\r\n"),
        format!("{line}{AUTH}X-A: 1\r\n\n"),
        // Connection options.
        format!("{line}{AUTH}Connection: Host\r\n\r\n"),
        format!("{line}{AUTH}Connection: close, transfer-encoding\r\n\r\n"),
        format!("{line}{AUTH}Connection: close\r\nConnection: content-LENGTH\r\n\r\n"),
        format!("{line}{AUTH}Connection: a b\r\n\r\n"),
        // A body where none can be.
        format!("{connect}Host: a.example:443\r\n{AUTH}Content-Length: 1\r\n\r\nx"),
        format!("{connect}Host: a.example:443\r\n{AUTH}Transfer-Encoding: chunked\r\n\r\n"),
    ];
    // Lengths.
    for framing in [
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: 5 5",
        "Content-Length: 0x5",
        "Content-Length:",
        "Content-Length: 99999999999999999999",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding:",
    ] {
        requests.push(format!("{post}{AUTH}{framing}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
    }
    requests.push(format!(
        "POST http://a.example/ HTTP/1.0\r\n{AUTH}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ));
    for request in requests {
        let world = World::plain();
        let answer = world.ask(&request).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?} got {answer}");
        assert!(world.untouched(), "{request:?}");
        let facts = world.log.facts();
        assert_eq!(facts.len(), 1, "{request:?}");
    }
}

#[tokio::test]
async fn legal_neighbours_of_refused_requests_pass() {
    for request in [
        format!("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("\r\nGET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET HTTP://A.Example./?q=a@b:c HTTP/1.1\r\nHost: A.EXAMPLE.:80\r\n{AUTH}\r\n"),
        format!("GET http://a.example?q HTTP/1.1\r\nhOST: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/[]{{}}|^`\" HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ HTTP/1.0\r\n{AUTH}\r\n"),
        format!("CONNECT a.example:443 HTTP/1.0\r\n{AUTH}\r\n"),
        format!("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
        format!(
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nContent-Length: 0\r\n{AUTH}\r\n"
        ),
        format!(
            "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}Content-Length: 0\r\n\r\n"
        ),
        format!(
            "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}transfer-encoding:CHUNKED\r\n\r\n0\r\n\r\n"
        ),
        format!(
            "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}X-A:\r\nX-B: \u{e9}\r\n\r\n"
        ),
        format!(
            "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}Connection: , keep-alive ,\r\n\r\n"
        ),
    ] {
        let world = World::plain();
        let mut guest = world.open();
        guest.write_all(request.as_bytes()).await.unwrap();
        // Panics when nothing is dialled.
        drop(world.next_host().await);
    }
}

#[tokio::test]
async fn other_protocols_are_refused_without_waiting_for_more() {
    for bytes in [b"\x16\x03\x01\x02\x00".as_slice(), b"SSH-2.0-x\n", b"\x05\x01\x00"] {
        let world = World::plain();
        let mut guest = world.open();
        guest.write_all(bytes).await.unwrap();
        // The guest keeps its side open: only a decision by the bytes alone can answer.
        let answer = read_head(&mut guest).await;
        assert_eq!(code(&answer), Some("EGRESS-001"), "{bytes:?}");
    }
}

#[tokio::test]
async fn an_endless_header_is_refused_at_its_limit() {
    for filler in ["X", "X-Fill: 1\r\n"] {
        let world = World::plain();
        let request = get("/").replace("\r\n\r\n", "\r\n") + &filler.repeat(70_000);
        let answer = world.ask(request).await;
        assert_eq!(code(&answer), Some("EGRESS-002"), "{answer}");
        assert!(world.untouched());
    }
}

#[tokio::test]
async fn the_credential_must_be_the_runs_own_and_alone() {
    let request = |fields: &str| {
        format!("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n{fields}\r\n")
    };
    let auth = |value: &str| format!("Proxy-Authorization: {value}\r\n");
    for fields in [
        String::new(),
        auth(""),
        auth("Basic"),
        auth("Basic "),
        auth("Basic cnVuOndyb25nLXRva2Vu"),
        auth("Basic cnVuOnNlY3JldC10b2tlbg"),
        auth("Basic cnVuOnNlY3JldC10b2tlbg==="),
        auth("Basic cnVuOnNlY3JldC10b2tlbh=="),
        auth("Basic cnVuOnNlY3JldC10b2tlbg== x"),
        auth("Bearer secret-token"),
        auth("Basic run:secret-token"),
        // Other users, same password.
        auth("Basic cm9vdDpzZWNyZXQtdG9rZW4="),
        auth("Basic OnNlY3JldC10b2tlbg=="),
        format!("{AUTH}{AUTH}"),
        format!("{AUTH}{}", auth("Basic cnVuOndyb25n")),
    ] {
        let world = World::plain();
        let answer = world.ask(request(&fields)).await;
        assert_eq!(code(&answer), Some("EGRESS-010"), "{fields:?}");
        assert!(answer.contains("Proxy-Authenticate: Basic"));
        assert!(world.untouched());
    }
    let world = World::plain();
    world.ask(request("proxy-authorization: bAsIc  cnVuOnNlY3JldC10b2tlbg==\r\n")).await;
    assert_eq!(world.outside.dials.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn guessing_the_token_ends_the_connection() {
    let world = World::plain();
    let request = "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n";
    let answer = world.ask(request.repeat(50)).await;
    assert_eq!(answer.matches("HTTP/1.1 407 ").count(), 8);
}
