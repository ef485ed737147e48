//! Clocks, retries and pressure: what is slow ends, what fails is not looked up again, and one slow
//! reader is nobody else's trouble.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_broker::egress::{BoxStream, Dialler, Limits};
use cofferdam_policy::DialTarget;
use tokio::io::AsyncWriteExt as _;

use crate::support::{Setup, World, code, connect, egress, get, read_all};

/// Fails, or never answers, as often as it is told; counts.
struct Broken {
    hang: bool,
    dials: AtomicUsize,
}

#[async_trait]
impl Dialler for Broken {
    async fn dial(&self, _: DialTarget) -> io::Result<BoxStream> {
        self.dials.fetch_add(1, Ordering::SeqCst);
        if self.hang {
            std::future::pending::<()>().await;
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}

#[tokio::test]
async fn a_failed_dial_tries_the_vetted_rest_and_never_looks_up_again() {
    let broken = Arc::new(Broken { hang: false, dials: AtomicUsize::new(0) });
    let world = World::new(Setup { dialler: Some(broken.clone()), ..Setup::default() });
    // A second lookup would be answered with an address of this machine.
    world.outside.answers.lock().unwrap().extend([
        vec!["93.184.216.34".parse().unwrap(), "93.184.216.35".parse().unwrap()],
        vec!["127.0.0.1".parse().unwrap()],
    ]);
    let answer = world.ask(connect("a.example:8443")).await;
    assert_eq!(code(&answer), Some("EGRESS-040"));
    assert_eq!(broken.dials.load(Ordering::SeqCst), 2);
    assert_eq!(world.outside.lookups.lock().unwrap().len(), 1);
    let reason = egress(&world.facts(1).await[0]).2.to_owned();
    assert!(reason.contains("93.184.216.34:8443") && reason.contains("93.184.216.35:8443"));
}

#[tokio::test]
async fn a_lookup_that_was_repeated_is_vetted_all_the_same() {
    let world = World::plain();
    *world.outside.failures.lock().unwrap() = 1;
    world.outside.answers.lock().unwrap().push_back(vec!["10.0.0.1".parse().unwrap()]);
    assert_eq!(code(&world.ask(connect("a.example:8443")).await), Some("EGRESS-032"));
    assert_eq!(world.outside.lookups.lock().unwrap().len(), 2);
    assert!(world.outside.dials.lock().unwrap().is_empty());
}

#[tokio::test]
async fn each_address_and_all_together_have_their_time() {
    for (dial, dial_all, tried) in [(40, 10_000, 3), (10_000, 60, 1)] {
        let broken = Arc::new(Broken { hang: true, dials: AtomicUsize::new(0) });
        let limits = Limits {
            dial: Duration::from_millis(dial),
            dial_all: Duration::from_millis(dial_all),
            ..Limits::default()
        };
        let world = World::new(Setup { dialler: Some(broken.clone()), limits, ..Setup::default() });
        world.outside.answers.lock().unwrap().push_back(
            ["93.184.216.34", "93.184.216.35", "93.184.216.36"].map(|a| a.parse().unwrap()).into(),
        );
        assert_eq!(code(&world.ask(connect("a.example:8443")).await), Some("EGRESS-040"));
        assert_eq!(broken.dials.load(Ordering::SeqCst), tried);
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_dropped() {
    let limits = Limits {
        answer: Duration::from_millis(50),
        linger: Duration::from_millis(50),
        ..Limits::default()
    };
    for request in [connect("b.example:443"), connect("a.example:8443"), get("/")] {
        let world = World::new(Setup { limits: limits.clone(), ..Setup::default() });
        // Room for less than any answer.
        let (mut guest, inside) = tokio::io::duplex(16);
        let door = world.door.clone();
        let serving = tokio::spawn(async move { door.serve(inside).await });
        guest.write_all(request.as_bytes()).await.unwrap();
        if request.starts_with("GET") {
            // The origin says nothing that could be relayed, so the answer is the door's own.
            world.next_host().await.write_all(b"nonsense\r\n\r\n").await.unwrap();
        }
        tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
        drop(guest);
    }
}

#[tokio::test]
async fn a_host_that_does_not_read_stops_its_guest_and_costs_two_buffers() {
    let world = World::plain();
    let (mut guest, host) = world.tunnel("a.example:8443").await;
    let piece = vec![7; 64 * 1024];
    let mut sent = 0;
    // Buffers on the way are 1 MiB on either side, and what the door holds itself.
    while let Ok(written) =
        tokio::time::timeout(Duration::from_millis(300), guest.write(&piece)).await
    {
        sent += written.unwrap();
        assert!(sent <= (2 << 20) + 4 * 64 * 1024, "{sent} bytes are on their way");
    }
    assert!(sent >= 2 << 20, "{sent}");
    drop(host);
}

#[tokio::test]
async fn a_tunnel_that_nobody_reads_from_ends_by_the_idle_clock() {
    let limits = Limits { idle: Duration::from_millis(200), ..Limits::default() };
    let world = World::new(Setup { limits, ..Setup::default() });
    let (mut guest, mut host) = world.tunnel("a.example:8443").await;
    // More than the pipes hold: the door cannot get rid of it.
    let filling = tokio::spawn(async move {
        let _ = host.write_all(&vec![1; 4 << 20]).await;
    });
    filling.await.unwrap();
    assert_eq!(egress(&world.facts(1).await[0]).6, "idle");
    assert!(!read_all(&mut guest).await.is_empty());
}
