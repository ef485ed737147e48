//! Signs of life of a run: output, messages, bytes through a door. For the silence budget.
//!
//! A sign says only that something moved; it says nothing about progress and is no evidence.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// No agent works, so nothing is expected.
const RESTING: u64 = u64::MAX;

/// Remembers the last sign of life. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    begin: Instant,
    /// Milliseconds after `begin`, or [`RESTING`].
    last: Arc<AtomicU64>,
}

impl Pulse {
    /// Nothing is expected yet.
    pub(crate) fn new() -> Self {
        Self { begin: Instant::now(), last: Arc::new(AtomicU64::new(RESTING)) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(RESTING - 1)
    }

    /// The agent works from now on.
    pub(crate) fn start(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    /// The agent ended: what follows has bounds of its own.
    pub(crate) fn rest(&self) {
        self.last.store(RESTING, Ordering::Relaxed);
    }

    /// A sign of life. Ignored while nothing is expected.
    pub(crate) fn beat(&self) {
        let now = self.now();
        let beat = |last| (last != RESTING).then_some(now);
        // Resting is an answer, not a fault.
        let _ = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, beat);
    }

    /// How long nothing has been heard; `None` while nothing is expected.
    pub(crate) fn silence(&self) -> Option<Duration> {
        match self.last.load(Ordering::Relaxed) {
            RESTING => None,
            last => Some(Duration::from_millis(self.now().saturating_sub(last))),
        }
    }
}

/// A stream whose every byte is a sign of life.
#[derive(Debug)]
pub(crate) struct Pulsing<S> {
    pub(crate) stream: S,
    pub(crate) pulse: Pulse,
}

impl<S: AsyncRead + Unpin> AsyncRead for Pulsing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.pulse.beat();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pulsing<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if matches!(polled, Poll::Ready(Ok(1..))) {
            self.pulse.beat();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn silence_counts_from_the_last_sign_and_only_while_the_agent_works() {
        let pulse = Pulse::new();
        pulse.beat();
        assert_eq!(pulse.silence(), None, "nothing is expected before the agent works");
        pulse.start();
        tokio::time::sleep(MOMENT).await;
        let silence = pulse.silence().unwrap();
        assert!(silence >= MOMENT / 2, "{silence:?}");
        pulse.beat();
        assert!(pulse.silence().unwrap() < silence);
        pulse.rest();
        pulse.beat();
        assert_eq!(pulse.silence(), None, "nor after it has ended");
    }

    #[tokio::test]
    async fn each_byte_through_a_door_is_a_sign() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let pulse = Pulse::new();
        pulse.start();
        let (near, mut far) = tokio::io::duplex(64);
        let mut near = Pulsing { stream: near, pulse: pulse.clone() };
        let last = || pulse.last.load(Ordering::Relaxed);
        tokio::time::sleep(MOMENT).await;
        let begin = last();
        near.write_all(b"x").await.unwrap();
        let written = last();
        assert!(written > begin);
        tokio::time::sleep(MOMENT).await;
        far.write_all(b"y").await.unwrap();
        assert_eq!(near.read_u8().await.unwrap(), b'y');
        assert!(last() > written);
    }
}
