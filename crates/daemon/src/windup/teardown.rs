//! Removing the sandbox, proven, within a bound of its own.
//!
//! It must never remove work that could not be saved, nor wait for an engine without a limit.

use std::time::Duration;

use cofferdam_run::EngineKind;
use cofferdam_run::fact::{Fact, TeardownOutcome};

use super::Windup;
use crate::arm::Armed;
use crate::progress::Progress;
use crate::supervise::Ctx;

/// Removing the sandbox and proving it; past it the verdict is settled and names what is left.
pub(crate) const TEARDOWN_LIMIT: Duration = Duration::from_secs(60);
/// The same for the native engine, where a hundred thousand files of a memory-limited sandbox have
/// been seen to take over a minute on a busy disk.
pub(crate) const NATIVE_TEARDOWN_LIMIT: Duration = Duration::from_secs(600);

pub(super) async fn teardown(ctx: &Ctx<'_>, armed: &Armed, windup: &mut Windup) {
    if let Some(why) = windup.unsaved.take() {
        // Everything in it has ended; `sweep` saves the work and removes it once there is room.
        let detail = format!("left in place, because the work in it could not be saved: {why}");
        ctx.watcher.tell(Progress::Teardown { clean: false });
        ctx.facts.host(Fact::Teardown { outcome: TeardownOutcome::Failed { detail } }).await;
        return;
    }
    let outcome = if let Some(control) = windup.control.take() {
        Some(bounded(teardown_limit(ctx.spec.engine), control.teardown()).await)
    } else if let Some(torn) = windup.torn.take() {
        Some(torn)
    } else if windup.sweep {
        Some(sweep_run(ctx, armed).await)
    } else {
        None
    };
    let Some(outcome) = outcome else { return };
    let clean = matches!(outcome, TeardownOutcome::Removed | TeardownOutcome::AlreadyGone);
    ctx.watcher.tell(Progress::Teardown { clean });
    ctx.facts.host(Fact::Teardown { outcome }).await;
}

/// A remote engine may hang; removing a native sandbox is our own work on the disk and only slow.
fn teardown_limit(kind: EngineKind) -> Duration {
    match kind {
        EngineKind::Native => NATIVE_TEARDOWN_LIMIT,
        EngineKind::Docker | EngineKind::Podman | EngineKind::Gvisor => TEARDOWN_LIMIT,
    }
}

async fn bounded(limit: Duration, work: impl Future<Output = TeardownOutcome>) -> TeardownOutcome {
    let outcome = tokio::time::timeout(limit, work).await;
    outcome.unwrap_or_else(|_| TeardownOutcome::Failed {
        detail: format!("the engine did not answer within {} s", limit.as_secs()),
    })
}

/// Removes whatever carries this run's label. Where the engine knows nothing of the run, that is proof.
async fn sweep_run(ctx: &Ctx<'_>, armed: &Armed) -> TeardownOutcome {
    let listed = tokio::time::timeout(TEARDOWN_LIMIT, armed.engine.list(&ctx.host.instance)).await;
    let found = match listed {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return TeardownOutcome::Failed { detail: error.to_string() },
        Err(_) => {
            return TeardownOutcome::Failed { detail: "the engine did not answer".to_owned() };
        }
    };
    let mut outcome = TeardownOutcome::AlreadyGone;
    for sandbox in found.iter().filter(|f| f.run == ctx.id) {
        outcome = bounded(teardown_limit(ctx.spec.engine), armed.engine.remove(sandbox)).await;
        if matches!(outcome, TeardownOutcome::Failed { .. }) {
            break;
        }
    }
    outcome
}
