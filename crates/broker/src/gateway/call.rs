//! One call's books: its reservation and the fact that tells of it.
//!
//! However a call ends (answered, refused, broken, the guest gone), dropping this closes its account
//! and writes its fact, once. It must never write the key or a query into a fact.

use std::sync::Arc;

use cofferdam_run::Fact;
use cofferdam_run::limits::Spend;

use super::limits::MAX_FACT_TEXT;
use super::meter::{Reservation, Shortage};
use super::refusal::Refusal;
use super::shared::Shared;
use super::usage::{Cost, Tokens};

/// Status in the fact of a call whose guest went away before there was an answer.
const GUEST_GONE: u16 = 499;

/// A call from its request line to its end.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) shared: Arc<Shared>,
    request: String,
    model: String,
    status: u16,
    retry_after_ms: Option<u64>,
    refusal: Option<&'static str>,
    bytes_out: u64,
    bytes_in: u64,
    reservation: Option<Reservation>,
    usage: Spend,
    /// What was seen of its cost while it ran.
    seen: Tokens,
}

impl Call {
    pub(super) fn new(shared: Arc<Shared>, method: &http::Method, path: &str) -> Self {
        Self {
            shared,
            request: shown(&format!("{method} {path}")),
            model: String::new(),
            status: GUEST_GONE,
            retry_after_ms: None,
            refusal: None,
            bytes_out: 0,
            bytes_in: 0,
            reservation: None,
            usage: Spend::default(),
            seen: Tokens::default(),
        }
    }

    pub(super) fn model(&mut self, model: &str) {
        self.model = shown(model);
    }

    pub(super) fn request_bytes(&mut self, bytes: usize) {
        self.bytes_out = bytes as u64;
    }

    pub(super) fn answered(&mut self, status: u16) {
        self.status = status;
    }

    /// How long the provider asks to wait before another call.
    pub(super) fn asked_to_wait(&mut self, retry_after_ms: Option<u64>) {
        self.retry_after_ms = retry_after_ms;
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        self.status = refusal.status;
        self.refusal = Some(refusal.code);
    }

    /// Broken off after an answer head had gone out: the status stays what the guest saw.
    pub(super) fn broken(&mut self, refusal: &Refusal) {
        self.refusal = Some(refusal.code);
    }

    pub(super) fn reserved(&mut self, reservation: Reservation) {
        self.reservation = Some(reservation);
    }

    pub(super) fn mark_sent(&mut self) {
        if let Some(reservation) = &mut self.reservation {
            reservation.mark_sent();
        }
    }

    pub(super) fn input_estimate(&self) -> u64 {
        self.reservation.as_ref().map_or(0, Reservation::input)
    }

    pub(super) fn answer_bytes(&mut self, bytes: usize) {
        self.bytes_in = bytes as u64;
    }

    /// Notes progress of the answer; says when the account cannot bear it.
    pub(super) fn progress(&mut self, bytes: u64, seen: Option<Tokens>) -> Result<(), Shortage> {
        self.bytes_in = bytes;
        let Some(seen) = seen else { return Ok(()) };
        self.seen = seen;
        match &mut self.reservation {
            Some(reservation) => reservation.cover(seen),
            None => Ok(()),
        }
    }

    /// The provider refused or never had it.
    pub(super) fn release(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.usage = reservation.release();
        }
    }

    /// The answer ended. Without a cost it is settled as unknown.
    pub(super) fn settle(&mut self, cost: Option<Cost>) {
        if let Some(reservation) = self.reservation.take() {
            self.usage = match cost {
                Some(cost) => reservation.settle(cost),
                None => reservation.forfeit(self.seen),
            };
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.usage = if reservation.is_sent() {
                reservation.forfeit(self.seen)
            } else {
                reservation.release()
            };
        }
        let fact = Fact::ModelCall {
            request: std::mem::take(&mut self.request),
            model: std::mem::take(&mut self.model),
            status: self.status,
            refusal: self.refusal.map(str::to_owned),
            usage: std::mem::take(&mut self.usage),
            bytes_out: self.bytes_out,
            bytes_in: self.bytes_in,
            retry_after_ms: self.retry_after_ms,
        };
        self.shared.fact(fact);
    }
}

/// Guest text for a record: printable, bounded.
fn shown(text: &str) -> String {
    text.chars().take(MAX_FACT_TEXT).flat_map(char::escape_debug).take(MAX_FACT_TEXT).collect()
}
