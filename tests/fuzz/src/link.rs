//! The link: frames of messages, headers of streams, and the host's end of the whole protocol
//! against a guest that sends anything.

use std::cell::RefCell;

use cofferdam_link::frames::{FrameError, FrameReader, FrameWriter};
use cofferdam_link::fuzzing::{SeenAsk, ask, open_field};
use cofferdam_link::{Link, limits};
use cofferdam_wire::{Down, Up};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

use crate::choice;

thread_local! {
    static RUNTIME: RefCell<Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime"),
    );
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    RUNTIME.with_borrow(|runtime| runtime.block_on(work))
}

pub(crate) fn frames(data: &[u8]) {
    let (first, bytes) = choice(data);
    block_on(async {
        both::<Up>(bytes, 1 + first % 61).await;
        both::<Down>(bytes, 1 + first % 61).await;
    });
}

/// Messages in `bytes` until the first error, read in pieces of that size.
async fn read<T: DeserializeOwned>(bytes: &[u8], piece: usize) -> (Vec<T>, bool) {
    let (near, mut far) = tokio::io::duplex(piece);
    let mut reader = FrameReader::<T, _>::new(near);
    let send = async {
        // Fails when the reader has stopped at an error.
        let _ = far.write_all(bytes).await;
        drop(far);
    };
    let receive = async move {
        let mut messages = Vec::new();
        loop {
            match reader.next().await {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return (messages, true),
                Err(FrameError::TooLarge(_)) => panic!("only a writer can say that"),
                Err(_) => return (messages, false),
            }
        }
    };
    tokio::join!(send, receive).1
}

async fn both<T>(bytes: &[u8], piece: usize)
where
    T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let whole = read::<T>(bytes, 1 << 16).await;
    assert_eq!(read::<T>(bytes, piece).await, whole, "the answer depends on the pieces");
    let (messages, _) = whole;
    assert!(messages.len() <= bytes.len() / 4, "a message needs a length");
    let mut again = Vec::new();
    let mut writer = FrameWriter::<T, _>::new(&mut again);
    let mut sent = 0;
    for message in &messages {
        match writer.send(message).await {
            Ok(()) => sent += 1,
            // Written by us a message can be longer than as it came.
            Err(FrameError::TooLarge(_)) => break,
            Err(error) => panic!("a message that was read cannot be written: {error}"),
        }
    }
    let (back, clean) = read::<T>(&again, 1 << 16).await;
    assert!(clean && back[..] == messages[..sent], "what is written is what is read");
}

pub(crate) fn header(data: &[u8]) {
    let (first, bytes) = choice(data);
    // As an honest guest sends it.
    match open_field(bytes) {
        None => assert!(bytes.len() > limits::MAX_HEADER),
        Some((name, value)) => {
            assert!(bytes.len() <= limits::MAX_HEADER);
            let seen = ask("POST", "http://host/open", &[(&name, &value)]);
            assert_eq!(seen, Some(SeenAsk::Open(bytes.to_vec())));
            let twice = ask("POST", "http://host/open", &[(&name, &value), (&name, &value)]);
            assert_eq!(twice, None, "a header given twice is no header");
        }
    }
    // As a hostile one does: path, then fields, one a line.
    let mut lines = bytes.split(|b| *b == b'\n');
    let path = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let method = if first % 8 == 0 { "GET" } else { "POST" };
    let fields: Vec<(&[u8], &[u8])> = lines
        .filter_map(|line| {
            let colon = line.iter().position(|b| *b == b':')?;
            Some((&line[..colon], &line[colon + 1..]))
        })
        .collect();
    let seen = ask(method, &path, &fields);
    assert!(method == "POST" || seen.is_none(), "another method is answered");
    match seen {
        None => {}
        Some(SeenAsk::Open(header)) => {
            assert!(path.contains("/open") && header.len() <= limits::MAX_HEADER);
            let (_, value) = open_field(&header).expect("within the bound");
            let own =
                |(name, value): &&(&[u8], &[u8])| is(name, "cofferdam-open") && sendable(value);
            let given: Vec<_> = fields.iter().filter(own).collect();
            assert_eq!(given.len(), 1);
            assert_eq!(given[0].1, value, "one header has one spelling");
        }
        Some(SeenAsk::Answer(_)) => assert!(path.contains("/answer")),
        Some(SeenAsk::Signal) => assert!(path.contains("/signal")),
    }
}

/// HTTP/2 refuses a value with any other byte before it gets to us.
fn sendable(value: &[u8]) -> bool {
    value.iter().all(|b| *b == b'\t' || (*b >= 0x20 && *b != 0x7f))
}

fn is(name: &[u8], wanted: &str) -> bool {
    name.eq_ignore_ascii_case(wanted.as_bytes())
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

pub(crate) fn host(data: &[u8]) {
    let (first, bytes) = choice(data);
    block_on(async {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (mut answers, mut far) = tokio::io::split(far);
        let guest = async {
            // Each fails when the host has closed.
            if first % 16 != 0 {
                let _ = far.write_all(PREFACE).await;
            }
            let _ = far.write_all(bytes).await;
            let _ = far.shutdown().await;
        };
        let answered = async {
            let mut total = 0;
            let mut buf = vec![0; 16 << 10];
            while let Ok(read @ 1..) = answers.read(&mut buf).await {
                total += read;
            }
            total
        };
        let host = async {
            let Ok((link, mut incoming)) = Link::host(near).await else { return };
            let mut streams = 0;
            while let Some((header, stream)) = incoming.next().await {
                assert!(header.len() <= limits::MAX_HEADER);
                streams += 1;
                // A reader and a writer at once, as a door is.
                tokio::spawn(async move {
                    let (mut read, mut write) = tokio::io::split(stream);
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
            // Opening one takes more than nine bytes.
            assert!(streams <= bytes.len() / 9);
            link.closed().await;
        };
        let ((), total, ()) = tokio::join!(guest, answered, host);
        // An echo, and at most a few frames for each that came in: nothing is made larger.
        assert!(total <= 4 * bytes.len() + 4096, "{total} bytes for {}", bytes.len());
    });
}
