//! Every bound of the link, each with its unit and what happens at it.

use std::time::Duration;

/// Streams opened by the guest that are open at once. A further `open` of the guest waits; a guest
/// that does not wait has its streams refused.
pub const GUEST_STREAMS: usize = 200;

/// Streams opened by the host that are open at once. A further `open` of the host waits.
pub const HOST_STREAMS: usize = 16;

/// HTTP/2 streams of a connection at once: the two above, the signalling stream, and slack for
/// those whose end is still under way. One more is refused.
pub const MAX_STREAMS: u32 = 224;

/// Bytes that may be under way or unread on one stream, per direction. At the limit the writer
/// waits until the reader has read.
pub const STREAM_WINDOW: u32 = 256 << 10;

/// Bytes that may be unread on all streams together, per direction: enough for each stream to
/// fill its own window, so that no reader can stop another. At the limit all writers wait.
pub const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS;

/// What small unread DATA frames may cost, in bytes that they fall short of 256 each: enough for
/// one stream whose window is full of single bytes. Past it the link ends.
pub const SMALL_FRAME_BUDGET: usize = 72 << 20;

/// Bytes of one stream that wait for the underlying io. At the limit the writer waits.
pub const SEND_BUFFER: usize = 256 << 10;

/// Bytes of one DATA frame. A larger frame ends the link.
pub const MAX_FRAME: u32 = 64 << 10;

/// Bytes of a stream's header. `open` refuses a larger one, and so does the receiving end.
pub const MAX_HEADER: usize = 4 << 10;

/// Bytes of a header list as HTTP/2 counts it: [`MAX_HEADER`] in base64 and the fixed fields. A
/// larger list is refused with its stream.
pub const MAX_HEADER_LIST: u32 = 8 << 10;

/// Streams that the peer opened and nobody has taken from `Incoming` yet. The host refuses one
/// more; the guest leaves it waiting.
pub const INCOMING_QUEUE: usize = MAX_STREAMS as usize;

/// Streams that the guest opened and reset before the host got to them. One more ends the link.
pub const PENDING_RESETS: usize = 64;

/// Streams that the host reset because of the guest's errors, over the life of the link. One more
/// ends the link.
pub const ERROR_RESETS: usize = 1024;

/// Streams reset by this end that are remembered so that late frames for them are no error. The
/// oldest is forgotten.
pub const REMEMBERED_RESETS: usize = 256;

/// Bytes that are discarded from the peer on a stream that this end has shut down and dropped.
/// Past them the stream is reset.
pub const LINGER_BYTES: usize = 1 << 20;

/// How long such a stream waits for the peer to finish. Then it is reset.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the host waits for the guest's preface. Then the link fails.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a host's open waits for the guest to answer. Then it fails; the link stands.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of one JSON frame, without its length. A larger one is an error at both ends.
pub const MAX_JSON_FRAME: usize = 1 << 20;
