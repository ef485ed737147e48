//! Bytes both ways between guest and host, with their clocks and meters.
//!
//! A half-open stream is still ended when nothing moves on it: an idle timer that only one
//! direction feeds would let a guest keep streams for ever.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;

use super::account::Entry;
use super::limits::{COPY_BYTES, Limits};

/// When something last moved, and how long nothing may.
pub(super) struct Pulse {
    start: Instant,
    last_ms: AtomicU64,
    idle_ms: AtomicU64,
}

impl Pulse {
    pub(super) fn new(idle: Duration) -> Self {
        Self {
            start: Instant::now(),
            last_ms: AtomicU64::new(0),
            idle_ms: AtomicU64::new(millis(idle)),
        }
    }

    /// Something moved.
    pub(super) fn beat(&self) {
        self.last_ms.store(millis(self.start.elapsed()), Ordering::Relaxed);
    }

    /// From now on nothing may move for at most `idle`.
    pub(super) fn shorten(&self, idle: Duration) {
        self.idle_ms.fetch_min(millis(idle), Ordering::Relaxed);
    }

    /// Waits until nothing has moved for too long, or until `total` is over.
    pub(super) async fn watch(&self, total: Duration) -> &'static str {
        let end = self.start + total;
        loop {
            let quiet = self.last_ms.load(Ordering::Relaxed) + self.idle_ms.load(Ordering::Relaxed);
            let due = self.start + Duration::from_millis(quiet);
            if Instant::now() >= end {
                return "too long";
            }
            if Instant::now() >= due {
                return "idle";
            }
            // Looked at again at least each second, since `shorten` moves the due time forward.
            let step = due.min(end).min(Instant::now() + Duration::from_secs(1));
            tokio::time::sleep_until(step).await;
        }
    }

    /// Runs `work` until it ends by itself or by this clock.
    pub(super) async fn bound<T>(
        &self,
        total: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, &'static str> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            why = self.watch(total) => Err(why),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Carries bytes both ways until both sides have finished. `early` goes to the host first.
pub(super) async fn both_ways<R, W, U>(
    guest: (R, W),
    early: BytesMut,
    host: U,
    entry: &Entry,
    limits: &Limits,
) -> &'static str
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let pulse = Pulse::new(limits.idle);
    let (mut guest_read, mut guest_write) = guest;
    let (mut host_read, mut host_write) = tokio::io::split(host);

    let out = async {
        let mut buf = early;
        loop {
            if !buf.is_empty() {
                entry.take_out(buf.len() as u64).map_err(|_| "budget")?;
                if host_write.write_all(&buf).await.is_err() {
                    break;
                }
                buf.clear();
                pulse.beat();
            }
            buf.reserve(COPY_BYTES);
            if guest_read.read_buf(&mut buf).await.map_err(|_| "guest closed")? == 0 {
                break;
            }
        }
        // The host may have stopped reading; what it has to say still comes the other way.
        let _ = host_write.shutdown().await;
        pulse.shorten(limits.half_closed);
        Ok::<(), &'static str>(())
    };
    let back = async {
        let mut buf = BytesMut::with_capacity(COPY_BYTES);
        while host_read.read_buf(&mut buf).await.map_err(|_| "host closed")? > 0 {
            entry.add_in(buf.len() as u64);
            guest_write.write_all(&buf).await.map_err(|_| "guest closed")?;
            guest_write.flush().await.map_err(|_| "guest closed")?;
            buf.clear();
            buf.reserve(COPY_BYTES);
            pulse.beat();
        }
        let _ = guest_write.shutdown().await;
        pulse.shorten(limits.half_closed);
        Ok::<(), &'static str>(())
    };
    let work = async { tokio::try_join!(out, back) };
    match pulse.bound(limits.total, work).await {
        Ok(Ok(_)) => "closed",
        Ok(Err(why)) | Err(why) => why,
    }
}
