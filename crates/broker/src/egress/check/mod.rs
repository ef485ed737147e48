//! Drives the real door with labelled requests, without a network.
//!
//! A [`Vector`] holds rules, the bytes a client sends, what name lookups and dials would answer,
//! and what must come of it. Only resolver, dialler and origin are played; everything between is
//! the code that runs. It must never open a connection or look up a name.

mod client;
mod stub;
mod vector;

use std::sync::Arc;

use cofferdam_policy::{EgressPolicy, RefusalCode, Services, Stage};
use cofferdam_run::Fact;
use serde::Serialize;

pub use vector::{
    Expect, Pace, Repeat, RequestBytes, Step, Upstream, Vector, VectorError, read_vectors,
};

use super::door::{EgressConfig, EgressDoor};
use super::limits::Limits;
use crate::log::MemoryLog;
use crate::secret::Secret;
use crate::token::{RunToken, Tokens};
use client::{Client, Seen};
use stub::Stub;

/// The token that every vector carries, for user `run`.
pub const VECTOR_TOKEN: &str = "k7-demo-token";
/// Times of a vector and of the door are divided by this, so that slow clients are played quickly.
const FASTER: u32 = 20;

/// What came of one vector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VectorResult {
    /// The vector's id.
    pub id: String,
    /// `allow`, `refuse`, or `none` when there was no answer in time.
    pub got: String,
    /// Status of the last answer; of a refused tunnel the status of the refusal.
    pub status: Option<u16>,
    /// Where the last request was refused, or `relay`.
    pub stage: Option<String>,
    /// Everything was as it must be, or as the vector also accepts.
    pub ok: bool,
    /// What was not, or the alternative that was met. Empty when all is plain.
    pub detail: String,
}

/// Plays one vector. Never fails: what is wrong is in the result.
pub async fn check_vector(vector: &Vector) -> VectorResult {
    let mut faults = Vec::new();
    let bytes = match vector.request.bytes() {
        Ok(bytes) => bytes,
        Err(why) => {
            return VectorResult {
                id: vector.id.clone(),
                got: "none".to_owned(),
                status: None,
                stage: None,
                ok: false,
                detail: format!("the vector itself: {why}"),
            };
        }
    };
    let policy = load_policy(vector, &mut faults);
    let log = Arc::new(MemoryLog::default());
    let stub = Stub::new(vector, FASTER);
    let door = EgressDoor::new(EgressConfig {
        policy,
        services: Services::default(),
        gatewayed: Vec::new(),
        tokens: Tokens::one(RunToken::new(Secret::new(VECTOR_TOKEN.to_owned()))),
        bytes_out: 1 << 30,
        log: log.clone(),
        resolver: stub.clone(),
        dialler: stub.clone(),
        limits: Limits::default().faster(FASTER),
    });
    let (guest, inside) = tokio::io::duplex(1 << 20);
    let client = Client { vector, bytes, faster: FASTER };
    let (seen, ()) = tokio::join!(client.run(guest), door.serve(inside));
    drop(door);
    judge(vector, &seen, &log.facts(), &stub, faults)
}

/// Loads the vector's rules; where they must be rejected, nothing is admitted.
fn load_policy(vector: &Vector, faults: &mut Vec<String>) -> EgressPolicy {
    let rules = vector.rules.as_deref().unwrap_or_default();
    let deny = vector.deny.as_deref().unwrap_or_default();
    match (EgressPolicy::load(rules, deny), vector.policy_error) {
        (Ok(policy), false) => return policy,
        (Ok(_), true) => faults.push("the rules were loaded although one is invalid".to_owned()),
        (Err(error), false) => faults.push(format!("the rules were not loaded: {error}")),
        (Err(error), true) => {
            let text = error.to_string();
            if !rules.iter().chain(deny).any(|rule| text.contains(&format!("{rule:?}"))) {
                faults.push(format!("the rule is not named: {text}"));
            }
        }
    }
    EgressPolicy::default()
}

fn judge(
    vector: &Vector,
    seen: &Seen,
    facts: &[Fact],
    stub: &Stub,
    mut faults: Vec<String>,
) -> VectorResult {
    let refusal = last_refusal(facts);
    let tunnel_cut = refusal.filter(|code| code.stage() == Stage::Tls);
    let last_status = seen.statuses.last().copied();
    let status = tunnel_cut.map(RefusalCode::status).or(last_status);
    let got = match status {
        Some(200..=299) => Some(Expect::Allow),
        Some(_) => Some(Expect::Refuse),
        None if seen.closed => Some(Expect::Refuse),
        None => None,
    };
    let stage = match got {
        Some(Expect::Allow) => Some(Stage::Relay),
        Some(Expect::Refuse) => refusal.map(RefusalCode::stage),
        None => None,
    };

    let mut detail = String::new();
    let silent = status.is_none() && seen.closed;
    if got == Some(vector.expect) {
        let same = status == Some(vector.status);
        if !same && silent && vector.also_wire.as_deref() == Some("close") {
            "closed without a reply".clone_into(&mut detail);
        } else if !same && status.is_some_and(|status| vector.also_status.contains(&status)) {
            detail = format!("status {} in place of {}", status.unwrap_or_default(), vector.status);
        } else if !same {
            faults.push(format!("status {status:?}, must be {}", vector.status));
        }
        if stage.map(Stage::as_str) != Some(vector.stage.as_str()) && same {
            faults.push(format!("stage {stage:?}, must be {}", vector.stage));
        }
        check_sequence(vector, seen, &mut faults);
        stub.check(vector, stage, &mut faults);
    } else if got.is_some() && got == vector.also_ok {
        "the opposite verdict, which is accepted".clone_into(&mut detail);
    } else {
        faults.push(format!("{got:?}, must be {:?}", vector.expect));
    }
    if seen.tunnel_short && tunnel_cut.is_none() {
        faults.push("the tunnel was closed without a refusal".to_owned());
    }
    if vector.close && !seen.closed {
        faults.push("the connection was not closed".to_owned());
    }
    faults.extend(seen.fault.clone());
    let ok = faults.is_empty();
    if !ok {
        detail = faults.join("; ");
    }
    VectorResult {
        id: vector.id.clone(),
        got: got.map_or("none", Expect::as_str).to_owned(),
        status,
        stage: stage.map(|stage| stage.as_str().to_owned()),
        ok,
        detail,
    }
}

fn check_sequence(vector: &Vector, seen: &Seen, faults: &mut Vec<String>) {
    let Some(sequence) = &vector.sequence else { return };
    let expected: Vec<u16> = sequence.iter().map(|step| step.status).collect();
    if seen.statuses != expected {
        faults.push(format!("statuses {:?}, must be {expected:?}", seen.statuses));
    }
}

/// The code of the last refusal that was told.
fn last_refusal(facts: &[Fact]) -> Option<RefusalCode> {
    facts.iter().rev().find_map(|fact| match fact {
        Fact::Egress { admitted: false, reason, .. } => {
            RefusalCode::parse(reason.split(':').next().unwrap_or_default())
        }
        _ => None,
    })
}
