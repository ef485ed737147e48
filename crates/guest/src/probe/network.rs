//! Network interfaces that are up. Reads `/proc`, since neither `/sys` nor netlink need be there.
//!
//! Takes an interface for up unless the kernel says otherwise.

use std::os::fd::AsRawFd as _;

use crate::limits::{PROBE_ENTRIES, PROC_FILE};
use crate::probe::read_bounded;

pub(super) fn interfaces_up() -> Vec<String> {
    let Ok(table) = read_bounded("/proc/self/net/dev", PROC_FILE) else {
        return vec!["unreadable: /proc/self/net/dev".to_owned()];
    };
    let mut names = parse(&table);
    names.retain(|name| is_up(name) != Some(false));
    names
}

/// The table has two lines of heading and then `name: counters`.
fn parse(table: &str) -> Vec<String> {
    table
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned())
        .take(PROBE_ENTRIES)
        .collect()
}

#[expect(unsafe_code, reason = "no safe wrapper asks for the flags of an interface")]
fn is_up(name: &str) -> Option<bool> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    // SAFETY: all-zero bytes are a valid `ifreq`: it holds characters, integers and pointers that
    // this request does not read.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the socket is open, and the request points to a whole `ifreq` with a terminated name.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
    if result != 0 {
        return None;
    }
    // SAFETY: a successful SIOCGIFFLAGS has filled the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Some(i32::from(flags) & libc::IFF_UP != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_table() {
        let table = "Inter-| Receive\n face |bytes\n    lo: 1 2 3\n  eth0:9 9\n";
        assert_eq!(parse(table), ["lo", "eth0"]);
    }

    #[test]
    fn unknown_interface_is_not_said_to_be_down() {
        assert_eq!(is_up("no-such-if0"), None);
    }
}
