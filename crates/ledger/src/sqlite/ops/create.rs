//! Arming a run.

use cofferdam_run::Run;
use cofferdam_run::limits::Spend;
use rusqlite::{Connection, params};

use crate::error::LedgerError;
use crate::limits::{MAX_SPEC_BYTES, MAX_TITLE_CHARS};
use crate::sqlite::error::at_to_sql;
use crate::sqlite::row::{find, mode_name, text};
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
    if find(connection, &new.id)?.is_some() {
        return Err(LedgerError::Exists { id: new.id.clone() });
    }
    let run = Run::new(new.id.clone(), new.spec.clone(), new.created_at);
    let title: String = new.title.chars().take(MAX_TITLE_CHARS).collect();
    let at = at_to_sql(new.created_at)?;
    connection.execute(
        "INSERT INTO runs (id, title, checkout, mode, spec, state, state_json, created_at,
             updated_at, spend)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9)",
        params![
            new.id.as_str(),
            title,
            new.spec.checkout,
            mode_name(new.spec.mode),
            spec,
            run.state.name().as_str(),
            text(&run.state)?,
            at,
            text(&Spend::default())?,
        ],
    )?;
    Ok(run)
}
