//! The server name in a TLS ClientHello, read without a TLS stack.
//!
//! Only the shape is read that carries the name (RFC 8446 sections 4.1.2 and 5.1, RFC 6066
//! section 3). Anything inconsistent is refused: a hello that two parsers read differently would
//! let a tunnel's name and its destination drift apart. Nothing here decrypts or answers.

use cofferdam_policy::{Authority, Host, Refusal, RefusalCode};

use super::limits::MAX_HELLO_BYTES;

/// What the bytes so far say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// More bytes are needed.
    Incomplete,
    /// Complete, with the one host name in it, when there is one.
    Complete(Option<Vec<u8>>),
    /// Not a ClientHello, or one that contradicts itself.
    Invalid(&'static str),
}

/// Decides whether the hello in `bytes` fits the tunnel. `Ok(false)`: more bytes are needed.
pub(super) fn agrees(bytes: &[u8], authority: &Authority) -> Result<bool, Refusal> {
    let name = match read(bytes) {
        Hello::Incomplete => return Ok(false),
        Hello::Invalid(why) => return Err(Refusal::new(RefusalCode::NotTls, why)),
        Hello::Complete(name) => name,
    };
    let mismatch = |why: String| Err(Refusal::new(RefusalCode::SniMismatch, why));
    match (authority.host(), name) {
        (Host::Name(host), Some(name)) if name.eq_ignore_ascii_case(host.as_str().as_bytes()) => {
            Ok(true)
        }
        (Host::Name(_), None) => mismatch("the hello has no server name".to_owned()),
        // A server name is never an address (RFC 6066 section 3).
        (Host::V4(_) | Host::V6(_), None) => Ok(true),
        (_, Some(name)) => {
            mismatch(format!("the hello names {}", String::from_utf8_lossy(&name).escape_debug()))
        }
    }
}

/// Reads the hello at the front of `bytes`.
pub(super) fn read(bytes: &[u8]) -> Hello {
    let message = match handshake_message(bytes) {
        Ok(Some(message)) => message,
        Ok(None) if bytes.len() >= MAX_HELLO_BYTES => {
            return Hello::Invalid("the hello is too long");
        }
        Ok(None) => return Hello::Incomplete,
        Err(why) => return Hello::Invalid(why),
    };
    match server_name(&message) {
        Ok(name) => Hello::Complete(name.map(<[u8]>::to_vec)),
        Err(why) => Hello::Invalid(why),
    }
}

/// Joins the records of the first handshake message. `None`: it is not complete yet.
fn handshake_message(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let mut message = Vec::new();
    loop {
        if let Some(need) = message_len(&message)?
            && message.len() >= need
        {
            // Early data may follow, but in records of its own.
            return if message.len() == need {
                Ok(Some(message))
            } else {
                Err("bytes after the hello")
            };
        }
        // Judged byte by byte, so that other protocols are refused without waiting for more.
        if bytes.first().is_some_and(|kind| *kind != 22) {
            return Err("not a TLS handshake record");
        }
        if bytes.get(1).is_some_and(|major| *major != 3) {
            return Err("not a TLS record version");
        }
        let [_, _, _, high, low, rest @ ..] = bytes else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        if len == 0 || len > 1 << 14 {
            return Err("an impossible record length");
        }
        if rest.len() < len {
            // What is there of the record may already show that it is no hello.
            message.extend_from_slice(rest);
            message_len(&message)?;
            return Ok(None);
        }
        message.extend_from_slice(&rest[..len]);
        bytes = &rest[len..];
    }
}

/// Length of the whole handshake message, once its four header bytes are there.
fn message_len(message: &[u8]) -> Result<Option<usize>, &'static str> {
    if message.first().is_some_and(|kind| *kind != 1) {
        return Err("not a ClientHello");
    }
    let [_, a, b, c, ..] = message else { return Ok(None) };
    let len = (usize::from(*a) << 16) | (usize::from(*b) << 8) | usize::from(*c);
    if len > MAX_HELLO_BYTES { Err("the hello is too long") } else { Ok(Some(4 + len)) }
}

/// A cursor over length-prefixed fields.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or("a length beyond the hello's end")?;
        self.0 = rest;
        Ok(taken)
    }

    /// A vector behind a big-endian length of `bytes` bytes.
    fn vector(&mut self, bytes: usize) -> Result<&'a [u8], &'static str> {
        let len = self.take(bytes)?.iter().fold(0, |len, b| (len << 8) | usize::from(*b));
        self.take(len)
    }

    fn number(&mut self) -> Result<u16, &'static str> {
        Ok(self.take(2)?.iter().fold(0, |n, b| (n << 8) | u16::from(*b)))
    }

    fn finish(&self) -> Result<(), &'static str> {
        if self.0.is_empty() { Ok(()) } else { Err("bytes left over in the hello") }
    }
}

fn server_name(message: &[u8]) -> Result<Option<&[u8]>, &'static str> {
    let mut hello = Cursor(&message[4..]);
    hello.take(2 + 32)?; // Legacy version, random.
    hello.vector(1)?; // Session id.
    hello.vector(2)?; // Cipher suites.
    hello.vector(1)?; // Compression methods.
    if hello.0.is_empty() {
        return Ok(None);
    }
    let mut extensions = Cursor(hello.vector(2)?);
    hello.finish()?;
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let body = extensions.vector(2)?;
        if kind == 0 {
            if name.is_some() {
                return Err("more than one server_name extension");
            }
            name = Some(one_host_name(body)?);
        }
    }
    Ok(name)
}

fn one_host_name(body: &[u8]) -> Result<&[u8], &'static str> {
    let mut extension = Cursor(body);
    let mut list = Cursor(extension.vector(2)?);
    extension.finish()?;
    if list.take(1)? != [0] {
        return Err("a server name that is not a host name");
    }
    let name = list.vector(2)?;
    list.finish()?;
    if name.is_empty() { Err("an empty server name") } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(bytes: usize, body: &[u8]) -> Vec<u8> {
        let len = body.len().to_be_bytes();
        [&len[len.len() - bytes..], body].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [kind.to_be_bytes().to_vec(), vector(2, body)].concat()
    }

    fn sni(name: &str) -> Vec<u8> {
        extension(0, &vector(2, &[vec![0], vector(2, name.as_bytes())].concat()))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend(vector(1, &[]));
        body.extend(vector(2, &[0x13, 1]));
        body.extend(vector(1, &[0]));
        body.extend(vector(2, extensions));
        [vec![1], vector(3, &body)].concat()
    }

    fn record(part: &[u8]) -> Vec<u8> {
        [vec![22, 3, 1], vector(2, part)].concat()
    }

    fn verdict(bytes: &[u8], target: &str) -> Result<bool, RefusalCode> {
        agrees(bytes, &Authority::parse(target).unwrap()).map_err(|refusal| refusal.kind)
    }

    #[test]
    fn the_name_must_be_the_tunnels_host() {
        let hello = record(&message(&[extension(43, &[2, 3, 4]), sni("A.example")].concat()));
        assert_eq!(verdict(&hello, "a.example:443"), Ok(true));
        assert_eq!(verdict(&hello, "b.example:443"), Err(RefusalCode::SniMismatch));
        assert_eq!(verdict(&hello, "93.184.216.34:443"), Err(RefusalCode::SniMismatch));
        let nameless = record(&message(&extension(43, &[2, 3, 4])));
        assert_eq!(verdict(&nameless, "a.example:443"), Err(RefusalCode::SniMismatch));
        assert_eq!(verdict(&nameless, "93.184.216.34:443"), Ok(true));
    }

    #[test]
    fn a_hello_split_over_records_and_reads_is_read_whole() {
        let message = message(&sni("a.example"));
        let bytes: Vec<u8> = message.chunks(7).flat_map(record).collect();
        for cut in 0..bytes.len() {
            assert_eq!(verdict(&bytes[..cut], "a.example:443"), Ok(false), "cut at {cut}");
        }
        assert_eq!(verdict(&bytes, "a.example:443"), Ok(true));
    }

    #[test]
    fn a_hello_that_contradicts_itself_is_no_hello() {
        let twice = record(&message(&[sni("a.example"), sni("b.example")].concat()));
        let two_names = vector(
            2,
            &[vec![0], vector(2, b"a.example"), vec![0], vector(2, b"b.example")].concat(),
        );
        let mut trailing = message(&sni("a.example"));
        trailing.push(0);
        for bytes in [
            twice,
            record(&message(&extension(0, &two_names))),
            record(&message(&sni(""))),
            record(&message(&extension(0, &[]))),
            record(&message(&[0, 0, 0])),
            record(&trailing),
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"\x16\x03\x01\x00\x00".to_vec(),
            b"\x16\x03\x01\xff\xff".to_vec(),
            b"\x16\x02".to_vec(),
            b"\x16\x03\x01\x00\x05\x02".to_vec(),
            b"\x16\x03\x01\x00\x05\x01\xff\xff\xff".to_vec(),
        ] {
            assert_eq!(verdict(&bytes, "a.example:443"), Err(RefusalCode::NotTls), "{bytes:02x?}");
        }
    }
}
