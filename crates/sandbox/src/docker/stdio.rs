//! The three streams of an attached container.
//!
//! Each has one bounded buffer and then back-pressure, down to the guest's own pipe. The engine sends
//! output and error text over one connection, so a reader that stops reading one of them stops both;
//! a reader that is dropped does not: its bytes are thrown away. It must never keep more than the
//! buffers below.

use bollard::container::{AttachContainerResults, LogOutput};
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::{AbortHandle, JoinHandle};

/// Bytes buffered per stream; past it the writer waits.
pub const STREAM_BUFFER: usize = 256 << 10;

/// Bytes moved at a time.
const PIECE: usize = 64 << 10;

/// The host's ends.
pub(crate) struct Streams {
    pub(crate) stdin: DuplexStream,
    pub(crate) stdout: DuplexStream,
    pub(crate) stderr: DuplexStream,
    pub(crate) pumps: Pumps,
}

/// The two tasks between engine and buffers; ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Pumps(Vec<AbortHandle>);

impl Drop for Pumps {
    fn drop(&mut self) {
        for pump in &self.0 {
            pump.abort();
        }
    }
}

/// Splits an attached connection.
pub(crate) fn split(attached: AttachContainerResults) -> Streams {
    let AttachContainerResults { output, input } = attached;
    let (stdin, from_host) = tokio::io::duplex(STREAM_BUFFER);
    let (stdout, to_stdout) = tokio::io::duplex(STREAM_BUFFER);
    let (stderr, to_stderr) = tokio::io::duplex(STREAM_BUFFER);
    let tasks: [JoinHandle<()>; 2] = [
        tokio::spawn(async move {
            let (mut from_host, mut input) = (from_host, input);
            // Shut down or dropped by the host, or closed by the guest: either way the guest's input
            // ends here.
            let mut piece = vec![0; PIECE];
            while let Ok(n @ 1..) = from_host.read(&mut piece).await {
                if input.write_all(&piece[..n]).await.is_err() || input.flush().await.is_err() {
                    break;
                }
            }
            let _ = input.shutdown().await;
        }),
        tokio::spawn(async move {
            let mut output = output;
            let mut sinks = [Some(to_stdout), Some(to_stderr)];
            while let Some(piece) = output.next().await {
                let (index, bytes) = match piece {
                    Ok(LogOutput::StdOut { message }) => (0, message),
                    Ok(LogOutput::StdErr { message }) => (1, message),
                    // Neither exists without a terminal: what follows cannot be told apart.
                    Ok(LogOutput::Console { .. } | LogOutput::StdIn { .. }) => {
                        tracing::warn!(
                            "the engine sent output of an unknown stream; the connection is given up"
                        );
                        break;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the attached connection broke");
                        break;
                    }
                };
                if let Some(sink) = &mut sinks[index]
                    && sink.write_all(&bytes).await.is_err()
                {
                    sinks[index] = None;
                }
            }
        }),
    ];
    Streams {
        stdin,
        stdout,
        stderr,
        pumps: Pumps(tasks.iter().map(JoinHandle::abort_handle).collect()),
    }
}
