//! Failures that users of comparable systems met, each as a test that carries its number in
//! `docs/failure-cases.md`.

use std::time::Duration;

use cofferdam_broker::egress::Limits;
use cofferdam_broker::egress::limits::MAX_STREAMS;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{AUTH, Setup, World, code, connect, egress, get, read_all, read_head};

/// A plain request and a CONNECT for the same target.
fn both(target: &str) -> [String; 2] {
    let (host, port) = target.rsplit_once(':').unwrap();
    let shown = if port == "80" { host.to_owned() } else { target.to_owned() };
    [connect(target), get("/").replace("a.example", &shown)]
}

#[tokio::test]
async fn s01_plain_http_and_connect_get_the_same_decision() {
    for (target, expected) in [
        ("b.example:80", Some("EGRESS-020")),
        ("a.example:81", Some("EGRESS-020")),
        ("w.example:8080", Some("EGRESS-020")),
        ("denied.example:80", Some("EGRESS-021")),
        ("127.0.0.1:80", Some("EGRESS-020")),
        ("[::1]:80", Some("EGRESS-025")),
        ("a.example:80", None),
        ("x.w.example:8080", None),
    ] {
        for request in both(target) {
            let world = World::new(Setup {
                allow: vec!["a.example:80", "denied.example:80", "*.w.example:8080"],
                deny: vec!["denied.example:80"],
                ..Setup::default()
            });
            let mut guest = world.open();
            guest.write_all(request.as_bytes()).await.unwrap();
            match expected {
                Some(refusal) => {
                    let answer = read_head(&mut guest).await;
                    assert_eq!(code(&answer), Some(refusal), "{request}");
                    assert!(world.untouched(), "{request}");
                }
                // Panics when nothing is dialled.
                None => drop(world.next_host().await),
            }
        }
    }
}

#[tokio::test]
async fn s04_an_allowed_neighbour_of_each_refused_target_gets_through() {
    for (refused, allowed) in [
        ("b.example:443", "a.example:443"),
        ("a.example:444", "a.example:443"),
        ("w.example:443", "x.w.example:443"),
        ("xw.example:443", "x.y.w.example:443"),
        ("a.example.b:443", "A.EXAMPLE.:443"),
    ] {
        let world = World::plain();
        assert_eq!(code(&world.ask(connect(refused)).await), Some("EGRESS-020"), "{refused}");
        world.tunnel(allowed).await;
    }
}

#[tokio::test]
async fn s05_a_nul_or_control_byte_in_a_host_reaches_no_resolver() {
    for byte in ["\0", "\x01", "\t", "\x0b", "\x1b", "\x7f", "\r", "\n"] {
        for host in [format!("b.example{byte}.w.example"), format!("x.w.example{byte}")] {
            for request in both(&format!("{host}:443")) {
                let world = World::plain();
                let answer = world.ask(&request).await;
                assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?} got {answer}");
                assert!(world.untouched(), "{request:?}");
            }
        }
    }
}

#[tokio::test]
async fn s07_a_host_that_has_to_be_decoded_is_refused() {
    for host in [
        "b.example%23.w.example",
        "b.example%00.w.example",
        "b.example%2ew.example",
        "%61.example",
        "b.example@a.example",
        "a.example@b.example",
        "b.example\\.w.example",
        "b.example\\@a.example",
        "b.example a.example",
        "b.example#.w.example",
        "b.example?.w.example",
        "b.example/.w.example",
        "b.example;.w.example",
        "a.example,b.example",
        "xn--\u{e4}.w.example",
        "\u{ff41}.example",
    ] {
        for request in both(&format!("{host}:443")) {
            let world = World::plain();
            let answer = world.ask(&request).await;
            assert!(!answer.starts_with("HTTP/1.1 2"), "{request:?} got {answer}");
            assert!(world.untouched(), "{request:?}");
        }
    }
}

#[tokio::test]
async fn s08_a_trailing_dot_or_another_case_changes_no_verdict() {
    let setup = || Setup {
        allow: vec!["a.example:8443", "*.w.example:8443"],
        deny: vec!["no.w.example:8443"],
        ..Setup::default()
    };
    for (name, expected) in [
        ("a.example", None),
        ("x.w.example", None),
        ("no.w.example", Some("EGRESS-021")),
        ("b.example", Some("EGRESS-020")),
    ] {
        for spelling in [
            name.to_owned(),
            format!("{name}."),
            name.to_uppercase(),
            format!("{}.", name.to_uppercase()),
        ] {
            let world = World::new(setup());
            match expected {
                None => {
                    world.tunnel(&format!("{spelling}:8443")).await;
                    let lookups = world.outside.lookups.lock().unwrap();
                    assert_eq!(lookups.as_slice(), [format!("{name}:8443")]);
                }
                Some(refusal) => {
                    let answer = world.ask(connect(&format!("{spelling}:8443"))).await;
                    assert_eq!(code(&answer), Some(refusal), "{spelling}");
                    assert!(world.untouched());
                }
            }
        }
        // Two dots are no spelling of anything.
        let world = World::new(setup());
        assert_eq!(code(&world.ask(connect(&format!("{name}..:8443"))).await), Some("EGRESS-001"));
    }
}

#[tokio::test]
async fn s10_target_host_and_server_name_must_agree_and_the_vetted_address_is_dialled() {
    let world = World::plain();
    for request in [
        format!("CONNECT a.example:443 HTTP/1.1\r\nHost: b.example:443\r\n{AUTH}\r\n"),
        format!("CONNECT b.example:443 HTTP/1.1\r\nHost: a.example:443\r\n{AUTH}\r\n"),
        format!("GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\n{AUTH}\r\n"),
        format!("GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n{AUTH}\r\n"),
    ] {
        assert_eq!(code(&world.ask(&request).await), Some("EGRESS-001"), "{request}");
    }
    assert!(world.untouched());
    for (name, agrees) in [("a.example", true), ("b.example", false)] {
        let world = World::plain();
        let (mut guest, mut host) = world.tunnel("a.example:443").await;
        let hello = crate::noise::hello_for(name);
        guest.write_all(&hello).await.unwrap();
        guest.shutdown().await.unwrap();
        let mut sent = Vec::new();
        host.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent == hello, agrees, "{name}");
        assert!(agrees || sent.is_empty(), "{name}");
        let dials = world.outside.dials.lock().unwrap().clone();
        assert_eq!(dials, [format!("{}:443", crate::support::PUBLIC)]);
    }
}

/// Paths are no part of a rule, so there is none to get around; what is sent on is what was asked for.
#[tokio::test]
async fn s13_a_path_travels_as_it_came() {
    for path in ["/allowed/../secret", "/%2e%2e/secret", "/a//b", "/./x?y=/../z"] {
        let world = World::plain();
        let mut guest = world.open();
        guest.write_all(get(path).as_bytes()).await.unwrap();
        let mut host = world.next_host().await;
        let head = read_head(&mut host).await;
        assert!(head.starts_with(&format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n")), "{head}");
    }
}

#[tokio::test]
async fn s14_two_lengths_smuggle_no_second_request() {
    let hidden = get("/hidden");
    for framing in [
        "Content-Length: 0\r\nContent-Length: 5".to_owned(),
        format!("Content-Length: {}\r\nTransfer-Encoding: chunked", hidden.len()),
        "Transfer-Encoding: chunked\r\nContent-Length: 0".to_owned(),
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity".to_owned(),
        "Transfer-Encoding : chunked".to_owned(),
        "Content-Length: 0, 0".to_owned(),
    ] {
        let world = World::plain();
        let post = get("/").replace("GET", "POST").replace("\r\n\r\n", "\r\n");
        let answer = world.ask(format!("{post}{framing}\r\n\r\n0\r\n\r\n{hidden}")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{framing} got {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{framing} got {answer}");
        assert!(world.untouched(), "{framing}");
    }
}

#[tokio::test]
async fn s16_an_upgrade_passes_the_same_guards_and_is_refused() {
    for (target, token, expected) in [
        ("a.example", AUTH, "EGRESS-022"),
        ("b.example", AUTH, "EGRESS-022"),
        ("a.example", "", "EGRESS-010"),
    ] {
        for protocol in ["websocket", "h2c", "anything"] {
            let world = World::plain();
            let request = format!(
                "GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n{token}Connection: keep-alive, \
                 Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
            );
            assert_eq!(code(&world.ask(request).await), Some(expected), "{target} {protocol}");
            assert!(world.untouched());
        }
    }
}

/// A run with a model and no rules reaches the model and nothing else.
#[tokio::test]
async fn s19_no_rules_beside_a_model_still_admit_nothing() {
    let world = World::new(Setup {
        allow: vec![],
        gatewayed: vec!["api.model.example:443"],
        services: vec![("svc.internal", "127.0.0.1:9".to_owned())],
        ..Setup::default()
    });
    for (target, expected) in [
        ("a.example:443", "EGRESS-020"),
        ("svc.internal:80", "EGRESS-020"),
        ("127.0.0.1:9", "EGRESS-020"),
        ("api.model.example:443", "EGRESS-024"),
    ] {
        assert_eq!(code(&world.ask(connect(target)).await), Some(expected), "{target}");
    }
    assert!(world.untouched());
}

fn quick() -> Limits {
    Limits {
        idle: Duration::from_secs(3600),
        half_closed: Duration::from_millis(50),
        linger: Duration::from_millis(50),
        ..Limits::default()
    }
}

#[tokio::test]
async fn s25_half_closed_tunnels_are_reaped_and_free_their_places() {
    let world = World::new(Setup { limits: quick(), ..Setup::default() });
    let mut open = Vec::new();
    for n in 0..MAX_STREAMS {
        let (mut guest, mut host) = world.tunnel("a.example:8443").await;
        // Each side in turn closes its half and forgets about the rest.
        if n % 2 == 0 {
            guest.shutdown().await.unwrap()
        } else {
            host.shutdown().await.unwrap()
        }
        open.push((guest, host));
    }
    for fact in world.facts(MAX_STREAMS).await {
        assert_eq!(egress(&fact).6, "idle");
    }
    world.tunnel("a.example:8443").await;
    drop(open);
}

#[tokio::test]
async fn s26_a_slow_stream_outlives_the_idle_timer_but_not_the_total() {
    let limits =
        Limits { idle: Duration::from_millis(500), total: Duration::from_millis(1500), ..quick() };
    let world = World::new(Setup { limits, ..Setup::default() });
    let begin = tokio::time::Instant::now();
    let (mut guest, mut host) = world.tunnel("a.example:8443").await;
    let dripping = tokio::spawn(async move {
        while host.write_all(b"data: x\n\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let got = read_all(&mut guest).await;
    dripping.await.unwrap();
    // It lived for three times the idle bound, and ended by the other clock.
    assert!(begin.elapsed() >= Duration::from_millis(1500));
    assert!(got.len() > 9, "{got:?}");
    assert_eq!(egress(&world.facts(1).await[0]).6, "too long");
}

#[tokio::test]
async fn s28_a_name_that_no_rule_admits_is_never_looked_up() {
    let secret = "c2VjcmV0LXRva2Vu.x7.exfil.example";
    let deny = || Setup { deny: vec!["*.w.example:443"], ..Setup::default() };
    for request in both(&format!("{secret}:443")).into_iter().chain([
        connect("x.w.example:443"),
        get("/").replace("a.example", secret),
        get("/").replace("a.example", &format!("{secret}:53")),
        // Admitted by name, refused by its form or for want of a token.
        get("/").replace("a.example", "a.example:443"),
        connect("a.example:443").replace(AUTH, ""),
        get("/").replace("\r\n\r\n", "\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"),
    ]) {
        let world = World::new(deny());
        assert!(code(&world.ask(&request).await).is_some(), "{request}");
        assert!(world.untouched(), "{request}");
    }
}

/// The control plane of the host is no destination of the box: not by any spelling of loopback, not
/// by a socket's path.
#[tokio::test]
async fn s43_no_spelling_reaches_the_hosts_own_services() {
    let world = World::new(Setup {
        allow: vec!["localhost:7070", "127.0.0.1:7070", "0.0.0.0:7070", "me.example:7070"],
        ..Setup::default()
    });
    world.outside.answers.lock().unwrap().push_back(vec!["127.0.0.1".parse().unwrap()]);
    for (target, refused) in [
        ("localhost:7070", "EGRESS-032"),
        ("127.0.0.1:7070", "EGRESS-032"),
        ("0.0.0.0:7070", "EGRESS-032"),
        ("me.example:7070", "EGRESS-032"),
        ("[::1]:7070", "EGRESS-025"),
        ("[::ffff:127.0.0.1]:7070", "EGRESS-025"),
        ("127.1:7070", "EGRESS-001"),
        ("2130706433:7070", "EGRESS-001"),
        ("0x7f.0.0.1:7070", "EGRESS-001"),
        ("unix:/run/x:7070", "EGRESS-001"),
    ] {
        assert_eq!(code(&world.ask(connect(target)).await), Some(refused), "{target}");
    }
    assert!(world.outside.dials.lock().unwrap().is_empty());
}
