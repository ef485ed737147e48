//! Verification of a record, offline and from its text alone.
//!
//! The chain is recomputed over the raw values, so that fields which this version does not know are
//! covered too. Never trusts a field before the chain over it holds.

use serde_json::{Map, Value};

use super::canonical::{self, Strict};
use super::{
    Entry, MAX_RECORD_BYTES, MAX_RECORD_ENTRIES, RECORD_SCHEMA, Record, entry_digest,
    start_of_chain, to_value,
};
use crate::ids::{Digest, RunId};
use crate::judge::judge;
use crate::verdict::Verdict;

/// A record that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The record, parsed.
    pub record: Record,
}

/// What is wrong with one entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryFault {
    /// It is no object, or lacks a field that the chain needs.
    #[error("it has no {field}")]
    Field {
        /// The field.
        field: &'static str,
    },
    /// Its number is not its place.
    #[error("it is numbered {found}")]
    Sequence {
        /// The number found.
        found: String,
    },
    /// It does not follow the entry before it.
    #[error("it names {found} as the entry before it, which is {expected}")]
    Previous {
        /// What the chain says.
        expected: Digest,
        /// What it says.
        found: String,
    },
    /// Its content is not what was sealed.
    #[error("its content has the digest {computed}, not {found}")]
    Content {
        /// Digest of what is there.
        computed: Digest,
        /// What it says.
        found: String,
    },
    /// It is intact, but not an entry that this version knows.
    #[error("it is intact and cannot be understood: {detail}")]
    Unknown {
        /// What the decoder says.
        detail: String,
    },
}

/// Why a record does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// Larger than a record may be.
    #[error("the document has {bytes} bytes; a record has at most {MAX_RECORD_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Not the JSON that a record is made of.
    #[error("the document is not valid: {detail}")]
    Syntax {
        /// What the parser says.
        detail: String,
    },
    /// A top-level field is missing, unknown or of the wrong kind.
    #[error("the document's field {field} is {fault}")]
    Field {
        /// The field.
        field: String,
        /// `missing`, `unknown`, `not valid`.
        fault: &'static str,
    },
    /// Another schema than the one known here.
    #[error("the document's schema is {found:?}; this version reads {RECORD_SCHEMA:?}")]
    Schema {
        /// What it says.
        found: String,
    },
    /// More entries than a record may have.
    #[error("the document has {count} entries; a record has at most {MAX_RECORD_ENTRIES}")]
    TooManyEntries {
        /// How many.
        count: usize,
    },
    /// An entry is wrong.
    #[error("entry {place}: {fault}")]
    Entry {
        /// Its place, counted from 1.
        place: usize,
        /// What is wrong.
        fault: EntryFault,
    },
    /// Entries are missing at the end, or were added.
    #[error(
        "the document ends with {computed}, not with {found}: its last entries are missing or added"
    )]
    Head {
        /// Digest of the last entry there is.
        computed: Digest,
        /// What it says.
        found: String,
    },
    /// The chain holds, the verdict does not follow from it.
    #[error("the entries lead to the verdict \"{computed}\", the document says \"{found}\"", computed = .computed.summary)]
    Verdict {
        /// What follows from the entries.
        computed: Box<Verdict>,
        /// The summary or the whole of what it says.
        found: String,
    },
}

impl VerifyError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } | Self::TooManyEntries { .. } => "RECORD-001",
            Self::Syntax { .. } | Self::Field { .. } => "RECORD-002",
            Self::Schema { .. } => "RECORD-003",
            Self::Entry { fault, .. } => match fault {
                EntryFault::Unknown { .. } => "RECORD-005",
                EntryFault::Field { .. }
                | EntryFault::Sequence { .. }
                | EntryFault::Previous { .. }
                | EntryFault::Content { .. } => "RECORD-004",
            },
            Self::Head { .. } => "RECORD-006",
            Self::Verdict { .. } => "RECORD-007",
        }
    }
}

/// Verifies a record: syntax, chain, head, verdict, in this order.
///
/// # Errors
/// The first thing that does not hold.
pub fn verify(json: &str) -> Result<Verified, VerifyError> {
    if json.len() > MAX_RECORD_BYTES {
        return Err(VerifyError::TooLarge { bytes: json.len() });
    }
    let Strict(document) =
        serde_json::from_str(json).map_err(|e| VerifyError::Syntax { detail: e.to_string() })?;
    let Value::Object(mut fields) = document else {
        return Err(VerifyError::Syntax { detail: "it is not an object".to_owned() });
    };

    let schema = take_text(&mut fields, "schema")?;
    if schema != RECORD_SCHEMA {
        return Err(VerifyError::Schema { found: schema.chars().take(80).collect() });
    }
    let run: RunId = take_text(&mut fields, "run")?.parse().map_err(|_| invalid("run"))?;
    let Value::Array(raw) = take(&mut fields, "entries")? else {
        return Err(invalid("entries"));
    };
    if raw.len() > MAX_RECORD_ENTRIES {
        return Err(VerifyError::TooManyEntries { count: raw.len() });
    }
    let head_text = take_text(&mut fields, "head")?;
    let verdict_value = take(&mut fields, "verdict")?;
    // No digest covers the top level, so nothing unknown may stand there.
    if let Some(field) = fields.keys().next() {
        return Err(VerifyError::Field {
            field: field.chars().take(80).collect(),
            fault: "unknown",
        });
    }

    let mut head = start_of_chain(&run);
    let mut entries = Vec::with_capacity(raw.len());
    for (place, value) in (1usize..).zip(raw) {
        let entry =
            link(place, &head, value).map_err(|fault| VerifyError::Entry { place, fault })?;
        head = entry.digest.clone();
        entries.push(entry);
    }
    if head.as_str() != head_text {
        return Err(VerifyError::Head { computed: head, found: head_text });
    }

    let verdict = judge(entries.iter().map(|e: &Entry| &e.fact));
    if canonical::to_string(&to_value(&verdict)) != canonical::to_string(&verdict_value) {
        let found = match verdict_value.get("summary").and_then(Value::as_str) {
            Some(summary) if summary != verdict.summary => summary.to_owned(),
            Some(_) | None => canonical::to_string(&verdict_value),
        };
        return Err(VerifyError::Verdict { computed: Box::new(verdict), found });
    }
    let record = Record { schema, run, entries, head, verdict };
    Ok(Verified { record })
}

/// Checks one raw entry against its place and the digest before it.
fn link(place: usize, before: &Digest, value: Value) -> Result<Entry, EntryFault> {
    let text = |field: &'static str| {
        value.get(field).and_then(Value::as_str).ok_or(EntryFault::Field { field })
    };
    let seq = value.get("seq").ok_or(EntryFault::Field { field: "seq" })?;
    if seq.as_u64() != u64::try_from(place).ok() {
        return Err(EntryFault::Sequence { found: seq.to_string().chars().take(40).collect() });
    }
    let prev = text("prev")?;
    if prev != before.as_str() {
        return Err(EntryFault::Previous { expected: before.clone(), found: prev.to_owned() });
    }
    let digest = text("digest")?;
    let computed = entry_digest(value.clone());
    if digest != computed.as_str() {
        return Err(EntryFault::Content { computed, found: digest.to_owned() });
    }
    serde_json::from_value(value).map_err(|e| EntryFault::Unknown { detail: e.to_string() })
}

fn invalid(field: &str) -> VerifyError {
    VerifyError::Field { field: field.to_owned(), fault: "not valid" }
}

fn take(fields: &mut Map<String, Value>, field: &str) -> Result<Value, VerifyError> {
    fields
        .remove(field)
        .ok_or_else(|| VerifyError::Field { field: field.to_owned(), fault: "missing" })
}

fn take_text(fields: &mut Map<String, Value>, field: &str) -> Result<String, VerifyError> {
    match take(fields, field)? {
        Value::String(text) => Ok(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(invalid(field))
        }
    }
}
