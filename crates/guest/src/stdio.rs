//! Taking the standard streams for the link, so that nothing else can write to or read from them.
//!
//! Afterwards descriptor 0 is `/dev/null` and descriptor 1 is standard error: a stray print, of this
//! program or of a child, cannot reach the link.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::fs::FileType;
use rustix::io::FdFlags;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::limits::PIPE_BYTES;
use crate::log;

/// The link's two descriptors, no longer at 0 and 1.
#[derive(Debug)]
pub(crate) struct Claimed {
    input: OwnedFd,
    output: OwnedFd,
}

/// Moves the standard streams out of everybody's way, and keeps whatever else was inherited from
/// the agent.
pub(crate) fn claim() -> io::Result<Claimed> {
    if let Err(error) = keep_from_children() {
        // The probe has named them to the host already.
        log::line(&format!("inherited descriptors stay inheritable: {error}"));
    }
    let input = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let output = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    debug_assert!(rustix::io::fcntl_getfd(&input).is_ok_and(|f| f.contains(FdFlags::CLOEXEC)));
    Ok(Claimed { input, output })
}

/// Marks every inherited descriptor beyond the standard ones so that no child gets it.
#[expect(unsafe_code, reason = "the descriptors are someone else's and stay open")]
fn keep_from_children() -> io::Result<()> {
    // SAFETY: only sets a flag, which no owner of a descriptor can rely on the absence of in a
    // process that has just started; nothing is closed.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Claimed {
    /// The same as asynchronous halves. Needs a runtime.
    pub(crate) fn halves(self) -> io::Result<(Reader, Writer)> {
        widen(&self.input);
        widen(&self.output);
        let reader = match kind(&self.input)? {
            FileType::Fifo => Reader::Pipe(pipe::Receiver::from_owned_fd(self.input)?),
            FileType::Socket => Reader::Socket(socket(self.input)?),
            _ => Reader::File(tokio::fs::File::from_std(self.input.into())),
        };
        let writer = match kind(&self.output)? {
            FileType::Fifo => Writer::Pipe(pipe::Sender::from_owned_fd(self.output)?),
            FileType::Socket => Writer::Socket(socket(self.output)?),
            _ => Writer::File(tokio::fs::File::from_std(self.output.into())),
        };
        Ok((reader, writer))
    }
}

/// Makes room in a pipe, so that a frame passes in one piece and with one waking of the other end.
/// The kernel refuses beyond a person's quota and for what is no pipe; then it stays as it is.
fn widen(fd: &OwnedFd) {
    let _ = rustix::pipe::fcntl_setpipe_size(fd, PIPE_BYTES);
}

fn kind(fd: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

fn socket(fd: OwnedFd) -> io::Result<UnixStream> {
    let socket = StdUnixStream::from(fd);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// What the host writes.
#[derive(Debug)]
pub(crate) enum Reader {
    Pipe(pipe::Receiver),
    Socket(UnixStream),
    File(tokio::fs::File),
}

/// What the host reads.
#[derive(Debug)]
pub(crate) enum Writer {
    Pipe(pipe::Sender),
    Socket(UnixStream),
    File(tokio::fs::File),
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Pipe(r) => Pin::new(r).poll_read(cx, buf),
            Self::Socket(r) => Pin::new(r).poll_read(cx, buf),
            Self::File(r) => Pin::new(r).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Writer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Pipe(w) => Pin::new(w).poll_write(cx, buf),
            Self::Socket(w) => Pin::new(w).poll_write(cx, buf),
            Self::File(w) => Pin::new(w).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Pipe(w) => Pin::new(w).poll_flush(cx),
            Self::Socket(w) => Pin::new(w).poll_flush(cx),
            Self::File(w) => Pin::new(w).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Pipe(w) => Pin::new(w).poll_shutdown(cx),
            Self::Socket(w) => Pin::new(w).poll_shutdown(cx),
            Self::File(w) => Pin::new(w).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Pipe(w) => Pin::new(w).poll_write_vectored(cx, bufs),
            Self::Socket(w) => Pin::new(w).poll_write_vectored(cx, bufs),
            Self::File(w) => Pin::new(w).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Pipe(w) => w.is_write_vectored(),
            Self::Socket(w) => w.is_write_vectored(),
            Self::File(w) => w.is_write_vectored(),
        }
    }
}
