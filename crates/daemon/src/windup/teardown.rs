//! Removing the sandbox, proven, within a bound of its own.
//!
//! It must never remove work that could not be saved, nor wait for an engine without a limit.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_run::EngineKind;
use cofferdam_run::fact::{Fact, TeardownOutcome};
use cofferdam_run::ids::InstanceId;
use cofferdam_sandbox::Engine;

use super::Windup;
use crate::arm::Armed;
use crate::progress::Progress;
use crate::supervise::Ctx;

/// Removing a sandbox and proving it; past it the verdict is settled and names what is left.
pub(crate) const TEARDOWN_LIMIT: Duration = Duration::from_secs(30);
/// The same where the work directory could not be put aside and has to be removed file by file.
pub(crate) const NATIVE_TEARDOWN_LIMIT: Duration = Duration::from_secs(120);
/// While that is awaited the engine is asked for a sign of life this often.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long an engine may take over such a question, or over the list of its sandboxes.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Such questions in a row without an answer after which nothing more is awaited.
const UNANSWERED: u32 = 2;

pub(super) async fn teardown(ctx: &Ctx<'_>, armed: &Armed, windup: &mut Windup) {
    let outcome = match outcome(ctx, armed, windup).await {
        Some(outcome) => outcome,
        None => return,
    };
    let clean = matches!(outcome, TeardownOutcome::Removed | TeardownOutcome::AlreadyGone);
    ctx.watcher.tell(Progress::Teardown { clean });
    ctx.facts.host(Fact::Teardown { outcome }).await;
}

async fn outcome(ctx: &Ctx<'_>, armed: &Armed, windup: &mut Windup) -> Option<TeardownOutcome> {
    if let Some(hung) = windup.hung.take() {
        let name = ctx.sandbox.as_deref().unwrap_or("the sandbox");
        let detail = format!(
            "{hung}; {name} and its volume are left: `cofferdam sweep` saves the work and removes them \
             as soon as the engine answers"
        );
        return Some(TeardownOutcome::Failed { detail });
    }
    if let Some(why) = windup.unsaved.take() {
        // Everything in it has ended; `sweep` saves the work and removes it once there is room.
        let detail = format!("left in place, because the work in it could not be saved: {why}");
        return Some(TeardownOutcome::Failed { detail });
    }
    if let Some(control) = windup.control.take() {
        return Some(bounded(&ctx.host.instance, &armed.engine, control.teardown()).await);
    }
    if let Some(torn) = windup.torn.take() {
        return Some(torn);
    }
    if windup.sweep {
        return Some(sweep_run(ctx, armed).await);
    }
    None
}

/// Waits for a removal, but not for an engine that gives no sign of life meanwhile.
pub(crate) async fn bounded(
    instance: &InstanceId,
    engine: &Arc<dyn Engine>,
    work: impl Future<Output = TeardownOutcome>,
) -> TeardownOutcome {
    let limit = match engine.kind() {
        EngineKind::Native => NATIVE_TEARDOWN_LIMIT,
        EngineKind::Docker | EngineKind::Podman | EngineKind::Gvisor => TEARDOWN_LIMIT,
    };
    let failed = |detail: String| TeardownOutcome::Failed { detail };
    tokio::select! {
        biased;
        outcome = work => outcome,
        () = tokio::time::sleep(limit) => {
            failed(format!("not removed within {} s", limit.as_secs()))
        }
        () = silent(instance, engine) => failed("the engine does not answer any more".to_owned()),
    }
}

/// Resolves when the engine gives no answer several times in a row. The native engine is no other
/// process.
async fn silent(instance: &InstanceId, engine: &Arc<dyn Engine>) {
    if engine.kind() == EngineKind::Native {
        return std::future::pending().await;
    }
    let mut unanswered = 0;
    while unanswered < UNANSWERED {
        tokio::time::sleep(ASK_EVERY).await;
        let answer = tokio::time::timeout(ANSWER_LIMIT, engine.list(instance)).await;
        unanswered = if matches!(answer, Ok(Ok(_))) { 0 } else { unanswered + 1 };
    }
}

/// Removes whatever carries this run's label. Where the engine knows nothing of the run, that is proof.
async fn sweep_run(ctx: &Ctx<'_>, armed: &Armed) -> TeardownOutcome {
    let failed = |detail: String| TeardownOutcome::Failed {
        detail: format!("{detail}; `cofferdam sweep` removes what there is as soon as it answers"),
    };
    let instance = &ctx.host.instance;
    let found = match tokio::time::timeout(ANSWER_LIMIT, armed.engine.list(instance)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            return failed(format!("the engine does not list its sandboxes: {error}"));
        }
        Err(_) => return failed("the engine does not answer".to_owned()),
    };
    let mut outcome = TeardownOutcome::AlreadyGone;
    for sandbox in found.iter().filter(|f| f.run == ctx.id) {
        outcome = bounded(instance, &armed.engine, armed.engine.remove(sandbox)).await;
        if matches!(outcome, TeardownOutcome::Failed { .. }) {
            break;
        }
    }
    outcome
}
