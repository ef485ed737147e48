//! The way of a stop, from whoever wants the run to end to whoever ends it.
//!
//! When the first stop came is remembered apart from the queue, by a task of its own: the bounds
//! after a stop hold also while nobody reads the queue.

use std::time::Duration;

use cofferdam_run::fact::StopCause;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Stops that wait to be read. Past it their senders wait; the run is being stopped already.
pub(crate) const MAX_WAITING_STOPS: usize = 16;

/// When the first stop came.
#[derive(Debug, Clone)]
pub(crate) struct FirstStop(watch::Receiver<Option<Instant>>);

impl FirstStop {
    /// The moment, if there was one.
    pub(crate) fn at(&self) -> Option<Instant> {
        *self.0.borrow()
    }

    /// Resolves `limit` after the first stop; never when there is none.
    pub(crate) async fn plus(&mut self, limit: Duration) {
        let first = match self.0.wait_for(Option::is_some).await {
            Ok(first) => *first,
            // All senders are gone without a stop.
            Err(_) => None,
        };
        match first {
            Some(first) => tokio::time::sleep_until(first + limit).await,
            None => std::future::pending().await,
        }
    }
}

/// A queue of stops.
pub(crate) fn channel() -> (mpsc::Sender<StopCause>, mpsc::Receiver<StopCause>, FirstStop) {
    let (sender, mut raw) = mpsc::channel(MAX_WAITING_STOPS);
    let (forward, receiver) = mpsc::channel(MAX_WAITING_STOPS);
    let (mark, first) = watch::channel(None);
    // Ends with the last sender.
    tokio::spawn(async move {
        while let Some(cause) = raw.recv().await {
            mark.send_if_modified(|first| {
                let is_first = first.is_none();
                first.get_or_insert_with(Instant::now);
                is_first
            });
            if forward.send(cause).await.is_err() {
                break;
            }
        }
    });
    (sender, receiver, FirstStop(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_bound_runs_from_the_first_stop_whoever_reads_or_not() {
        let (sender, receiver, mut first) = channel();
        assert_eq!(first.at(), None);
        let begin = Instant::now();
        sender.send(StopCause::Cancelled).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Far more than fit in both queues, and nobody reads.
        for _ in 0..100 {
            let _ = sender.try_send(StopCause::Cancelled);
        }
        first.plus(Duration::from_millis(120)).await;
        let elapsed = begin.elapsed();
        // From the first stop, not from when it was asked for or read.
        assert!(elapsed >= Duration::from_millis(110), "{elapsed:?}");
        assert!(begin + Duration::from_millis(120) <= Instant::now());
        drop(receiver);
    }
}
