//! Where recorded decisions come from: the ledger, for a run that is over as for one that is live.

use cofferdam_broker::egress::review::left_out;
use cofferdam_run::spec::RunSpec;
use cofferdam_run::{Fact, RunId};

use crate::app::App;
use crate::error::CliError;

/// What a run has on record so far.
pub(super) struct Source {
    pub(super) run: RunId,
    /// Nothing will be added.
    pub(super) over: bool,
    pub(super) spec: RunSpec,
    pub(super) facts: Vec<Fact>,
}

impl Source {
    pub(super) async fn of(app: &App, run: &str) -> Result<Self, CliError> {
        let host = app.host().await?;
        let id = app.resolve(&host, run).await?;
        let facts = host.ledger().facts(&id).await?.into_iter().map(|(_, fact)| fact).collect();
        let stored = host.ledger().run(&id).await?;
        let over = host.ledger().record(&id).await?.is_some();
        Ok(Self { run: id, over, spec: stored.spec, facts })
    }

    /// Decisions that were counted and not kept.
    pub(super) fn left_out(&self) -> u64 {
        left_out(&self.facts)
    }

    /// What the person has to know about how whole this is.
    pub(super) fn caveats(&self) -> Vec<String> {
        let mut caveats = Vec::new();
        let cut = self.left_out();
        if cut > 0 {
            caveats.push(format!(
                "the record counts {cut} more decisions that it does not hold: this is not all of it"
            ));
        }
        if !self.over {
            caveats.push(
                "the run is not over: what it asks for later, and what was counted without being kept, \
                 is not in here"
                    .to_owned(),
            );
        }
        caveats
    }
}
