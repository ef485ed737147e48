//! Ways around the door: routes, connections, resolvers, raw and unusual sockets, sockets of the
//! host's own namespace.
//!
//! In an empty network namespace the kernel answers each attempt at once. Only a way that exists is
//! waited for, briefly, to tell what is behind it.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, ipproto, recv, send, socket_with, sockopt::socket_error,
};
use tokio::time::Instant;

use crate::limits::{PROC_FILE, WALL_OPEN, WALL_OUTSIDE, WALL_RESOLVERS};
use crate::probe::read_bounded;

/// Places that only a way out leads to: documentation ranges, hosts that everybody knows, metadata
/// services, the usual addresses of an engine's host, and a NAT64 prefix.
const PLACES: [&str; 13] = [
    "192.0.2.1:443",
    "203.0.113.1:80",
    "1.1.1.1:443",
    "169.254.169.254:80",
    "169.254.170.2:80",
    "100.100.100.200:80",
    "168.63.129.16:80",
    "172.17.0.1:80",
    "10.0.2.2:80",
    "[2001:db8::1]:443",
    "[2606:4700:4700::1111]:443",
    "[fd00:ec2::254]:80",
    "[64:ff9b::101:101]:443",
];

/// Resolvers: public ones, those of clouds, and those that engines and hosts put on loopback.
const RESOLVERS: [&str; 10] = [
    "1.1.1.1:53",
    "8.8.8.8:53",
    "[2001:4860:4860::8888]:53",
    "169.254.169.253:53",
    "169.254.169.254:53",
    "168.63.129.16:53",
    "127.0.0.1:53",
    "127.0.0.11:53",
    "127.0.0.53:53",
    "[::1]:53",
];

/// What came of one attempt.
enum Tried {
    /// The kernel has no way.
    Closed,
    Open(&'static str),
    /// There is a way; what is behind it shows later.
    Waits(OwnedFd),
}

struct Waiting {
    name: String,
    socket: OwnedFd,
    udp: bool,
    loopback: bool,
}

/// Names everything that is open. `target` is a name that nobody has, for lookups; `port` and
/// `name` are where the host listens in its own namespace.
pub(super) fn open_ways(target: &str, port: Option<u16>, name: Option<String>) -> Vec<String> {
    let mut open = routes();
    let mut waiting = Vec::new();
    let query = query(target);
    for place in PLACES {
        sort(format!("tcp {place}"), place, tcp, false, &mut open, &mut waiting);
    }
    if let Some(port) = port {
        let place = SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
        sort("the host's loopback".to_owned(), &place, tcp, false, &mut open, &mut waiting);
    }
    let own = resolvers();
    for place in RESOLVERS.into_iter().chain(own.iter().map(String::as_str)) {
        let ask = |place| udp(place, &query);
        sort(format!("dns {place}"), place, ask, true, &mut open, &mut waiting);
    }
    open.extend(raw_sockets());
    open.extend(
        name.filter(|name| abstract_socket(name))
            .map(|_| "abstract sockets of the host".to_owned()),
    );
    open.extend(foreign_sockets());
    wait(waiting, &mut open);
    open.truncate(WALL_OPEN);
    open
}

fn sort(
    name: String,
    place: &str,
    attempt: impl Fn(SocketAddr) -> Tried,
    udp: bool,
    open: &mut Vec<String>,
    waiting: &mut Vec<Waiting>,
) {
    // A resolver may be written in a way that this parser does not take: that is no way out.
    let Ok(place) = place.parse::<SocketAddr>() else { return };
    match attempt(place) {
        Tried::Closed => {}
        Tried::Open(how) => open.push(format!("{name} ({how})")),
        Tried::Waits(socket) => {
            waiting.push(Waiting { name, socket, udp, loopback: place.ip().is_loopback() });
        }
    }
}

fn family(place: SocketAddr) -> AddressFamily {
    if place.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// What the kernel says where there is no way: no route, no address to send from, no such family,
/// not permitted.
fn is_closed(error: Errno) -> bool {
    [
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::NETDOWN,
        Errno::ADDRNOTAVAIL,
        Errno::AFNOSUPPORT,
        Errno::PROTONOSUPPORT,
        Errno::PERM,
        Errno::ACCESS,
        Errno::NOSYS,
    ]
    .contains(&error)
}

fn new_socket(place: SocketAddr, kind: SocketType) -> Result<OwnedFd, Tried> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(family(place), kind, flags, None).map_err(|error| {
        if is_closed(error) { Tried::Closed } else { Tried::Open("could not be tried") }
    })
}

fn tcp(place: SocketAddr) -> Tried {
    let socket = match new_socket(place, SocketType::STREAM) {
        Ok(socket) => socket,
        Err(tried) => return tried,
    };
    match connect(&socket, &place) {
        Ok(()) => Tried::Open("connected"),
        Err(Errno::INPROGRESS) => Tried::Waits(socket),
        // Nobody listens there on this namespace's own loopback.
        Err(Errno::CONNREFUSED) if place.ip().is_loopback() => Tried::Closed,
        Err(error) if is_closed(error) => Tried::Closed,
        Err(_) => Tried::Open("a route"),
    }
}

fn udp(place: SocketAddr, query: &[u8]) -> Tried {
    let socket = match new_socket(place, SocketType::DGRAM) {
        Ok(socket) => socket,
        Err(tried) => return tried,
    };
    match connect(&socket, &place).and_then(|()| send(&socket, query, SendFlags::NOSIGNAL)) {
        Ok(_) => Tried::Waits(socket),
        Err(Errno::CONNREFUSED) if place.ip().is_loopback() => Tried::Closed,
        Err(error) if is_closed(error) => Tried::Closed,
        Err(_) => Tried::Open("a route"),
    }
}

/// Waits for those that have a way, all together, and says what is behind it.
fn wait(mut waiting: Vec<Waiting>, open: &mut Vec<String>) {
    let until = Instant::now() + WALL_OUTSIDE;
    // Refusals on loopback are there at once.
    waiting.retain(|way| !settle(way, open));
    while !waiting.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let mut fds: Vec<PollFd<'_>> = waiting
            .iter()
            .map(|way| {
                PollFd::new(&way.socket, if way.udp { PollFlags::IN } else { PollFlags::OUT })
            })
            .collect();
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
        if left.is_zero() {
            break;
        }
        waiting.retain(|way| !settle(way, open));
    }
    open.extend(waiting.into_iter().map(|way| {
        let what = if way.loopback { "somebody listens" } else { "a route, no answer" };
        format!("{} ({what})", way.name)
    }));
}

/// True when it is known what is behind a way; an open one is then named.
fn settle(way: &Waiting, open: &mut Vec<String>) -> bool {
    let error = if way.udp {
        match recv(&way.socket, &mut [0_u8; 64], RecvFlags::DONTWAIT) {
            Ok(_) => None,
            Err(Errno::AGAIN) => return false,
            Err(error) => Some(error),
        }
    } else {
        let mut fd = [PollFd::new(&way.socket, PollFlags::OUT)];
        if !matches!(poll(&mut fd, Some(&Timespec::default())), Ok(1)) {
            return false;
        }
        socket_error(&way.socket).unwrap_or_else(Err).err()
    };
    let how = match error {
        None if way.udp => "answered",
        None => "connected",
        Some(Errno::CONNREFUSED) if way.loopback => return true,
        Some(Errno::CONNREFUSED) => "refused by somebody outside",
        Some(_) => "a route, nobody there",
    };
    open.push(format!("{} ({how})", way.name));
    true
}

/// Routes over anything but loopback.
fn routes() -> Vec<String> {
    let mut open = Vec::new();
    let mut look =
        |file: &str, device: fn(&str) -> Option<&str>| match read_bounded(file, PROC_FILE) {
            Ok(table) => {
                let mut devices: Vec<&str> = table.lines().filter_map(device).collect();
                devices.dedup();
                let foreign = devices.into_iter().filter(|device| *device != "lo");
                open.extend(foreign.take(4).map(|device| format!("a route over {device}")));
            }
            // Without that protocol there is no such table.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => open.push(format!("{file} (unreadable: {})", error.kind())),
        };
    // The first line is a heading; the device stands first.
    look("/proc/self/net/route", |line| {
        line.split_whitespace().next().filter(|device| *device != "Iface")
    });
    // The device stands last. Tables also hold what was never reachable.
    look("/proc/self/net/ipv6_route", |line| line.split_whitespace().last());
    open
}

/// `nameserver` lines of the resolver's configuration.
fn resolvers() -> Vec<String> {
    let text = read_bounded("/etc/resolv.conf", PROC_FILE).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok())
        .take(WALL_RESOLVERS)
        .map(|address| SocketAddr::new(address, 53).to_string())
        .collect()
}

/// Asks for the address of `name`: one question, recursion wanted.
fn query(name: &str) -> Vec<u8> {
    let mut query = vec![0x63, 0x66, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        let label = &label.as_bytes()[..label.len().min(63)];
        // At most 63, as cut above.
        query.push(u8::try_from(label.len()).unwrap_or(63));
        query.extend_from_slice(label);
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    query
}

/// Sockets below the transport, and those that lead to a hypervisor.
fn raw_sockets() -> Vec<String> {
    let raw = [
        ("raw socket", AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)),
        ("raw IPv6 socket", AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6)),
        ("packet socket", AddressFamily::PACKET, SocketType::RAW, None::<Protocol>),
    ];
    raw.into_iter()
        .filter(|(_, family, kind, protocol)| {
            socket_with(*family, *kind, SocketFlags::CLOEXEC, *protocol).is_ok()
        })
        .map(|(name, ..)| name.to_owned())
        .collect()
}

/// True when somebody listens on that abstract name in this network namespace.
fn abstract_socket(name: &str) -> bool {
    let Ok(address) = SocketAddrUnix::new_abstract_name(name.as_bytes()) else { return false };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return false;
    };
    connect(&socket, &address).is_ok()
}

/// Abstract sockets that are there before anything was started here.
fn foreign_sockets() -> Vec<String> {
    let table = read_bounded("/proc/self/net/unix", PROC_FILE).unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'))
        .take(4)
        .map(|name| format!("abstract socket {name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

    use super::*;

    #[test]
    fn query_is_what_a_resolver_reads() {
        let query = query("ab.invalid");
        assert_eq!(&query[12..], b"\x02ab\x07invalid\x00\x00\x01\x00\x01");
    }

    #[test]
    fn sockets_of_the_hosts_namespace_are_found_where_it_is_shared() {
        let name = format!("cofferdam-wall-test-{}", std::process::id());
        let address = UnixAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = port.local_addr().unwrap().port();
        let open = open_ways("nobody.invalid", Some(at), Some(name.clone()));
        assert!(open.iter().any(|way| way.starts_with("the host's loopback (")), "{open:?}");
        assert!(open.contains(&"abstract sockets of the host".to_owned()), "{open:?}");
        drop((listener, port));
        assert!(!abstract_socket(&name));
    }

    #[test]
    fn resolver_that_answers_is_open_and_a_port_where_nobody_listens_is_not() {
        let resolver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = resolver.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let mut buf = [0; 64];
            let (_, from) = resolver.recv_from(&mut buf).unwrap();
            resolver.send_to(b"answer", from).unwrap();
        });
        let ask = |place| udp(place, b"question");
        let (mut open, mut waiting) = (Vec::new(), Vec::new());
        sort("dns".to_owned(), &at.to_string(), ask, true, &mut open, &mut waiting);
        wait(waiting, &mut open);
        answering.join().unwrap();
        assert_eq!(open, ["dns (answered)"]);

        let (mut open, mut waiting) = (Vec::new(), Vec::new());
        sort("dns".to_owned(), &at.to_string(), ask, true, &mut open, &mut waiting);
        wait(waiting, &mut open);
        assert!(open.is_empty(), "{open:?}");
    }
}
