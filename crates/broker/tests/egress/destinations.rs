//! Where connections go: services, gatewayed hosts, lookups, real sockets, deny in every mixture.

use std::net::Ipv4Addr;
use std::sync::Arc;

use cofferdam_broker::egress::{SystemResolver, TcpDialler};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{Setup, World, code, connect, egress, get, read_head};

#[tokio::test]
async fn a_service_is_the_only_way_to_loopback() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    let setup = || Setup {
        allow: vec!["svc.internal:80", "127.0.0.1:80", "name.example:80"],
        services: vec![("svc.internal", at.to_string())],
        dialler: Some(Arc::new(TcpDialler)),
        ..Setup::default()
    };
    let world = World::new(setup());
    world.outside.answers.lock().unwrap().push_back(vec![Ipv4Addr::LOCALHOST.into()]);
    for target in ["127.0.0.1:80", "name.example:80"] {
        assert_eq!(code(&world.ask(connect(target)).await), Some("EGRESS-032"), "{target}");
    }
    let refused = World::new(Setup { allow: vec!["a.example:80"], ..setup() });
    assert_eq!(code(&refused.ask(connect("svc.internal:80")).await), Some("EGRESS-020"));

    let mut guest = world.open();
    guest.write_all(connect("SVC.internal.:80").as_bytes()).await.unwrap();
    let (mut host, _) = listener.accept().await.unwrap();
    assert!(read_head(&mut guest).await.starts_with("HTTP/1.1 200 "));
    guest.write_all(b"ping").await.unwrap();
    let mut got = [0; 4];
    host.read_exact(&mut got).await.unwrap();
    host.write_all(b"pong").await.unwrap();
    guest.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"pong");
    drop((guest, host));
    let facts = world.facts(3).await;
    assert_eq!(egress(&facts[2]).3, Some(at.to_string().as_str()));
    assert_eq!(world.outside.lookups.lock().unwrap().as_slice(), ["name.example:80"]);
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_a_bad_gateway() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let world = World::new(Setup {
        allow: vec!["svc.internal:80"],
        services: vec![("svc.internal", at.to_string())],
        dialler: Some(Arc::new(TcpDialler)),
        ..Setup::default()
    });
    let answer = world.ask(connect("svc.internal:80")).await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(code(&answer), Some("EGRESS-040"));
}

#[tokio::test]
async fn gatewayed_hosts_are_reached_through_the_gateway_only() {
    let world = World::new(Setup {
        allow: vec![
            "api.model.example:443",
            "api.model.example:80",
            "local.internal:80",
            "alias.internal:80",
        ],
        services: vec![
            ("local.internal", "127.0.0.1:11434".to_owned()),
            ("alias.internal", "127.0.0.1:11434".to_owned()),
        ],
        gatewayed: vec!["api.model.example:443", "127.0.0.1:11434"],
        ..Setup::default()
    });
    let plain = get("/").replace("a.example", "api.model.example");
    for request in [
        connect("api.model.example:443"),
        connect("API.model.example.:443"),
        connect("api.model.example:80"),
        connect("api.model.example:8443"),
        plain,
        connect("local.internal:80"),
        connect("alias.internal:80"),
    ] {
        let answer = world.ask(&request).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!(code(&answer), Some("EGRESS-024"), "{request}");
    }
    assert!(world.untouched());
}

#[tokio::test]
async fn a_lookup_is_repeated_when_it_fails_for_a_moment_and_not_for_ever() {
    let world = World::plain();
    *world.outside.failures.lock().unwrap() = 2;
    world.tunnel("a.example:8443").await;
    assert_eq!(world.outside.lookups.lock().unwrap().len(), 3);
    let world = World::plain();
    *world.outside.failures.lock().unwrap() = 3;
    let answer = world.ask(connect("a.example:8443")).await;
    assert_eq!(code(&answer), Some("EGRESS-031"));
    assert_eq!(world.outside.lookups.lock().unwrap().len(), 3);
    assert!(world.outside.dials.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_answer_that_turns_private_between_requests_is_refused() {
    let world = World::plain();
    world
        .outside
        .answers
        .lock()
        .unwrap()
        .extend([vec!["93.184.216.34".parse().unwrap()], vec!["169.254.169.254".parse().unwrap()]]);
    world.tunnel("a.example:8443").await;
    assert_eq!(code(&world.ask(connect("a.example:8443")).await), Some("EGRESS-032"));
    assert_eq!(world.outside.dials.lock().unwrap().as_slice(), ["93.184.216.34:8443"]);
}

#[tokio::test]
async fn the_systems_resolver_says_that_a_reserved_name_has_no_address() {
    let world = World::new(Setup {
        allow: vec!["nothing.invalid:443"],
        resolver: Some(Arc::new(SystemResolver)),
        ..Setup::default()
    });
    let answer = world.ask(connect("nothing.invalid:443")).await;
    // Without a name server the lookup fails; either way it is a bad gateway and nothing is dialled.
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(world.outside.dials.lock().unwrap().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_denied_host_is_never_reached_whatever_else_is_set(
        wildcard in any::<bool>(),
        exact in any::<bool>(),
        service in any::<bool>(),
        gatewayed in any::<bool>(),
        wide_deny in any::<bool>(),
        plain in any::<bool>(),
        upper in any::<bool>(),
        dot in any::<bool>(),
        port in prop::sample::select(vec![80u16, 443, 8080]),
    ) {
        let mut allow = vec!["a.example:80"];
        if wildcard {
            allow.extend(["*.w.example:80", "*.w.example:443", "*.w.example:8080"]);
        }
        if exact {
            allow.extend(["x.w.example:80", "x.w.example:443", "x.w.example:8080"]);
        }
        let setup = Setup {
            allow,
            deny: if wide_deny {
                vec!["*.w.example:80", "*.w.example:443", "*.w.example:8080"]
            } else {
                vec!["x.w.example:80", "x.w.example:443", "x.w.example:8080"]
            },
            services: if service { vec![("x.w.example", "127.0.0.1:1".to_owned())] } else { vec![] },
            gatewayed: if gatewayed { vec!["y.w.example:443"] } else { vec![] },
            ..Setup::default()
        };
        let host = if upper { "X.W.example" } else { "x.w.example" };
        let target = format!("{host}{}:{port}", if dot { "." } else { "" });
        let request = if plain { get("/").replace("a.example", &target) } else { connect(&target) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new(setup);
            let answer = world.ask(&request).await;
            assert_eq!(code(&answer), Some("EGRESS-021"), "{request} got {answer}");
            assert!(world.untouched());
        });
    }
}
