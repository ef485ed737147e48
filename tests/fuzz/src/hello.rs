//! The reader of TLS server names, beside rustls: a hello in which the two see different names would
//! open a tunnel to one host under the name of another.

use cofferdam_broker::egress::fuzzing::{SeenHello, hello, hello_fits, limits};
use cofferdam_policy::Authority;
use rustls::server::Acceptor;

use crate::choice;

pub(crate) fn body(data: &[u8]) {
    let (cut, bytes) = choice(data);
    let seen = hello(bytes);
    // What the beginning says, the whole says too: nothing is decided and then taken back.
    if bytes.len() < limits::MAX_HELLO_BYTES {
        let part = hello(&bytes[..bytes.len() * cut / 256]);
        assert!(part == SeenHello::Incomplete || part == seen, "{part:?}, then {seen:?}");
    }
    let target = match &seen {
        SeenHello::Complete(Some(name)) => std::str::from_utf8(name)
            .ok()
            .and_then(|name| Authority::parse(&format!("{name}:443")).ok()),
        _ => None,
    };
    for name in ["a.example:443", "93.184.216.34:443"] {
        let other = Authority::parse(name).unwrap();
        if hello_fits(bytes, &other) == Some(true) {
            assert_eq!(target.as_ref().unwrap_or(&other), &other, "fits two hosts");
            assert_eq!(target.is_none(), other.host().literal().is_some());
        }
    }
    if let (SeenHello::Complete(Some(name)), Some(target)) = (&seen, target) {
        // A final dot, which an authority may have and a server name may not, makes them differ.
        let same = name.eq_ignore_ascii_case(target.host().to_string().as_bytes());
        let fits = same && target.host().literal().is_none();
        assert_eq!(hello_fits(bytes, &target), Some(fits));
    }
    if let SeenHello::Complete(own) = &seen {
        // A reader that takes the last of several would see another name.
        assert_eq!(names_in(bytes), usize::from(own.is_some()), "names in the hello");
    }
    if let (SeenHello::Complete(own), Some(reference)) = (&seen, rustls_name(bytes)) {
        let own = own.as_ref().map(|name| String::from_utf8_lossy(name).to_ascii_lowercase());
        // rustls gives no name for one that is no host name; a tunnel under such a name is refused.
        // It drops a final dot, with which we let no tunnel through.
        if let Some(reference) = reference {
            let own = own.as_deref().map(|name| name.strip_suffix('.').unwrap_or(name));
            assert_eq!(own, Some(&*reference), "two readers, two names");
        } else if let Some(own) = own {
            let fits = Authority::parse(&format!("{own}:443")).ok();
            let fits = fits.filter(|a| a.host().literal().is_none());
            assert_eq!(fits, None, "a name that only we see");
        }
    }
}

/// The server name that rustls sees; the outer `None`: it takes it for no hello.
fn rustls_name(mut bytes: &[u8]) -> Option<Option<String>> {
    let mut acceptor = Acceptor::default();
    loop {
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
                return Some(name);
            }
            Ok(None) if bytes.is_empty() => return None,
            Ok(None) => acceptor.read_tls(&mut bytes).ok().map(|_| ())?,
            Err(_) => return None,
        }
    }
}

/// Server name extensions in a hello whose lengths are taken at their word.
fn names_in(mut bytes: &[u8]) -> usize {
    let mut message = Vec::new();
    while let [22, _, _, high, low, rest @ ..] = bytes {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        message.extend_from_slice(&rest[..len]);
        bytes = &rest[len..];
    }
    let length = |at: usize, bytes: usize| -> usize {
        message[at..].iter().take(bytes).fold(0, |length, b| length << 8 | usize::from(*b))
    };
    // Header, version and random; session id; cipher suites; compression methods.
    let end = (4 + length(1, 3)).min(message.len());
    let mut at = 4 + 2 + 32;
    at += 1 + length(at, 1);
    at += 2 + length(at, 2);
    at += 1 + length(at, 1);
    at += 2;
    let mut names = 0;
    while at + 4 <= end {
        names += usize::from(length(at, 2) == 0);
        at += 4 + length(at + 2, 2);
    }
    names
}
