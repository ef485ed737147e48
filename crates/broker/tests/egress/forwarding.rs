//! Plain HTTP: what goes on and what comes back is framed by the door.

use crate::support::{AUTH, World, code, egress, get, read_all, read_head};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn nothing_of_this_hop_travels_on() {
    let world = World::plain();
    let mut guest = world.open();
    let request = format!(
        "POST http://A.example:80/p?q HTTP/1.1\r\nHost: a.EXAMPLE\r\n{AUTH}Authorization: Bearer x\r\n\
         Proxy-Connection: keep-alive\r\nKeep-Alive: 5\r\nTE: trailers\r\nTrailer: X-T\r\n\
         Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\nUpgrade: h2c\r\nX-Keep: 2\r\n\
         Transfer-Encoding: chunked\r\n\r\n005;ext=1\r\nhello\r\n0\r\nX-T: 1\r\n\r\n"
    );
    guest.write_all(request.as_bytes()).await.unwrap();
    let mut host = world.next_host().await;
    let mut got = vec![0; 4096];
    let mut len = 0;
    while !got[..len].ends_with(b"0\r\n\r\n") {
        len += host.read(&mut got[len..]).await.unwrap();
    }
    assert_eq!(
        String::from_utf8_lossy(&got[..len]),
        "POST /p?q HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer x\r\nX-Keep: 2\r\n\
         Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    );
}

/// Gives the host's bytes as the answer to one GET and returns what the guest sees.
async fn answered(request: &str, answer: &[u8]) -> (String, World) {
    let world = World::plain();
    let mut guest = world.open();
    guest.write_all(request.as_bytes()).await.unwrap();
    let mut host = world.next_host().await;
    read_head(&mut host).await;
    let _ = host.write_all(answer).await;
    host.shutdown().await.unwrap();
    guest.shutdown().await.unwrap();
    (read_all(&mut guest).await, world)
}

#[tokio::test]
async fn answers_are_framed_anew() {
    let (seen, _) = answered(
        &get("/"),
        b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\
          Proxy-Authenticate: Basic\r\nX-Cofferdam-Refusal: EGRESS-020\r\nX-A: 1\r\n\r\nok",
    )
    .await;
    assert_eq!(
        seen,
        "HTTP/1.1 200 Fine\r\nX-A: 1\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok"
    );
    let (seen, _) = answered(
        &get("/"),
        b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n\
          2;x\r\nok\r\n0\r\nT: 1\r\n\r\n",
    )
    .await;
    assert_eq!(
        seen,
        "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\
         Connection: keep-alive\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    );
    // Without a length the end of the connection ends the answer, which the guest is told.
    let (seen, _) = answered(&get("/"), b"HTTP/1.0 200 OK\r\n\r\nuntil the end").await;
    assert!(seen.ends_with("\r\n\r\nd\r\nuntil the end\r\n0\r\n\r\n"), "{seen}");
    let old = format!("GET http://a.example/ HTTP/1.0\r\n{AUTH}\r\n");
    let (seen, _) = answered(
        &old,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    )
    .await;
    assert_eq!(seen, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok");
    let head = get("/").replace("GET", "HEAD");
    let (seen, _) = answered(&head, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n").await;
    assert_eq!(seen, "HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: keep-alive\r\n\r\n");
    let (seen, _) = answered(&get("/"), b"HTTP/1.1 304 \r\nContent-Length: 99\r\n\r\n").await;
    assert!(seen.contains("Content-Length: 99\r\n") && seen.ends_with("\r\n\r\n"), "{seen}");
}

#[tokio::test]
async fn a_hostile_origin_cannot_desynchronise_the_connection() {
    let big = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(70_000));
    let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(20);
    for answer in [
        "",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 20x OK\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        &big,
    ] {
        let (seen, world) = answered(&get("/"), answer.as_bytes()).await;
        assert_eq!(code(&seen), Some("EGRESS-060"), "{answer:.60?} became {seen}");
        assert!(seen.contains("Connection: close"), "{seen}");
        let facts = world.facts(1).await;
        let (_, admitted, reason, ..) = egress(&facts[0]);
        assert!(!admitted && reason.starts_with("EGRESS-060"), "{reason}");
    }
    let (seen, world) = answered(&get("/"), interim.as_bytes()).await;
    assert_eq!(seen.matches("HTTP/1.1 100").count(), 16, "{seen}");
    assert!(egress(&world.facts(1).await[0]).2.starts_with("EGRESS-060"));
}

#[tokio::test]
async fn an_answer_that_ends_early_is_not_passed_off_as_whole() {
    let (seen, world) =
        answered(&get("/"), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel").await;
    assert!(seen.ends_with("3\r\nhel\r\n"), "{seen}");
    assert!(egress(&world.facts(1).await[0]).2.starts_with("EGRESS-060"));
}

#[tokio::test]
async fn a_body_that_breaks_its_framing_reaches_no_second_reader() {
    for body in [
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5;a\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff1\r\nhello",
        "5\r\nhello\r\n0\r\nX : 1\r\n\r\n",
        "5\r\nhello\r\n0\r\n folded\r\n\r\n",
        "5\r\nhello\r\n0\r\nX: 1\n\r\n",
        "5\r\nhello",
        "5\r\nhel",
    ] {
        let world = World::plain();
        let request = format!(
            "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\
             Transfer-Encoding: chunked\r\n\r\n{body}"
        );
        let answer = world.ask(&request).await;
        assert_eq!(code(&answer), Some("EGRESS-004"), "{body:?} became {answer}");
        let mut host = world.host();
        let sent = read_all(&mut host).await;
        assert!(!sent.ends_with("0\r\n\r\n"), "{body:?} went out whole: {sent:?}");
    }
}

#[tokio::test]
async fn each_request_on_a_kept_connection_is_decided_anew() {
    let world = World::plain();
    let mut guest = world.open();
    let refused = get("/1").replace("a.example", "b.example");
    let upgrade =
        get("/2").replace("\r\n\r\n", "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    guest.write_all([refused, upgrade, get("/3"), get("/4")].concat().as_bytes()).await.unwrap();
    for (status, code_expected) in [(403, "EGRESS-020"), (403, "EGRESS-022")] {
        let head = read_head(&mut guest).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert_eq!(code(&head), Some(code_expected));
        let mut body = vec![0; length(&head)];
        guest.read_exact(&mut body).await.unwrap();
    }
    for path in ["/3", "/4"] {
        let mut host = world.next_host().await;
        assert!(read_head(&mut host).await.starts_with(&format!("GET {path} ")));
        host.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        assert!(read_head(&mut guest).await.starts_with("HTTP/1.1 200 "));
    }
}

fn length(head: &str) -> usize {
    head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap().parse().unwrap()
}

#[tokio::test]
async fn plain_http_never_goes_to_port_443() {
    let world = World::plain();
    let request = get("/").replace("a.example", "a.example:443");
    assert_eq!(code(&world.ask(request).await), Some("EGRESS-023"));
    assert!(world.untouched());
}

#[tokio::test]
async fn refusals_tell_the_guest_no_address() {
    let world = World::plain();
    world.outside.answers.lock().unwrap().push_back(vec!["10.11.12.13".parse().unwrap()]);
    let answer = world.ask(get("/")).await;
    assert_eq!(code(&answer), Some("EGRESS-032"));
    assert!(!answer.contains("10.11.12.13"));
    let facts = world.facts(1).await;
    assert!(egress(&facts[0]).2.contains("10.11.12.13"));
}

#[tokio::test]
async fn an_answer_before_the_whole_body_ends_the_connection() {
    let world = World::plain();
    let mut guest = world.open();
    let post =
        get("/").replace("GET", "POST").replace("\r\n\r\n", "\r\nContent-Length: 90\r\n\r\n");
    guest.write_all(format!("{post}0123456789").as_bytes()).await.unwrap();
    let mut host = world.next_host().await;
    host.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    let head = read_head(&mut guest).await;
    assert!(head.starts_with("HTTP/1.1 413 ") && head.contains("Connection: close"), "{head}");
    // What follows is still body to the guest and must not become a request to the door.
    guest.write_all(get("/hidden").as_bytes()).await.unwrap();
    assert_eq!(read_all(&mut guest).await, "");
    assert_eq!(world.outside.dials.lock().unwrap().len(), 1);
}
