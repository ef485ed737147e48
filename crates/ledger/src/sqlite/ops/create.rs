//! Arming a run.

use cofferdam_run::Run;
use cofferdam_run::limits::Spend;
use rusqlite::{Connection, params};

use crate::error::LedgerError;
use crate::limits::{MAX_SPEC_BYTES, MAX_TITLE_CHARS};
use crate::sqlite::error::at_to_sql;
use crate::sqlite::row::{clamped, mode_name, text};
use crate::store::{NewRun, Result};

pub(in crate::sqlite) fn create_run(connection: &Connection, new: &NewRun) -> Result<Run> {
    let spec = text(&new.spec)?;
    if spec.len() > MAX_SPEC_BYTES {
        return Err(LedgerError::TooLarge {
            what: "the specification in bytes",
            size: spec.len() as u64,
            limit: MAX_SPEC_BYTES as u64,
        });
    }
    let taken =
        connection.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([new.id.as_str()])?;
    if taken {
        return Err(LedgerError::Exists { id: new.id.clone() });
    }
    let run = Run::new(new.id.clone(), new.spec.clone(), new.created_at);
    let title: String = new.title.chars().take(MAX_TITLE_CHARS).collect();
    let at = at_to_sql(new.created_at)?;
    connection.execute(
        "INSERT INTO runs (id, title, checkout, mode, state, state_json, created_at,
             updated_at, output_budget, spend)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9)",
        params![
            new.id.as_str(),
            title,
            new.spec.checkout,
            mode_name(new.spec.mode),
            run.state.name().as_str(),
            text(&run.state)?,
            at,
            clamped(new.spec.budgets.output_bytes),
            text(&Spend::default())?,
        ],
    )?;
    let ordinal = connection.last_insert_rowid();
    connection.execute("INSERT INTO specs (run, body) VALUES (?1, ?2)", params![ordinal, spec])?;
    Ok(run)
}
