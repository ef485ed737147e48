//! Ending everything in the sandbox from outside, within a bound.
//!
//! It never asks the guest for anything, and never takes silence of an engine for an end.

use std::time::Duration;

use cofferdam_sandbox::{Control, SandboxExit};
use tokio::time::{Instant, timeout_at};

/// After the link is closed the guest ends by itself within this time, or is killed.
pub(crate) const EXIT_GRACE: Duration = Duration::from_secs(3);
/// From the first stop to the kill, at the latest.
pub(crate) const KILL_AFTER_STOP: Duration = Duration::from_secs(7);
/// From the first stop to the proven end of every process, at the latest. Past it the engine hangs, and
/// the verdict is settled without it.
pub(crate) const GONE_AFTER_STOP: Duration = Duration::from_secs(10);
/// From the kill to the proven end: at least this, and without a stop [`KILL_LIMIT`].
pub(crate) const KILL_LEAST: Duration = Duration::from_secs(3);
/// The same when nothing is in a hurry.
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Waits for the end, then kills. Gives how it ended, or that this is not known.
pub(super) async fn end(
    control: &mut Box<dyn Control>,
    stopped: Option<Instant>,
) -> Result<SandboxExit, String> {
    end_within(&BOUNDS, control, stopped).await
}

struct Bounds {
    exit_grace: Duration,
    kill_after_stop: Duration,
    gone_after_stop: Duration,
    kill_least: Duration,
    kill_limit: Duration,
}

const BOUNDS: Bounds = Bounds {
    exit_grace: EXIT_GRACE,
    kill_after_stop: KILL_AFTER_STOP,
    gone_after_stop: GONE_AFTER_STOP,
    kill_least: KILL_LEAST,
    kill_limit: KILL_LIMIT,
};

async fn end_within(
    bounds: &Bounds,
    control: &mut Box<dyn Control>,
    stopped: Option<Instant>,
) -> Result<SandboxExit, String> {
    let now = Instant::now();
    let grace = now + bounds.exit_grace;
    let kill_at = stopped.map_or(grace, |stop| grace.min(stop + bounds.kill_after_stop));
    if let Ok(exit) = timeout_at(kill_at, control.wait()).await {
        return Ok(exit);
    }
    let now = Instant::now();
    let until = match stopped {
        Some(stop) => (stop + bounds.gone_after_stop).max(now + bounds.kill_least),
        None => now + bounds.kill_limit,
    };
    let killed = timeout_at(until, async {
        control.kill().await;
        control.wait().await
    });
    killed.await.map_err(|_| {
        let waited = until.duration_since(now).as_secs();
        format!("nothing confirmed within {waited} s of the kill that the sandbox has ended")
    })
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use cofferdam_run::fact::TeardownOutcome;

    use super::*;

    /// A sandbox that ends by itself after a time, or `late` after a kill, or never.
    struct Stubborn {
        by_itself: Option<Duration>,
        late: Option<Duration>,
        killed: bool,
    }

    #[async_trait]
    impl Control for Stubborn {
        async fn wait(&mut self) -> SandboxExit {
            match (self.killed, self.by_itself, self.late) {
                (false, Some(time), _) | (true, _, Some(time)) => tokio::time::sleep(time).await,
                _ => std::future::pending().await,
            }
            SandboxExit { code: Some(0), ..SandboxExit::default() }
        }
        async fn kill(&mut self) {
            self.killed = true;
        }
        async fn teardown(self: Box<Self>) -> TeardownOutcome {
            TeardownOutcome::Removed
        }
    }

    /// The bounds with a second as ten milliseconds.
    const FAST: Bounds = Bounds {
        exit_grace: Duration::from_millis(30),
        kill_after_stop: Duration::from_millis(70),
        gone_after_stop: Duration::from_millis(100),
        kill_least: Duration::from_millis(30),
        kill_limit: Duration::from_millis(100),
    };

    async fn times(
        by_itself: Option<u64>,
        late: Option<u64>,
        stop_age: Option<u64>,
    ) -> (u64, bool) {
        let ms = Duration::from_millis;
        let control = Stubborn { by_itself: by_itself.map(ms), late: late.map(ms), killed: false };
        let mut control: Box<dyn Control> = Box::new(control);
        let begin = Instant::now();
        let stopped = stop_age.and_then(|age| begin.checked_sub(ms(age)));
        let ended = end_within(&FAST, &mut control, stopped).await;
        (u64::try_from(begin.elapsed().as_millis()).unwrap(), ended.is_ok())
    }

    #[tokio::test]
    async fn silence_of_an_engine_is_no_end_and_every_bound_is_kept() {
        for (what, by_itself, late, stop_age, least, known) in [
            ("ends by itself", Some(5), None, None, 5, true),
            ("is killed after the grace", None, Some(0), None, 30, true),
            ("is killed at once, late after a stop", None, Some(0), Some(69), 1, true),
            ("an engine that never answers, after a stop", None, None, Some(65), 34, false),
            ("an engine that never answers, without a stop", None, None, None, 130, false),
        ] {
            let (took, ended) = times(by_itself, late, stop_age).await;
            assert_eq!(ended, known, "{what}: {took} ms");
            assert!(took >= least, "{what}: {took} ms");
        }
        assert!(EXIT_GRACE < KILL_AFTER_STOP && KILL_AFTER_STOP + KILL_LEAST <= GONE_AFTER_STOP);
    }
}
