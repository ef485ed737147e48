//! What is told, what is bounded, and what ends.

use std::time::Duration;

use cofferdam_broker::egress::Limits;
use cofferdam_broker::egress::limits::{MAX_LOGGED_REFUSALS, MAX_STREAMS};
use cofferdam_run::Fact;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{PUBLIC, Setup, World, code, connect, egress, get, read_all, read_head};

#[tokio::test]
async fn an_admitted_connection_is_told_once_with_its_bytes_both_ways() {
    let world = World::plain();
    let (mut guest, mut host) = world.tunnel("A.example.:8443").await;
    guest.write_all(b"ping!").await.unwrap();
    let mut got = [0; 5];
    host.read_exact(&mut got).await.unwrap();
    host.write_all(b"pong").await.unwrap();
    host.shutdown().await.unwrap();
    guest.shutdown().await.unwrap();
    assert_eq!(read_all(&mut guest).await, "pong");
    let facts = world.facts(1).await;
    assert_eq!(
        egress(&facts[0]),
        (
            "a.example:8443",
            true,
            "a.example:8443",
            Some(format!("{PUBLIC}:8443").as_str()),
            5,
            4,
            "closed"
        )
    );
    assert_eq!(facts.len(), 1);
}

#[tokio::test]
async fn refusals_are_told_at_once_up_to_a_bound_and_counted_beyond() {
    let world = World::plain();
    let extra = 20;
    for n in 0..MAX_LOGGED_REFUSALS + extra {
        let answer = world.ask(connect(&format!("b{n}.example:443"))).await;
        assert_eq!(code(&answer), Some("EGRESS-020"));
    }
    assert_eq!(world.log.facts().len() as u64, MAX_LOGGED_REFUSALS);
    world.door.cut();
    world.door.cut();
    let facts = world.log.facts();
    assert_eq!(facts.len() as u64, MAX_LOGGED_REFUSALS + 1);
    assert_eq!(facts.last(), Some(&Fact::Truncated { kind: "egress".to_owned(), count: extra }));
}

#[tokio::test]
async fn a_record_holds_no_control_bytes_and_no_endless_text() {
    let world = World::plain();
    world.ask(format!("GET \u{1b}[2J{} HTTP/1.1\r\n\r\n", "x".repeat(3000))).await;
    let facts = world.facts(1).await;
    let target = egress(&facts[0]).0;
    assert!(target.chars().count() <= 301 && !target.contains('\u{1b}'), "{target}");
}

#[tokio::test]
async fn not_one_byte_leaves_beyond_the_budget_and_everything_is_cut() {
    let world = World::new(Setup { bytes_out: 1000, ..Setup::default() });
    let (mut other, _other_host) = world.tunnel("a.example:8443").await;
    let (mut guest, mut host) = world.tunnel("a.example:8443").await;
    guest.write_all(&[1; 900]).await.unwrap();
    let mut got = vec![0; 900];
    host.read_exact(&mut got).await.unwrap();
    guest.write_all(&[2; 101]).await.unwrap();
    assert_eq!(read_all(&mut host).await, "");
    assert_eq!(read_all(&mut other).await, "");
    world.door.shut().await;
    assert_eq!(world.log.exhausted_budgets(), ["egress_bytes_out"]);
    let facts = world.facts(2).await;
    let mut ends: Vec<_> = facts.iter().map(|f| (egress(f).4, egress(f).6)).collect();
    ends.sort_unstable();
    assert_eq!(ends, [(0, "cut"), (900, "budget")]);
    assert_eq!(world.ask(connect("a.example:8443")).await, "");
    assert_eq!(world.log.exhausted_budgets().len(), 1);
}

#[tokio::test]
async fn plain_requests_count_against_the_budget_too() {
    let world = World::new(Setup { bytes_out: 200, ..Setup::default() });
    let long = get(&format!("/{}", "x".repeat(300)));
    assert_eq!(world.ask(long).await, "");
    assert_eq!(world.log.exhausted_budgets(), ["egress_bytes_out"]);
    assert_eq!(read_all(&mut world.host()).await, "");
}

#[tokio::test]
async fn cut_ends_open_connections_and_admits_nothing_more() {
    let world = World::plain();
    let (mut guest, mut host) = world.tunnel("a.example:8443").await;
    let mut waiting = world.open();
    waiting.write_all(b"CONNECT ").await.unwrap();
    world.door.cut();
    assert_eq!(read_all(&mut guest).await, "");
    assert_eq!(read_all(&mut host).await, "");
    assert_eq!(read_all(&mut waiting).await, "");
    let dials = world.outside.dials.lock().unwrap().len();
    assert_eq!(world.ask(connect("a.example:8443")).await, "");
    assert_eq!(world.outside.dials.lock().unwrap().len(), dials);
    assert_eq!(egress(&world.facts(1).await[0]).6, "cut");
}

#[tokio::test]
async fn connections_beyond_the_cap_are_told_so_and_places_come_back() {
    let world = World::plain();
    let mut open = Vec::new();
    for _ in 0..MAX_STREAMS {
        open.push(world.tunnel("a.example:8443").await);
    }
    let answer = world.ask(connect("a.example:8443")).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(code(&answer), Some("EGRESS-027"));
    let (guest, host) = open.pop().unwrap();
    drop((guest, host));
    world.facts(2).await;
    // The fact is told a moment before the place is free.
    tokio::task::yield_now().await;
    world.tunnel("a.example:8443").await;
}

#[tokio::test]
async fn refused_connections_that_nobody_closes_give_their_places_back() {
    let long = Duration::from_secs(3600);
    let limits = Limits {
        keep_alive: long,
        linger: long,
        refused: long,
        refused_crowded: Duration::from_millis(1),
        ..Limits::default()
    };
    let world = World::new(Setup { limits, ..Setup::default() });
    let mut held = Vec::new();
    // Half of them may ask again, half are being closed; nobody does either.
    for n in 0..2 * MAX_STREAMS {
        let mut guest = world.open();
        let request = match n % 2 {
            0 => "CONNECT a.example:8443 HTTP/1.1\r\nHost: a.example:8443\r\n\r\n".to_owned(),
            _ => connect("b.example:443"),
        };
        guest.write_all(request.as_bytes()).await.unwrap();
        let answer = read_head(&mut guest).await;
        assert!(code(&answer).is_some(), "{answer}");
        held.push(guest);
    }
    for _ in 0..10_000 {
        let mut guest = world.open();
        guest.write_all(connect("a.example:8443").as_bytes()).await.unwrap();
        let answer = read_head(&mut guest).await;
        if answer.starts_with("HTTP/1.1 200 ") {
            drop(held);
            return;
        }
        assert_eq!(code(&answer), Some("EGRESS-027"));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("no place came back");
}

fn quick() -> Limits {
    Limits {
        header: Duration::from_millis(100),
        keep_alive: Duration::from_millis(100),
        hello: Duration::from_millis(100),
        idle: Duration::from_millis(200),
        half_closed: Duration::from_millis(50),
        linger: Duration::from_millis(50),
        ..Limits::default()
    }
}

#[tokio::test]
async fn silence_ends_each_state_of_a_connection() {
    let world = World::new(Setup { limits: quick(), ..Setup::default() });
    // Nothing sent.
    assert_eq!(read_all(&mut world.open()).await, "");
    // Half a header.
    let mut guest = world.open();
    guest.write_all(b"CONNECT a.example:443 HTTP/1.1\r\n").await.unwrap();
    assert_eq!(code(&read_all(&mut guest).await), Some("EGRESS-003"));
    // A tunnel without a hello.
    let (mut guest, mut host) = world.tunnel("a.example:443").await;
    assert_eq!(read_all(&mut guest).await, "");
    assert_eq!(read_all(&mut host).await, "");
    // An idle tunnel.
    let (mut guest, mut host) = world.tunnel("a.example:8443").await;
    assert_eq!(read_all(&mut guest).await, "");
    assert_eq!(read_all(&mut host).await, "");
    // An origin that never answers.
    let mut guest = world.open();
    guest.write_all(get("/").as_bytes()).await.unwrap();
    assert_eq!(code(&read_all(&mut guest).await), Some("EGRESS-060"));
}

#[tokio::test]
async fn a_half_closed_tunnel_does_not_stay_for_ever() {
    let limits = Limits { idle: Duration::from_secs(3600), ..quick() };
    let world = World::new(Setup { limits, ..Setup::default() });
    let (mut guest, mut host) = world.tunnel("a.example:8443").await;
    guest.write_all(b"bye").await.unwrap();
    guest.shutdown().await.unwrap();
    assert_eq!(read_all(&mut host).await, "bye");
    // The host never closes; the door does.
    assert_eq!(read_all(&mut guest).await, "");
    assert_eq!(egress(&world.facts(1).await[0]).6, "idle");
}

#[tokio::test]
async fn bytes_in_one_direction_keep_a_tunnel_alive() {
    let limits = Limits { idle: Duration::from_millis(400), ..quick() };
    let world = World::new(Setup { limits, ..Setup::default() });
    let (mut guest, mut host) = world.tunnel("a.example:8443").await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        host.write_all(b".").await.unwrap();
        assert_eq!(guest.read_u8().await.unwrap(), b'.');
    }
}

#[tokio::test]
async fn a_guest_that_leaves_frees_its_connection_to_the_host() {
    let world = World::plain();
    let (guest, mut host) = world.tunnel("a.example:8443").await;
    drop(guest);
    assert_eq!(read_all(&mut host).await, "");
    let mut guest = world.open();
    guest.write_all(connect("a.example:443").as_bytes()).await.unwrap();
    read_head(&mut guest).await;
    drop(guest);
    assert_eq!(read_all(&mut world.host()).await, "");
}
