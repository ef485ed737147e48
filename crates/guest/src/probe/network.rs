//! Network interfaces, addresses and routes. Reads `/proc`, since neither `/sys` nor netlink need be
//! there.
//!
//! Takes an interface for up unless the kernel says otherwise. A table that the kernel does not have
//! (no IPv6, another kernel) shows nothing.

use std::os::fd::AsRawFd as _;

use crate::limits::{PROBE_ENTRIES, PROC_FILE};
use crate::probe::read_bounded;

/// All of them, those that are down included.
pub(super) fn interfaces() -> Vec<String> {
    match read_bounded("/proc/self/net/dev", PROC_FILE) {
        Ok(table) => parse(&table),
        Err(_) => vec!["unreadable: /proc/self/net/dev".to_owned()],
    }
}

/// This sandbox's own addresses.
pub(super) fn addresses() -> Vec<String> {
    let table = |name: &str| read_bounded(format!("/proc/self/net/{name}"), PROC_FILE);
    let mut found = local_v4(&table("fib_trie").unwrap_or_default());
    found.extend(local_v6(&table("if_inet6").unwrap_or_default()));
    found.sort();
    found.dedup();
    found.truncate(PROBE_ENTRIES);
    found
}

/// Routes that leave over something else than loopback.
pub(super) fn routes() -> Vec<String> {
    let table = |name: &str| read_bounded(format!("/proc/self/net/{name}"), PROC_FILE);
    let mut found = routes_v4(&table("route").unwrap_or_default());
    found.extend(routes_v6(&table("ipv6_route").unwrap_or_default()));
    found.truncate(PROBE_ENTRIES);
    found
}

/// In the trie an address comes before the line that says that it is local.
fn local_v4(trie: &str) -> Vec<String> {
    let lines: Vec<&str> = trie.lines().map(str::trim).collect();
    lines
        .windows(2)
        .filter(|pair| pair[1].contains("host LOCAL"))
        .filter_map(|pair| pair[0].strip_prefix("|-- ").map(str::to_owned))
        .collect()
}

/// `00000000000000000000000000000001 01 80 10 80       lo`
fn local_v6(table: &str) -> Vec<String> {
    table.lines().filter_map(|line| line.split_ascii_whitespace().next()).map(v6).collect()
}

fn v6(hex: &str) -> String {
    u128::from_str_radix(hex, 16)
        .map_or_else(|_| hex.to_owned(), |bits| std::net::Ipv6Addr::from_bits(bits).to_string())
}

/// A heading, then `eth0 0002A8C0 …`.
fn routes_v4(table: &str) -> Vec<String> {
    let fields = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    };
    table
        .lines()
        .skip(1)
        .filter_map(fields)
        .filter(|(interface, _)| interface != "lo")
        .map(|(interface, target)| format!("{interface} {target}"))
        .collect()
}

/// Target, its prefix, and the interface last.
fn routes_v6(table: &str) -> Vec<String> {
    let fields = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (target, interface) = (words.first()?, words.last()?);
        (words.len() == 10 && *interface != "lo").then(|| format!("{interface} {}", v6(target)))
    };
    table.lines().filter_map(fields).collect()
}

pub(super) fn interfaces_up() -> Vec<String> {
    let mut names = interfaces();
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
    fn own_addresses_are_told_from_others() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                    Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.0.0.7\n        /32 host LOCAL\n";
        assert_eq!(local_v4(trie), ["127.0.0.1", "10.0.0.7"]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(local_v6(table), ["::1"]);
    }

    #[test]
    fn routes_over_loopback_are_none() {
        let v4 = "Iface\tDestination\tGateway\neth0\t00000000\t0102A8C0\nlo\t0000007F\t0\n";
        assert_eq!(routes_v4(v4), ["eth0 00000000"]);
        let line = |interface: &str| {
            format!(
                "{} 00 {} 00 {} 00000400 0 0 200200 {interface}",
                "0".repeat(32),
                "0".repeat(32),
                "0".repeat(32)
            )
        };
        assert_eq!(routes_v6(&format!("{}\n{}\n", line("lo"), line("eth0"))), ["eth0 ::"]);
    }

    #[test]
    fn unknown_interface_is_not_said_to_be_down() {
        assert_eq!(is_up("no-such-if0"), None);
    }
}
