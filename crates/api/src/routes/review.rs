//! What came of a run: its record and its change.

use cofferdam_daemon::HostError;
use cofferdam_run::Record;
use cofferdam_run::fact::{CollectOutcome, Fact};
use cofferdam_workspace::{Checkout, Diff, DiffForm, DiffRequest};

use crate::endpoint::Call;
use crate::problem::Problem;
use crate::types::DiffQuery;

pub(super) async fn record(call: Call) -> Result<String, Problem> {
    let run = call.run().await?;
    let ledger = call.service.host.ledger();
    match ledger.record(&run).await? {
        Some(text) => Ok(text),
        None => {
            // A run that is not there is another answer than one that is not over.
            ledger.run(&run).await?;
            Err(HostError::NotOver(run).into())
        }
    }
}

pub(super) async fn diff(call: Call<DiffQuery>) -> Result<Diff, Problem> {
    let run = call.run().await?;
    let ledger = call.service.host.ledger();
    let spec = ledger.run(&run).await?.spec;
    let text = ledger.record(&run).await?.ok_or_else(|| HostError::NotOver(run.clone()))?;
    let record: Record = serde_json::from_str(&text)
        .map_err(|e| HostError::Internal(format!("the record of {run} cannot be read: {e}")))?;
    let facts = || record.entries.iter().map(|entry| &entry.fact);
    let fetched = facts().any(|fact| {
        matches!(fact, Fact::Collected { outcome: CollectOutcome::Fetched { .. }, .. })
    });
    let base = facts().find_map(|fact| match fact {
        Fact::Snapshot { base, .. } => Some(base.clone()),
        _ => None,
    });
    let Some(base) = base.filter(|_| fetched) else {
        return Err(HostError::NoCommits(run).into());
    };
    let form = if call.query.files_only { DiffForm::Files } else { DiffForm::Patch };
    let checkout =
        Checkout::open(std::path::Path::new(&spec.checkout)).await.map_err(HostError::from)?;
    let diff = cofferdam_workspace::diff(&checkout, &run, DiffRequest { base, form }).await;
    Ok(diff.map_err(HostError::from)?)
}
