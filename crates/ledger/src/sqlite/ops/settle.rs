//! The end of a run: facts are judged, the record is sealed and the state becomes terminal, all in
//! one transaction. There is no way to store a record that does not follow from the stored facts.

use cofferdam_run::fact::{Fact, StopCause, TeardownOutcome};
use cofferdam_run::state::Ending;
use cofferdam_run::{Record, Run, RunEvent, RunId, State, TimestampMs, seal, step};
use rusqlite::{Connection, params};

use super::fact::{append_owed, counted};
use super::query::facts_of;
use super::task::end;
use crate::error::LedgerError;
use crate::limits::RECORD_INLINE_BYTES;
use crate::sqlite::blobs::Blobs;
use crate::sqlite::row::{Loaded, Right, load};
use crate::store::{Result, Settlement};

pub(in crate::sqlite) fn settle(
    connection: &Connection,
    blobs: &Blobs,
    id: &RunId,
    epoch: u64,
    at: TimestampMs,
) -> Result<Settlement> {
    let mut loaded = load(connection, id)?;
    if let Err(lost) = loaded.head.fence(epoch, Right::ValidLease(at)) {
        return Ok(Settlement::Lost(lost));
    }
    // Asked before anything is written, so that a refusal changes nothing.
    let State::Collecting { ending, .. } = &loaded.run.state else {
        let state = loaded.run.state.name();
        let event = "settled";
        return Ok(Settlement::Illegal(cofferdam_run::StepError::Illegal { state, event }));
    };
    let mut facts = facts_of(connection, loaded.head.ordinal)?;
    let mut owed: Vec<Fact> = Vec::new();
    let stop = match ending {
        Ending::Stopped { cause } => Some(cause.clone()),
        Ending::AgentEnded => None,
    };
    let cancel = loaded.run.cancel.as_ref().map(|_| StopCause::Cancelled);
    for cause in stop.into_iter().chain(cancel) {
        let fact = Fact::Stopped { cause };
        if !owed.contains(&fact) && !facts.iter().any(|(_, known)| known == &fact) {
            owed.push(fact);
        }
    }
    if let Some(unproven) = unproven_teardown(&loaded, &facts) {
        owed.push(unproven);
    }
    owed.extend(counted(connection, &loaded.head)?);
    for fact in owed {
        append_owed(connection, &mut loaded.head, at, &fact)?;
        facts.push((at, fact));
    }

    let record = seal(id, facts);
    let verdict = record.verdict.clone();
    let fate = end::fate(connection, &loaded, &record, at)?;
    let event = match &fate {
        Some(fate) if fate.is_given_up() => RunEvent::GivenUp { verdict },
        Some(_) | None => RunEvent::Settled { verdict },
    };
    let next = match step(loaded.run.clone(), event.clone(), at) {
        Ok((next, _nothing_left_to_do)) => next,
        Err(error) => {
            return Err(LedgerError::Corrupt { what: format!("run {id}: {error}") });
        }
    };
    insert_record(connection, &loaded, &record, &next, Some(blobs))?;
    let ordinal = loaded.head.ordinal;
    let (run, _seq) = loaded.advance(connection, &event, next, at)?;
    end::finish(connection, ordinal, &run, fate, at)?;
    Ok(Settlement::Done { run: Box::new(run), record: Box::new(record) })
}

/// A sandbox that is known only to the state, because the process died between storing its identity
/// and telling the facts: the judge must hear of it.
fn unproven_teardown(loaded: &Loaded, facts: &[(TimestampMs, Fact)]) -> Option<Fact> {
    let sandbox = loaded.run.state.sandbox()?;
    let told = facts
        .iter()
        .any(|(_, f)| matches!(f, Fact::SandboxPrepared { .. } | Fact::Teardown { .. }));
    let detail = format!("nothing says what became of the sandbox {sandbox}");
    (!told).then_some(Fact::Teardown { outcome: TeardownOutcome::Failed { detail } })
}

/// The record of a run that was cancelled before anybody took it.
pub(super) fn seal_unstarted(
    connection: &Connection,
    loaded: &mut Loaded,
    next: &Run,
    at: TimestampMs,
) -> Result<()> {
    let armed = Fact::Armed {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        spec: loaded.run.spec.clone(),
    };
    let facts =
        [(loaded.run.created_at, armed), (at, Fact::Stopped { cause: StopCause::Cancelled })];
    for (at, fact) in &facts {
        append_owed(connection, &mut loaded.head, *at, fact)?;
    }
    let record = seal(&loaded.run.id, facts);
    insert_record(connection, loaded, &record, next, None)
}

/// Without blobs for what is known to be small.
fn insert_record(
    connection: &Connection,
    loaded: &Loaded,
    record: &Record,
    next: &Run,
    blobs: Option<&Blobs>,
) -> Result<()> {
    if next.state.verdict() != Some(&record.verdict) {
        let id = &loaded.run.id;
        return Err(LedgerError::Corrupt { what: format!("run {id}: state and record differ") });
    }
    let json = record.to_json();
    let (body, blob) = match blobs {
        Some(blobs) if json.len() > RECORD_INLINE_BYTES => {
            ("", Some(blobs.put(connection, json.as_bytes())?))
        }
        _ => (json.as_str(), None),
    };
    connection.execute(
        "INSERT INTO records (run, head, body, blob) VALUES (?1, ?2, ?3, ?4)",
        params![
            loaded.head.ordinal,
            record.head.as_str(),
            body,
            blob.as_ref().map(cofferdam_run::Digest::as_str)
        ],
    )?;
    Ok(())
}
