//! Typed messages on a stream: JSON behind a four-byte big-endian length.
//!
//! Never reads or writes a frame over [`MAX_JSON_FRAME`], and never buffers more than one.

use std::fmt;
use std::marker::PhantomData;

use futures::StreamExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

use crate::limits::MAX_JSON_FRAME;

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream failed, ended inside a frame, or announced a frame over the bound.
    #[error("the message stream failed")]
    Io(#[from] std::io::Error),
    /// A frame did not hold the expected message.
    #[error("a message does not have the agreed shape: {0}")]
    Shape(String),
    /// The message is too large to be sent.
    #[error("a message of {0} bytes is over the limit of {MAX_JSON_FRAME} bytes")]
    TooLarge(usize),
}

/// Reads messages of type `T`.
pub struct FrameReader<T, R> {
    frames: FramedRead<R, LengthDelimitedCodec>,
    message: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned, R: AsyncRead + Unpin> FrameReader<T, R> {
    /// Reads from `reader`.
    pub fn new(reader: R) -> Self {
        let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_JSON_FRAME).new_codec();
        Self { frames: FramedRead::new(reader, codec), message: PhantomData }
    }

    /// The next message; `None` when the stream ended between two. Cancel safe.
    ///
    /// # Errors
    /// [`FrameError::Io`] and [`FrameError::Shape`]; reading on after an error makes no sense.
    pub async fn next(&mut self) -> Result<Option<T>, FrameError> {
        match self.frames.next().await {
            None => Ok(None),
            Some(Err(error)) => Err(error.into()),
            Some(Ok(frame)) => match serde_json::from_slice(&frame) {
                Ok(message) => Ok(Some(message)),
                // Position and kind only: the text of the message is the peer's.
                Err(e) => Err(FrameError::Shape(format!(
                    "{:?} error at byte {}",
                    e.classify(),
                    e.column()
                ))),
            },
        }
    }
}

impl<T, R> fmt::Debug for FrameReader<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameReader").finish_non_exhaustive()
    }
}

/// Writes messages of type `T`.
pub struct FrameWriter<T, W> {
    writer: W,
    message: PhantomData<fn(T)>,
}

impl<T: Serialize, W: AsyncWrite + Unpin> FrameWriter<T, W> {
    /// Writes to `writer`.
    pub fn new(writer: W) -> Self {
        Self { writer, message: PhantomData }
    }

    /// Writes one message. Not cancel safe: a dropped call can leave half a frame behind.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] with nothing written; [`FrameError::Io`].
    pub async fn send(&mut self, message: &T) -> Result<(), FrameError> {
        let mut frame = vec![0; 4];
        serde_json::to_writer(&mut frame, message).map_err(|e| FrameError::Shape(e.to_string()))?;
        let bytes = frame.len() - 4;
        let length = u32::try_from(bytes).ok().filter(|_| bytes <= MAX_JSON_FRAME);
        let length = length.ok_or(FrameError::TooLarge(bytes))?;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        self.writer.write_all(&frame).await?;
        self.writer.flush().await?;
        Ok(())
    }

    /// Says that no message follows.
    ///
    /// # Errors
    /// As the underlying writer.
    pub async fn finish(mut self) -> std::io::Result<()> {
        self.writer.shutdown().await
    }
}

impl<T, W> fmt::Debug for FrameWriter<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameWriter").finish_non_exhaustive()
    }
}
