//! The answer on its way to the guest: passed on as it comes, metered beside it, cut when it must be.
//!
//! Nothing is buffered: the guest's appetite drives the provider's connection. When the guest goes
//! away hyper drops this body, and with it the connection to the provider.

use std::io;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use http::{Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Duration, Instant, sleep_until, timeout};

use super::call::Call;
use super::refusal::{Refusal, codes};
use super::scrub::Scrubber;
use super::shared::shortage;
use super::upstream::{Lease, describe};
use super::usage::Reader;

/// Body of every answer to the guest.
pub(super) type GuestBody = UnsyncBoxBody<Bytes, io::Error>;

/// A body that is there already.
pub(super) fn full(bytes: Bytes) -> GuestBody {
    UnsyncBoxBody::new(Full::new(bytes).map_err(|never| match never {}))
}

struct Relay {
    incoming: Incoming,
    lease: Option<Lease>,
    reader: Reader,
    scrubber: Scrubber,
    call: Call,
    /// The call only counted tokens and costs none.
    counts: bool,
    idle: Duration,
    deadline: Instant,
    _permit: OwnedSemaphorePermit,
}

enum State {
    Passing(Box<Relay>),
    /// The reason was told; now the connection breaks.
    Breaking,
}

/// The guest's body for a successful answer.
pub(super) fn body(
    call: Call,
    response: Response<Incoming>,
    lease: Lease,
    counts: bool,
    permit: OwnedSemaphorePermit,
) -> GuestBody {
    let headers = response.headers();
    let kind =
        headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
    let encoded = headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity"));
    let shared = &call.shared;
    let relay = Relay {
        incoming: response.into_body(),
        lease: Some(lease),
        reader: Reader::new(shared.dialect, &kind, encoded),
        scrubber: Scrubber::new(&shared.key),
        idle: shared.timeouts.answer_idle,
        deadline: Instant::now() + shared.timeouts.call,
        call,
        counts,
        _permit: permit,
    };
    let passing = Some(State::Passing(Box::new(relay)));
    let stream = stream::unfold(passing, |state| async move {
        match state? {
            State::Passing(relay) => relay.next().await,
            State::Breaking => {
                // Lets hyper write what came before.
                tokio::task::yield_now().await;
                Some((Err(io::Error::other("cut")), None))
            }
        }
    });
    UnsyncBoxBody::new(StreamBody::new(stream.boxed()))
}

type Next = Option<(Result<Frame<Bytes>, io::Error>, Option<State>)>;

impl Relay {
    async fn next(mut self: Box<Self>) -> Next {
        loop {
            let shared = &self.call.shared;
            let frame = tokio::select! {
                biased;
                refusal = shared.cut() => return self.stop(&refusal),
                () = sleep_until(self.deadline) => {
                    return self.stop(&Refusal::new(504, codes::SILENT, "the call took too long as a whole"));
                }
                frame = timeout(self.idle, self.incoming.frame()) => frame,
            };
            match frame {
                Err(_) => {
                    return self.stop(&Refusal::new(
                        504,
                        codes::SILENT,
                        "the model provider fell silent",
                    ));
                }
                Ok(Some(Err(error))) => {
                    tracing::warn!(error = %describe(&error), "model provider broke off within an answer");
                    return self.stop(&Refusal::new(
                        502,
                        codes::BROKEN,
                        "the model provider broke off its answer",
                    ));
                }
                Ok(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.reader.push(&data);
                    if let Err(why) = self.progress() {
                        return self.stop(&why);
                    }
                    let data = self.scrubber.push(data);
                    if !data.is_empty() {
                        return Some((Ok(Frame::data(data)), Some(State::Passing(self))));
                    }
                }
                Ok(None) => return self.end(),
            }
        }
    }

    fn progress(&mut self) -> Result<(), Refusal> {
        // The final count is settled at the end; the answer is there and is not cut for it.
        let seen =
            if self.counts || self.reader.is_final() { None } else { Some(self.reader.running()) };
        self.call.progress(self.reader.bytes(), seen).map_err(shortage)
    }

    /// The provider has said everything.
    fn end(mut self: Box<Self>) -> Next {
        self.settle(true);
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
        let rest = self.scrubber.finish();
        if rest.is_empty() { None } else { Some((Ok(Frame::data(rest)), None)) }
    }

    /// Ends the answer early, and says why where the stream has room for it.
    fn stop(mut self: Box<Self>, refusal: &Refusal) -> Next {
        self.call.broken(refusal);
        let room = self.reader.at_boundary();
        let event = refusal.event(self.call.shared.dialect);
        self.settle(false);
        drop(self);
        if room {
            Some((Ok(Frame::data(event)), Some(State::Breaking)))
        } else {
            Some((Err(io::Error::other("cut")), None))
        }
    }

    fn settle(&mut self, complete: bool) {
        if self.counts {
            self.call.release();
        } else {
            let cost = self.reader.finish(self.call.input_estimate(), complete);
            self.call.settle(cost);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Also when the guest went away: many clients leave once they have seen the last event.
        self.settle(false);
    }
}
