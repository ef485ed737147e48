//! The end of a run that was taken from the queue and cannot be begun: told, judged, settled.
//!
//! It must never be used once anything of the run exists beside the ledger.

use cofferdam_ledger::{Appended, Applied, Settlement};
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::{Lease, Record, Run, RunEvent};

use crate::error::HostError;
use crate::host::Host;

impl Host {
    /// Settles a claimed run that could not be armed; its cause is what stood in the way.
    ///
    /// # Errors
    /// The ledger cannot be used, or somebody else has the run by now.
    pub async fn give_up(
        &self,
        run: &Run,
        lease: &Lease,
        why: &HostError,
    ) -> Result<Record, HostError> {
        let (id, epoch) = (&run.id, lease.epoch);
        let detail = crate::text::line(&format!("{}: {why}", why.code()), 500);
        let cause = StopCause::HostError { detail };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let facts = [
            Fact::Armed { version, spec: run.spec.clone() },
            Fact::Stopped { cause: cause.clone() },
        ];
        for fact in facts {
            match self.ledger.append_fact(id, epoch, self.clock.now(), fact).await? {
                Appended::Kept { .. } | Appended::Counted => {}
                Appended::Lost(_) => return Err(HostError::TakenOver(id.clone())),
            }
        }
        let stop = RunEvent::StopRequested { cause };
        match self.ledger.apply(id, Some(epoch), stop, self.clock.now()).await? {
            // A wish to cancel may have stopped it already.
            Applied::Done { .. } | Applied::Illegal(_) => {}
            Applied::Lost(_) => return Err(HostError::TakenOver(id.clone())),
        }
        match self.ledger.settle(id, epoch, self.clock.now()).await? {
            Settlement::Done { record, .. } => Ok(*record),
            Settlement::Lost(_) => Err(HostError::TakenOver(id.clone())),
            Settlement::Illegal(error) => Err(HostError::Internal(error.to_string())),
        }
    }
}
