//! Both ends of a link against each other: bytes, back-pressure, ends and resets.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::io::ErrorKind;
use std::time::Duration;

use cofferdam_link::limits::{GUEST_STREAMS, HOST_STREAMS, MAX_HEADER, STREAM_WINDOW};
use cofferdam_link::{Ending, Incoming, Link, LinkError, LinkStream, join};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;

struct Ends {
    host: Link,
    at_host: Incoming,
    guest: Link,
    at_guest: Incoming,
}

async fn ends_over<T>(a: T, b: T) -> Ends
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (host, guest) = tokio::join!(Link::host(a), Link::guest(b));
    let ((host, at_host), (guest, at_guest)) = (host.unwrap(), guest.unwrap());
    Ends { host, at_host, guest, at_guest }
}

async fn ends() -> Ends {
    let (a, b) = tokio::io::duplex(4 << 10);
    ends_over(a, b).await
}

/// Bytes that depend on stream and position, so that a swap or a loss shows.
struct Pattern(u64);

impl Pattern {
    fn new(stream: u64) -> Self {
        Self(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn fill(&mut self, buf: &mut [u8]) {
        for byte in buf {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            *byte = self.0.to_le_bytes()[3];
        }
    }
}

async fn send_pattern(writer: &mut (impl AsyncWrite + Unpin), id: u64, mut bytes: usize) {
    let mut pattern = Pattern::new(id);
    let mut buf = vec![0; 30_011];
    while bytes > 0 {
        let len = bytes.min(buf.len());
        pattern.fill(&mut buf[..len]);
        writer.write_all(&buf[..len]).await.unwrap();
        bytes -= len;
    }
    writer.shutdown().await.unwrap();
}

async fn expect_pattern(reader: &mut (impl AsyncRead + Unpin), id: u64, bytes: usize) {
    let mut pattern = Pattern::new(id);
    let mut buf = vec![0; 40_009];
    let mut expected = vec![0; 40_009];
    let mut total = 0;
    loop {
        let len = reader.read(&mut buf).await.unwrap();
        if len == 0 {
            break;
        }
        pattern.fill(&mut expected[..len]);
        assert!(buf[..len] == expected[..len], "stream {id} differs after {total} bytes");
        total += len;
    }
    assert_eq!(total, bytes, "stream {id}");
}

/// Sends and expects at once on one stream.
async fn both_ways(stream: LinkStream, send: u64, expect: u64, bytes: usize) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    tokio::join!(
        send_pattern(&mut writer, send, bytes),
        expect_pattern(&mut reader, expect, bytes)
    );
}

async fn hundred_megabytes_both_ways(mut ends: Ends) {
    const STREAMS: u64 = 32;
    const BYTES: usize = 100_000_000 / 32;
    let mut work = JoinSet::new();
    for id in 0..STREAMS {
        let guest = ends.guest.clone();
        work.spawn(async move {
            let stream = guest.open(&id.to_be_bytes()).await.unwrap();
            both_ways(stream, id, id + 1000, BYTES).await;
        });
    }
    for _ in 0..STREAMS {
        let (header, stream) = ends.at_host.next().await.unwrap();
        let id = u64::from_be_bytes(header.try_into().unwrap());
        work.spawn(both_ways(stream, id + 1000, id, BYTES));
    }
    while let Some(result) = work.join_next().await {
        result.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_megabytes_each_way_over_a_small_duplex_are_byte_exact() {
    hundred_megabytes_both_ways(ends().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_megabytes_each_way_over_real_pipes_are_byte_exact() {
    let (to_guest, from_host) = tokio::net::unix::pipe::pipe().unwrap();
    let (to_host, from_guest) = tokio::net::unix::pipe::pipe().unwrap();
    hundred_megabytes_both_ways(
        ends_over(join(from_guest, to_guest), join(from_host, to_host)).await,
    )
    .await;
}

#[tokio::test]
async fn unread_streams_do_not_stall_another() {
    let mut ends = ends().await;
    let mut stalled = Vec::new();
    // Every slot but one is filled up to its window and never read.
    for _ in 1..GUEST_STREAMS {
        let mut stream = ends.guest.open(b"").await.unwrap();
        stream.write_all(&vec![1; STREAM_WINDOW as usize]).await.unwrap();
        stalled.push((stream, ends.at_host.next().await.unwrap()));
    }
    let stream = ends.guest.open(b"").await.unwrap();
    let (_, other) = ends.at_host.next().await.unwrap();
    tokio::join!(both_ways(stream, 1, 2, 3_000_000), both_ways(other, 2, 1, 3_000_000));
}

#[tokio::test]
async fn unread_stream_of_single_bytes_does_not_end_the_link() {
    let mut ends = ends().await;
    let mut dripping = ends.guest.open(b"").await.unwrap();
    let (_, _unread) = ends.at_host.next().await.unwrap();
    for _ in 0..STREAM_WINDOW {
        dripping.write_all(b"x").await.unwrap();
    }
    let stream = ends.guest.open(b"").await.unwrap();
    let (_, other) = ends.at_host.next().await.unwrap();
    tokio::join!(both_ways(stream, 1, 2, 1_000_000), both_ways(other, 2, 1, 1_000_000));
}

#[tokio::test]
async fn writer_waits_for_its_reader() {
    let mut ends = ends().await;
    let mut writer = ends.guest.open(b"").await.unwrap();
    let (_, mut reader) = ends.at_host.next().await.unwrap();
    let bytes = STREAM_WINDOW as usize * 4;
    let mut task = tokio::spawn(async move {
        writer.write_all(&vec![7; bytes]).await.unwrap();
        writer.shutdown().await.unwrap();
        writer
    });
    // The other direction still flows meanwhile, and what is written stays under the window.
    let mut echo = ends.guest.open(b"").await.unwrap();
    let (_, mut far) = ends.at_host.next().await.unwrap();
    for _ in 0..100 {
        echo.write_all(b"x").await.unwrap();
        far.read_u8().await.unwrap();
    }
    assert!(!task.is_finished());
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut task).await.is_err());
    let mut all = Vec::new();
    reader.read_to_end(&mut all).await.unwrap();
    assert_eq!(all.len(), bytes);
    task.await.unwrap();
}

#[tokio::test]
async fn symmetric_back_pressure_does_not_deadlock() {
    let mut ends = ends().await;
    let mut pairs = Vec::new();
    for _ in 0..50 {
        let near = ends.guest.open(b"").await.unwrap();
        let (_, far) = ends.at_host.next().await.unwrap();
        pairs.push((near, far));
    }
    // Both ends write far more than any window before either reads a byte.
    let mut work = JoinSet::new();
    for (near, far) in pairs {
        for stream in [near, far] {
            work.spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(stream);
                let (first, second) = tokio::sync::oneshot::channel();
                let write = async {
                    writer.write_all(&vec![3; STREAM_WINDOW as usize]).await.unwrap();
                    first.send(()).unwrap();
                    writer.write_all(&vec![4; STREAM_WINDOW as usize]).await.unwrap();
                    writer.shutdown().await.unwrap();
                };
                let read = async {
                    second.await.unwrap();
                    let mut all = Vec::new();
                    reader.read_to_end(&mut all).await.unwrap();
                    assert_eq!(all.len(), 2 * STREAM_WINDOW as usize);
                };
                tokio::join!(write, read);
            });
        }
    }
    while let Some(result) = work.join_next().await {
        result.unwrap();
    }
}

#[tokio::test]
async fn host_opens_streams_at_the_guest() {
    let mut ends = ends().await;
    let header: Vec<u8> = (0..MAX_HEADER).map(|i| i.to_le_bytes()[0]).collect();
    let (stream, incoming) = tokio::join!(ends.host.open(&header), ends.at_guest.next());
    let (got, far) = incoming.unwrap();
    assert_eq!(got, header);
    tokio::join!(both_ways(stream.unwrap(), 1, 2, 1_000_000), both_ways(far, 2, 1, 1_000_000));
}

#[tokio::test]
async fn both_ends_open_at_once_and_each_gets_its_own() {
    let ends = ends().await;
    let mut work = JoinSet::new();
    for i in 0..100u64 {
        for link in [ends.host.clone(), ends.guest.clone()] {
            work.spawn(async move {
                let mut stream = link.open(&i.to_be_bytes()).await.unwrap();
                stream.write_u64(i).await.unwrap();
                stream.shutdown().await.unwrap();
                assert_eq!(stream.read_u64().await.unwrap(), i + 1);
                assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
            });
        }
    }
    let serve = |mut incoming: Incoming| async move {
        let mut served = JoinSet::new();
        for _ in 0..100 {
            let (header, mut stream) = incoming.next().await.unwrap();
            served.spawn(async move {
                let asked = stream.read_u64().await.unwrap();
                assert_eq!(header, asked.to_be_bytes());
                stream.write_u64(asked + 1).await.unwrap();
                stream.shutdown().await.unwrap();
                assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
            });
        }
        served.join_all().await;
    };
    tokio::join!(serve(ends.at_host), serve(ends.at_guest));
    work.join_all().await;
    ends.host.close();
    assert_eq!(ends.guest.closed().await, Ending::PeerGone);
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn thousands_of_streams_leave_no_memory_behind() {
    let mut ends = ends().await;
    let data = vec![9; 50_000];
    let mut warm = 0;
    for i in 0..2_200 {
        // Every third stream is dropped half-way at the one or the other end.
        let mut near = ends.guest.open(b"header").await.unwrap();
        let (_, mut far) = ends.at_host.next().await.unwrap();
        near.write_all(&data).await.unwrap();
        far.write_all(&data).await.unwrap();
        match i % 3 {
            0 => drop(near),
            1 => drop(far),
            _ => {
                near.shutdown().await.unwrap();
                far.shutdown().await.unwrap();
                let mut all = Vec::new();
                near.read_to_end(&mut all).await.unwrap();
                far.read_to_end(&mut all).await.unwrap();
                assert_eq!(all.len(), 2 * data.len());
            }
        }
        if i == 200 {
            warm = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(warm);
    assert!(grown < 8 << 20, "grew by {grown} bytes over 2,000 streams");
}

#[tokio::test]
async fn half_close_leaves_the_other_half() {
    let mut ends = ends().await;
    let mut near = ends.guest.open(b"").await.unwrap();
    let (_, mut far) = ends.at_host.next().await.unwrap();
    near.write_all(b"question").await.unwrap();
    near.shutdown().await.unwrap();
    let mut question = String::new();
    far.read_to_string(&mut question).await.unwrap();
    far.write_all(b"answer").await.unwrap();
    far.shutdown().await.unwrap();
    let mut answer = String::new();
    near.read_to_string(&mut answer).await.unwrap();
    assert_eq!((question.as_str(), answer.as_str()), ("question", "answer"));
    assert!(near.write_all(b"more").await.is_err());
}

#[tokio::test]
async fn writer_that_leaves_after_shutdown_has_delivered_everything() {
    for bytes in [1usize, 10_000, 200_000] {
        let mut ends = ends().await;
        let mut near = ends.guest.open(b"").await.unwrap();
        near.write_all(&vec![5; bytes]).await.unwrap();
        near.shutdown().await.unwrap();
        drop(near);
        let (_, mut far) = ends.at_host.next().await.unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), bytes);
        let (mut near, far) = (far, tokio::join!(ends.host.open(b""), ends.at_guest.next()));
        let _ = near.shutdown().await;
        let (mut near, (_, mut far)) = (far.0.unwrap(), far.1.unwrap());
        near.write_all(&vec![5; bytes]).await.unwrap();
        near.shutdown().await.unwrap();
        drop(near);
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), bytes);
    }
}

#[tokio::test]
async fn dropped_stream_is_a_reset_and_never_a_clean_end() {
    let mut ends = ends().await;
    let mut near = ends.guest.open(b"").await.unwrap();
    let (_, mut far) = ends.at_host.next().await.unwrap();
    near.write_all(b"part").await.unwrap();
    let mut part = [0; 4];
    far.read_exact(&mut part).await.unwrap();
    drop(near);
    assert_eq!(far.read(&mut part).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(far.write_all(&vec![0; STREAM_WINDOW as usize * 2]).await.is_err());

    let (stream, incoming) = tokio::join!(ends.host.open(b""), ends.at_guest.next());
    let (mut near, (_, far)) = (stream.unwrap(), incoming.unwrap());
    drop(far);
    assert_eq!(near.read(&mut part).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn blocked_writer_learns_of_a_reset() {
    let mut ends = ends().await;
    let mut near = ends.guest.open(b"").await.unwrap();
    let (_, far) = ends.at_host.next().await.unwrap();
    let blocked =
        tokio::spawn(async move { near.write_all(&vec![0; STREAM_WINDOW as usize * 4]).await });
    drop(far);
    assert_eq!(blocked.await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn close_ends_streams_and_both_ends() {
    let mut ends = ends().await;
    let mut near = ends.guest.open(b"").await.unwrap();
    let (_, mut far) = ends.at_host.next().await.unwrap();
    near.write_all(b"part").await.unwrap();
    let mut part = [0; 4];
    far.read_exact(&mut part).await.unwrap();
    ends.host.close();
    assert_eq!(ends.host.closed().await, Ending::Closed);
    assert_eq!(ends.guest.closed().await, Ending::PeerGone);
    assert!(near.read(&mut part).await.is_err(), "a lost link must not read as a clean end");
    assert!(far.read(&mut part).await.is_err(), "a closed link must not read as a clean end");
    assert!(near.write_all(b"more").await.is_err());
    assert!(ends.at_host.next().await.is_none());
    assert!(ends.at_guest.next().await.is_none());
    assert!(matches!(ends.guest.open(b"").await, Err(LinkError::Closed)));
    assert!(matches!(ends.host.open(b"").await, Err(LinkError::Closed)));
}

#[tokio::test]
async fn end_of_the_underlying_stream_is_the_end_of_the_link() {
    let (a, b) = tokio::io::duplex(4 << 10);
    let (host, guest) = tokio::join!(Link::host(a), Link::guest(b));
    let ((host, at_host), guest) = (host.unwrap(), guest.unwrap());
    drop((host.clone(), guest));
    assert_eq!(host.closed().await, Ending::PeerGone);
    drop(at_host);
}

#[tokio::test]
async fn opener_waits_while_its_slots_are_taken() {
    let mut ends = ends().await;
    let mut held = Vec::new();
    for _ in 0..HOST_STREAMS {
        let (stream, incoming) = tokio::join!(ends.host.open(b""), ends.at_guest.next());
        held.push((stream.unwrap(), incoming.unwrap()));
    }
    let host = ends.host.clone();
    let mut waiting = tokio::spawn(async move { host.open(b"late").await });
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut waiting).await.is_err());
    held.pop();
    let (header, _stream) = ends.at_guest.next().await.unwrap();
    assert_eq!(header, b"late");
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn header_over_the_bound_is_refused() {
    let ends = ends().await;
    let header = vec![0; MAX_HEADER + 1];
    assert!(matches!(ends.host.open(&header).await, Err(LinkError::HeaderTooLarge(_))));
    assert!(matches!(ends.guest.open(&header).await, Err(LinkError::HeaderTooLarge(_))));
}
