//! Messages with descriptors over a local socket.
//!
//! Never blocks, never takes more descriptors than [`DESCRIPTORS`] at once, and never leaves one that
//! it received open for children.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use rustix::fs::FileType;
use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Descriptors in one message. A message with more is refused and all of them are closed.
pub const DESCRIPTORS: usize = 2;

/// Both ends of a channel: a local socket that keeps messages apart, closed for children.
///
/// # Errors
/// There is no room for descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Takes the socket that this process was given at its start, and closes it for children. Only the
/// process's own start-up may call it, once for each number.
///
/// # Errors
/// Nothing is open there, or it is no socket.
#[expect(unsafe_code, reason = "a descriptor that was inherited has no owner yet")]
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: borrowed for a question only; a number that is not open is answered with an error.
    let there = unsafe { BorrowedFd::borrow_raw(number) };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(there)?.st_mode);
    if kind != FileType::Socket {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no socket"));
    }
    rustix::io::fcntl_setfd(there, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and whoever started this process gave it up to it; the contract above keeps
    // it from being taken twice.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// One end of a channel.
#[derive(Debug)]
pub struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    /// Needs a runtime.
    ///
    /// # Errors
    /// The descriptor cannot be waited for.
    #[expect(unsafe_code, reason = "the one way to wait for a descriptor")]
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` keeps its number and stays open for as long as it lives.
        Ok(Self(unsafe { AsyncFd::register(socket) }?))
    }

    /// Sends one message; waits while the other end has too many to read.
    ///
    /// # Errors
    /// The other end is gone, or the message is too large.
    pub async fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.async_io(Interest::WRITABLE, |socket| send(socket, bytes, descriptors)).await
    }

    /// Receives one message; `None` when the other end is gone. Safe to cancel.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for a message that was longer than `buffer` or carried too many
    /// descriptors; the channel goes on. Else the channel is broken.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
        self.0.async_io(Interest::READABLE, |socket| receive(socket, buffer)).await
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fits = descriptors.is_empty()
        || (descriptors.len() <= DESCRIPTORS
            && ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    if !fits {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(list) = message {
            descriptors.extend(list);
        }
    }
    // The room is rounded up: one more may fit.
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        || descriptors.len() > DESCRIPTORS
    {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message over its bounds"));
    }
    // No message of ours is empty: no bytes are the end.
    Ok((got.bytes > 0).then_some((got.bytes, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[tokio::test]
    async fn descriptors_travel_and_the_end_is_seen() {
        let (near, far) = pair().unwrap();
        let (near, far) = (Channel::new(near).unwrap(), Channel::new(far).unwrap());
        let (mut reader, writer) = io::pipe().unwrap();
        near.send(b"x", &[writer.as_fd()]).await.unwrap();
        drop(writer);
        let (bytes, mut fds) = far.receive(&mut [0; 4]).await.unwrap().unwrap();
        assert_eq!((bytes, fds.len()), (1, 1));
        let fd = fds.remove(0);
        assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
        std::fs::File::from(fd).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        drop(near);
        assert!(far.receive(&mut [0; 4]).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_message_over_its_bounds_is_refused_and_the_channel_goes_on() {
        let (near, far) = pair().unwrap();
        let (near, far) = (Channel::new(near).unwrap(), Channel::new(far).unwrap());
        near.send(b"too long", &[]).await.unwrap();
        near.send(b"ok", &[]).await.unwrap();
        let error = far.receive(&mut [0; 4]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(far.receive(&mut [0; 4]).await.unwrap().unwrap().0, 2);
        let fds = [near.0.get_ref().as_fd(); DESCRIPTORS + 1];
        assert!(near.send(b"x", &fds).await.is_err());
    }
}
