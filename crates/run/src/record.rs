//! The record: one JSON document per run, its entries chained by digest, its verdict recomputable.
//!
//! The chain shows every change made without re-sealing. It is not a signature: who can rewrite the
//! whole document can seal it anew, so a reader who needs more compares `head` with the ledger's.
//!
//! Each entry's digest is the SHA-256 of the entry without its `digest`, as canonical JSON: no white
//! space, object keys sorted by their UTF-8 bytes at every depth, integers only.

mod canonical;
#[cfg(test)]
mod tests;
mod verify;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fact::Fact;
use crate::ids::{Digest, RunId, TimestampMs};
use crate::judge::judge;
use crate::verdict::Verdict;

pub use verify::{EntryFault, Verified, VerifyError, verify};

/// The schema's name, in every record.
pub const RECORD_SCHEMA: &str = "cofferdam.record/1";

/// Size of a record document, bytes. A larger one is refused before it is parsed.
pub const MAX_RECORD_BYTES: usize = 64 << 20;

/// Entries of a record. A document with more is refused.
pub const MAX_RECORD_ENTRIES: usize = 100_000;

/// One fact and its place in the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// Counts from 1, without gaps.
    pub seq: u64,
    /// When the host learned it.
    pub at: TimestampMs,
    /// The fact.
    #[serde(flatten)]
    pub fact: Fact,
    /// Digest of the entry before, or of the record's start.
    pub prev: Digest,
    /// Digest of this entry.
    pub digest: Digest,
}

/// Everything about one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Always `cofferdam.record/1`.
    #[schemars(extend("const" = RECORD_SCHEMA))]
    pub schema: String,
    /// The run.
    pub run: RunId,
    /// What happened, in the order in which the host learned it.
    pub entries: Vec<Entry>,
    /// Digest of the last entry.
    pub head: Digest,
    /// What follows from the entries.
    pub verdict: Verdict,
}

impl Record {
    /// The facts without times and digests.
    pub fn facts(&self) -> impl Iterator<Item = &Fact> + Clone {
        self.entries.iter().map(|e| &e.fact)
    }

    /// The document, on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        canonical::to_string(&to_value(self))
    }
}

/// Judges the facts and chains them. There is no way to seal a verdict that does not follow.
#[must_use]
pub fn seal(run: &RunId, facts: impl IntoIterator<Item = (TimestampMs, Fact)>) -> Record {
    let mut head = start_of_chain(run);
    let mut entries: Vec<Entry> = Vec::new();
    for (seq, (at, fact)) in (1u64..).zip(facts) {
        let prev = head;
        // The digest's place is held by `prev` until it is known.
        let mut entry = Entry { seq, at, fact, digest: prev.clone(), prev };
        entry.digest = entry_digest(to_value(&entry));
        head = entry.digest.clone();
        entries.push(entry);
    }
    let verdict = judge(entries.iter().map(|e| &e.fact));
    Record { schema: RECORD_SCHEMA.to_owned(), run: run.clone(), entries, head, verdict }
}

/// The JSON Schema of the record, as published in `docs/schema/record-v1.json`.
#[must_use]
pub fn record_schema() -> Value {
    schemars::schema_for!(Record).to_value()
}

/// The value as canonical JSON: the one text that it is hashed as.
#[must_use]
pub fn canonical_json(value: &Value) -> String {
    canonical::to_string(value)
}

fn start_of_chain(run: &RunId) -> Digest {
    Digest::of(format!("{RECORD_SCHEMA}\n{run}").as_bytes())
}

fn entry_digest(mut entry: Value) -> Digest {
    if let Value::Object(fields) = &mut entry {
        fields.remove("digest");
    }
    Digest::of(canonical::to_string(&entry).as_bytes())
}

fn to_value(value: &impl Serialize) -> Value {
    #[expect(
        clippy::expect_used,
        reason = "the record's types are plain data with string keys: they always serialise"
    )]
    serde_json::to_value(value).expect("plain data serialises")
}
