//! Answers: one JSON document, or the pieces of an event stream with their scripted faults.
//!
//! The body notes how it ended, so that tests can see a client that went away. It never buffers
//! ahead of the client: the next piece is made when the last one was taken.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http_body_util::{StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use serde_json::Value;

use super::script::Fault;
use super::server::Note;

/// Body of every answer.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// What a dialect made of a turn.
#[derive(Debug)]
pub(super) enum Answer {
    /// One document.
    Whole(Value),
    /// Server-sent events, each complete with its blank line.
    Events(Vec<String>),
}

/// One event with a name line.
pub(super) fn named(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// One event without a name line.
pub(super) fn unnamed(data: &Value) -> String {
    format!("data: {data}\n\n")
}

struct State {
    pieces: VecDeque<Bytes>,
    sent: usize,
    fault: Fault,
    note: Note,
}

/// The body of `pieces` under `fault`.
pub(super) fn body(pieces: Vec<Bytes>, fault: Fault, note: Note) -> Body {
    let pieces = match fault.split_bytes {
        None => pieces.into(),
        Some(size) => pieces.concat().chunks(size.max(1)).map(Bytes::copy_from_slice).collect(),
    };
    let state = State { pieces, sent: 0, fault, note };
    let stream = stream::unfold(Some(state), |state| async move {
        let mut state = state?;
        // Lets hyper flush the piece before, so that pieces are really separate writes.
        tokio::task::yield_now().await;
        if state.fault.stall_after.is_some_and(|n| state.sent >= n) {
            std::future::pending::<()>().await;
        }
        if state.fault.cut_after.is_some_and(|n| state.sent >= n) {
            state.note.cut();
            return Some((Err(io::Error::other("cut by the script")), None));
        }
        if state.fault.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(state.fault.delay_ms)).await;
        }
        match state.pieces.pop_front() {
            Some(piece) => {
                state.sent += 1;
                state.note.sent(piece.len());
                Some((Ok(Frame::data(piece)), Some(state)))
            }
            None => {
                state.note.complete();
                None
            }
        }
    });
    UnsyncBoxBody::new(StreamBody::new(stream.boxed()))
}
