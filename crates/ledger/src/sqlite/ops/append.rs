//! Adding to a run's log: facts and output, alone or many in one transaction.

use cofferdam_run::{RunId, TimestampMs};
use rusqlite::Connection;

use super::{fact, output};
use crate::error::LedgerError;
use crate::limits::MAX_BATCH;
use crate::sqlite::row::{Right, head};
use crate::store::{Appended, Item, Result};

/// One answer per item, in order. A fact past a bound is refused by itself; anything else that fails
/// fails the whole batch.
pub(in crate::sqlite) fn append(
    connection: &Connection,
    id: &RunId,
    epoch: u64,
    items: &[(TimestampMs, Item)],
) -> Result<Vec<Result<Appended>>> {
    if items.len() > MAX_BATCH {
        return Err(LedgerError::TooLarge {
            what: "a batch in items",
            size: items.len() as u64,
            limit: MAX_BATCH as u64,
        });
    }
    let mut head = head(connection, id)?;
    if let Err(lost) = head.fence(epoch, Right::NewestClaim) {
        return Ok(items.iter().map(|_| Ok(Appended::Lost(lost.clone()))).collect());
    }
    let mut answers = Vec::with_capacity(items.len());
    for (at, item) in items {
        let answer = match item {
            Item::Fact(fact) => fact::append(connection, &mut head, *at, fact),
            Item::Output { stream, bytes } => {
                output::append(connection, &mut head, *at, *stream, bytes)
            }
        };
        match answer {
            // Refused before anything was written.
            Ok(_) | Err(LedgerError::TooLarge { .. }) => answers.push(answer),
            Err(error) => return Err(error),
        }
    }
    Ok(answers)
}

/// One item by itself.
pub(in crate::sqlite) fn append_one(
    connection: &Connection,
    id: &RunId,
    epoch: u64,
    item: &(TimestampMs, Item),
) -> Result<Appended> {
    let mut answers = append(connection, id, epoch, std::slice::from_ref(item))?;
    answers.pop().unwrap_or(Err(LedgerError::Closed))
}
