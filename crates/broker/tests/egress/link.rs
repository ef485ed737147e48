//! The door on the streams that it gets in a run: those of the link.

use std::sync::Arc;

use cofferdam_link::{Incoming, Link, LinkStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{World, code, connect, get};

/// A guest's end whose streams all lead to the door.
async fn linked(world: &World) -> (Link, Incoming, Link) {
    let (near, far) = tokio::io::duplex(256 * 1024);
    let (guest, host) = tokio::join!(Link::guest(near), Link::host(far));
    let ((guest, guest_incoming), (host, mut incoming)) = (guest.unwrap(), host.unwrap());
    let door = Arc::clone(&world.door);
    tokio::spawn(async move {
        while let Some((_, stream)) = incoming.next().await {
            let door = Arc::clone(&door);
            tokio::spawn(async move { door.serve(stream).await });
        }
    });
    (guest, guest_incoming, host)
}

async fn head(stream: &mut LinkStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_refusal_arrives_whole_although_the_stream_ends() {
    let world = World::plain();
    let (link, _incoming, _host) = linked(&world).await;
    for (request, expected) in [
        (connect("b.example:443"), "EGRESS-020"),
        (format!("{}{}", get("/").replace("\r\n", "\n"), "x".repeat(100_000)), "EGRESS-001"),
        (get("/") + "junk\r\n\r\n", "EGRESS-001"),
    ] {
        let mut stream = link.open(b"egress").await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        if expected == "EGRESS-001" && request.starts_with("GET http://a.example/ HTTP/1.1\r\n") {
            let mut host = world.next_host().await;
            host.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            assert!(head(&mut stream).await.starts_with("HTTP/1.1 200 "));
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(code(&answer), Some(expected), "{answer}");
        assert!(answer.ends_with(".\n"), "{answer}");
    }
}

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways_under_back_pressure() {
    const TOTAL: usize = 4 << 20;
    let world = World::plain();
    let (link, _incoming, _host) = linked(&world).await;
    let mut stream = link.open(b"egress").await.unwrap();
    stream.write_all(connect("a.example:8443").as_bytes()).await.unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 200 "));
    // The host sends everything back and reads only as fast as it can send.
    let host = world.next_host().await;
    let echo = tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(host);
        let bytes = tokio::io::copy(&mut read, &mut write).await.unwrap();
        write.shutdown().await.unwrap();
        bytes
    });
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = async {
        let piece: Vec<u8> = (0..=255).cycle().take(64 * 1024).collect();
        for _ in 0..TOTAL / piece.len() {
            write.write_all(&piece).await.unwrap();
        }
        write.shutdown().await.unwrap();
    };
    let receiving = async {
        let mut got = Vec::new();
        read.read_to_end(&mut got).await.unwrap();
        assert_eq!(got.len(), TOTAL);
        assert!(got.iter().zip((0..=255).cycle()).all(|(got, sent): (&u8, u8)| *got == sent));
    };
    tokio::join!(sending, receiving);
    assert_eq!(echo.await.unwrap(), TOTAL as u64);
}

/// One tunnel of 32 is never read from; the others carry ten megabytes each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_slow_reader_stops_no_other_stream() {
    const OTHERS: usize = 31;
    const EACH: usize = 10 << 20;
    let world = World::plain();
    let (link, _incoming, _host) = linked(&world).await;
    let mut streams = Vec::new();
    let mut hosts = Vec::new();
    for _ in 0..=OTHERS {
        let mut stream = link.open(b"egress").await.unwrap();
        stream.write_all(connect("a.example:8443").as_bytes()).await.unwrap();
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 200 "));
        streams.push(stream);
        hosts.push(world.next_host().await);
    }
    let stuck = streams.pop().unwrap();
    let mut flood = hosts.pop().unwrap();
    let flooding = tokio::spawn(async move {
        let mut sent = 0_usize;
        let piece = vec![9; 64 * 1024];
        while flood.write_all(&piece).await.is_ok() {
            sent += piece.len();
        }
        sent
    });
    let mut tasks = tokio::task::JoinSet::new();
    for (mut stream, mut host) in streams.into_iter().zip(hosts) {
        tasks.spawn(async move {
            let piece = vec![5; 64 * 1024];
            for _ in 0..EACH / piece.len() {
                host.write_all(&piece).await.unwrap();
            }
            host.shutdown().await.unwrap();
        });
        tasks.spawn(async move {
            let (mut total, mut buf) = (0, vec![0; 64 * 1024]);
            loop {
                match stream.read(&mut buf).await.unwrap() {
                    0 => break,
                    read => total += read,
                }
            }
            assert_eq!(total, EACH);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    // What the unread stream got is bounded by its own window and the pipes before it.
    drop(stuck);
    let sent = flooding.await.unwrap();
    assert!(sent < 4 << 20, "{sent} bytes were taken for a reader that does not read");
}
