//! One guest connection: request after request, until a tunnel, a refusal or the end.

use bytes::BytesMut;
use cofferdam_policy::{Authority, Refusal, RefusalCode};
use cofferdam_run::spec::Principal;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use super::account::Entry;
use super::door::EgressDoor;
use super::head::{Head, HeadError, Inbound};
use super::limits::{
    MAX_AUTH_FAILURES, MAX_HEAD_BYTES, MAX_HEAD_LINES, MAX_LINGER_BYTES,
    MAX_REQUESTS_PER_CONNECTION,
};
use super::net::BoxStream;
use super::request::{Form, Framing, Request};
use super::{forward, hello, relay, reply};

pub(super) struct Connection<'a, S> {
    door: &'a EgressDoor,
    inbound: Inbound<ReadHalf<S>>,
    out: WriteHalf<S>,
    auth_failures: usize,
    /// The last request was refused.
    refused: bool,
    /// Whose door it came through.
    at: Principal,
}

/// What follows a request.
pub(super) enum Next {
    /// The next request may come.
    Again,
    /// The connection is closed in an orderly way.
    Close,
    /// The connection is dropped, so that the client cannot take what it got for the whole.
    Abort,
}

/// What a request turned into.
enum Step {
    Next(Next),
    Tunnel(Box<Tunnel>),
}

struct Tunnel {
    authority: Authority,
    host: BoxStream,
    entry: Entry,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    pub(super) fn new(door: &'a EgressDoor, io: S, at: Principal) -> Self {
        let (read, write) = split(io);
        Self { door, inbound: Inbound::new(read), out: write, auth_failures: 0, refused: false, at }
    }

    /// Serves the connection. Without a slot it is refused at once.
    pub(super) async fn run(mut self, slot: bool) {
        if !slot {
            let refusal = Refusal::new(RefusalCode::TooManyStreams, "too many connections");
            let mut entry = self.door.books.entry("a connection");
            entry.refuse(&refusal);
            drop(entry);
            let answer = reply::refuse(&mut self.out, &refusal, true, false);
            let _ = timeout(self.door.limits.answer, answer).await;
            return self.close().await;
        }
        for served in 1..=MAX_REQUESTS_PER_CONNECTION {
            match self.step(served == MAX_REQUESTS_PER_CONNECTION).await {
                Step::Next(Next::Again) => {}
                Step::Next(Next::Close) => return self.close().await,
                Step::Next(Next::Abort) => return,
                Step::Tunnel(tunnel) => return self.tunnel(*tunnel).await,
            }
        }
        self.close().await;
    }

    /// Finishes sending, then lets the client read: a stream that is dropped with unread input is
    /// reset, and a reset may overtake the answer.
    async fn close(mut self) {
        let linger = async {
            let _ = self.out.shutdown().await;
            let mut left = MAX_LINGER_BYTES;
            while let Ok(read @ 1..) = self.inbound.fill().await {
                self.inbound.buf.clear();
                left = left.saturating_sub(read);
                if left == 0 {
                    break;
                }
            }
        };
        let limits = &self.door.limits;
        let patience = self.door.patience_with_refused(limits.linger);
        let _ = timeout(patience, linger).await;
    }

    async fn step(&mut self, last: bool) -> Step {
        let request = match self.request().await {
            Ok(Some(request)) => request,
            Ok(None) => return Step::Next(Next::Close),
            Err((shown, refusal)) => {
                let entry = self.door.books.entry(&shown);
                return Step::Next(self.refuse(entry, &refusal, None).await);
            }
        };
        let mut entry = self.door.books.entry(&request.authority.to_string());
        if let Err(why) = self.authenticate(&request, &mut entry) {
            self.auth_failures += 1;
            let refusal = Refusal::new(RefusalCode::Credential, why);
            return Step::Next(self.refuse(entry, &refusal, Some(&request)).await);
        }
        let host = match self.door.connect(&request, &mut entry).await {
            Ok(host) => host,
            Err(refusal) => {
                return Step::Next(self.refuse(entry, &refusal, Some(&request)).await);
            }
        };
        match &request.form {
            Form::Tunnel => {
                let authority = request.authority.clone();
                Step::Tunnel(Box::new(Tunnel { authority, host, entry }))
            }
            Form::Plain { method, path } => {
                let exchange = forward::Exchange {
                    request: &request,
                    method,
                    path,
                    last,
                    limits: &self.door.limits,
                };
                Step::Next(exchange.run(&mut self.inbound, &mut self.out, host, entry).await)
            }
        }
    }

    /// The token must be one of this run's, and open this door.
    fn authenticate(&self, request: &Request, entry: &mut Entry) -> Result<(), &'static str> {
        let tokens = &self.door.tokens;
        let owner = request.principal(tokens).ok_or("the token is missing or wrong")?;
        entry.of(owner);
        tokens.refusal(owner, self.at).map_or(Ok(()), Err)
    }

    /// Reads the next request; `None` when there is none. An error comes with what was asked for,
    /// as far as it can be shown.
    async fn request(&mut self) -> Result<Option<Request>, (String, Refusal)> {
        let limits = &self.door.limits;
        let patience = match std::mem::take(&mut self.refused) {
            true => self.door.patience_with_refused(limits.refused),
            false => limits.keep_alive,
        };
        if self.inbound.buf.is_empty()
            && !matches!(timeout(patience, self.inbound.fill()).await, Ok(Ok(1..)))
        {
            return Ok(None);
        }
        let reading = self.inbound.head(MAX_HEAD_BYTES, MAX_HEAD_LINES);
        let refusal = match timeout(limits.header, reading).await {
            Ok(Ok(head)) => {
                let shown = shown_target(&head);
                return Request::parse(head).map(Some).map_err(|refusal| (shown, refusal));
            }
            Ok(Err(HeadError::Closed | HeadError::Io(_))) => return Ok(None),
            Ok(Err(HeadError::TooLarge(why))) => Refusal::new(RefusalCode::TooLarge, why),
            Ok(Err(error @ (HeadError::Syntax(_) | HeadError::Truncated))) => {
                Refusal::new(RefusalCode::Malformed, error.to_string())
            }
            Err(_) => Refusal::new(RefusalCode::HeaderTimeout, "the header did not end in time"),
        };
        let text = String::from_utf8_lossy(&self.inbound.buf);
        let shown = text.lines().next().unwrap_or_default().to_owned();
        Err((shown, refusal))
    }

    /// Tells and answers a refusal. The connection goes on only where the framing is beyond doubt
    /// and nothing that follows can have been meant for a tunnel.
    async fn refuse(
        &mut self,
        mut entry: Entry,
        refusal: &Refusal,
        request: Option<&Request>,
    ) -> Next {
        entry.refuse(refusal);
        drop(entry);
        self.refused = true;
        let again = request.is_some_and(|request| {
            let quiet = matches!(request.framing, Framing::Empty | Framing::Length(0));
            // After a 407 a client repeats CONNECT on the same connection.
            let retry =
                refusal.kind == RefusalCode::Credential && self.auth_failures < MAX_AUTH_FAILURES;
            quiet && !request.close && (retry || request.form != Form::Tunnel)
        });
        let bodiless = request.is_some_and(Request::is_head);
        let answer = reply::refuse(&mut self.out, refusal, !again, bodiless);
        match timeout(self.door.limits.answer, answer).await {
            Ok(Ok(())) if again => Next::Again,
            Ok(_) => Next::Close,
            Err(_) => Next::Abort,
        }
    }

    /// Answers 200 and carries bytes, after a look at the hello on port 443.
    async fn tunnel(mut self, tunnel: Tunnel) {
        const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
        let Tunnel { authority, host, mut entry } = tunnel;
        let answer = async {
            self.out.write_all(ESTABLISHED).await?;
            self.out.flush().await
        };
        match timeout(self.door.limits.answer, answer).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return entry.end("guest closed"),
            Err(_) => return entry.end("idle"),
        }
        if authority.port() == 443 {
            match timeout(self.door.limits.hello, self.hello(&authority)).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return entry.end("guest closed"),
                Ok(Err(refusal)) => {
                    entry.refuse(&refusal);
                    drop(entry);
                    return self.close().await;
                }
                Err(_) => return entry.end("idle"),
            }
        }
        let (read, early): (_, BytesMut) = self.inbound.into_parts();
        let limits = &self.door.limits;
        let outcome = relay::both_ways((read, self.out), early, host, &entry, limits).await;
        entry.end(outcome);
    }

    /// Waits for the whole TLS hello. `false`: the guest left before its first byte.
    async fn hello(&mut self, authority: &Authority) -> Result<bool, Refusal> {
        loop {
            if !self.inbound.buf.is_empty() && hello::agrees(&self.inbound.buf, authority)? {
                return Ok(true);
            }
            if !matches!(self.inbound.fill().await, Ok(1..)) {
                return if self.inbound.buf.is_empty() {
                    Ok(false)
                } else {
                    Err(Refusal::new(RefusalCode::NotTls, "closed in the middle of the hello"))
                };
            }
        }
    }
}

/// The target of a request line, for the record of one that could not be read.
fn shown_target(head: &Head) -> String {
    let line = String::from_utf8_lossy(&head.start);
    line.split(' ').nth(1).unwrap_or(&line).to_owned()
}
