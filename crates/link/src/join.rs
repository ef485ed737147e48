//! One byte stream made of a reader and a writer, such as the standard streams of a process.
//!
//! Never buffers.

use tokio::io::{AsyncRead, AsyncWrite, Join};

/// Makes one stream of a reader and a writer.
pub fn join<R: AsyncRead, W: AsyncWrite>(reader: R, writer: W) -> Join<R, W> {
    tokio::io::join(reader, writer)
}
