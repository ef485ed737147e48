//! The network past the broker: interfaces, routes, addresses, names, sockets of the host.
//!
//! What is dialled is a documentation address, a metadata address, or a listener that the test itself
//! opened on the host.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::twins;
use crate::outcome::{Outcome, errno_of};
use crate::promise::Promise::P1;
use crate::runner::parameter;
use crate::table::Attempt;

const fn row(
    name: &'static str,
    attack: fn() -> Outcome,
    twin: fn() -> Result<(), String>,
) -> Attempt {
    Attempt::new(name, "network", P1, attack, twin)
}

pub(crate) const TABLE: &[Attempt] = &[
    row("network.interfaces", interfaces, twins::loopback),
    row("network.listener_of_the_host", host_listener, twins::loopback).case("S35"),
    row("network.public_address", || tcp("192.0.2.1:443"), twins::loopback),
    row("network.public_address_v6", || tcp("[2001:db8::1]:443"), twins::loopback).case("S31"),
    row("network.metadata", || tcp("169.254.169.254:80"), twins::loopback),
    row("network.metadata_v6", || tcp("[fd00:ec2::254]:80"), twins::loopback).case("S31"),
    row("network.private_address", || tcp("10.0.0.1:22"), twins::loopback),
    row("network.bridge_of_the_engine", || tcp("172.17.0.1:2375"), twins::loopback),
    row("network.udp_out", || udp("192.0.2.1:53"), twins::udp_loopback),
    row("network.udp_multicast", || udp("224.0.0.251:5353"), twins::udp_loopback),
    row("network.udp_broadcast", broadcast, twins::udp_loopback),
    row("network.dns", dns, twins::udp_loopback).case("S29"),
    row("network.dns_stub_of_the_host", || ask("127.0.0.53:53"), twins::udp_loopback).case("S34"),
    row("network.resolver_call", resolver_call, twins::loopback).case("S34"),
    row("network.add_address", add_address, twins::route_netlink),
    row("network.set_interface", set_interface, twins::loopback),
    row("network.abstract_socket_of_the_host", abstract_socket, twins::socket_pair),
    row("network.socket_file_of_the_host", socket_file, twins::socket_pair),
    row("network.sockets_under_run", sockets_under_run, twins::socket_pair).case("S71"),
];

/// No route, no address, nobody there, not allowed.
const NOWHERE: [i32; 7] = [
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::ECONNREFUSED,
    libc::EADDRNOTAVAIL,
    libc::EAFNOSUPPORT,
    libc::EPERM,
    libc::EACCES,
];

fn interfaces() -> Outcome {
    let text = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    Outcome::through_if(names != ["lo"], names.join(" "))
}

fn dial(address: &str) -> io::Result<()> {
    let address: SocketAddr = address.parse().map_err(|_| ErrorKind::InvalidInput)?;
    // A packet that leaves and is not answered has got out: a time-out is no refusal.
    TcpStream::connect_timeout(&address, Duration::from_secs(2)).map(drop)
}

fn tcp(address: &str) -> Outcome {
    Outcome::of(dial(address), &NOWHERE)
}

fn host_listener() -> Outcome {
    let port = parameter("host_port");
    if port.is_empty() {
        Outcome::Refused("no port named".to_owned())
    } else {
        tcp(&format!("127.0.0.1:{port}"))
    }
}

fn udp(address: &str) -> Outcome {
    let sent = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", address));
    Outcome::of(sent, &NOWHERE)
}

fn broadcast() -> Outcome {
    let sent = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.set_broadcast(true)?;
        socket.send_to(b"x", "255.255.255.255:67")
    });
    Outcome::of(sent, &NOWHERE)
}

/// A query for `example.com`, kind A. Through when anything answers.
fn ask(server: &str) -> Outcome {
    const QUERY: &[u8] =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01";
    let asked = || -> io::Result<usize> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.connect(server)?;
        socket.send(QUERY)?;
        socket.recv(&mut [0; 512])
    };
    Outcome::of(asked(), &NOWHERE)
}

fn dns() -> Outcome {
    let conf = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let named = conf.lines().filter_map(|line| line.strip_prefix("nameserver ")).map(str::trim);
    for server in named.chain(["127.0.0.1", "192.0.2.53"]) {
        if let Outcome::Through(detail) = ask(&format!("{server}:53")) {
            return Outcome::Through(format!("{server} {detail}"));
        }
    }
    Outcome::Refused("no resolver answers".to_owned())
}

fn resolver_call() -> Outcome {
    use std::net::ToSocketAddrs as _;
    match ("example.com", 80).to_socket_addrs() {
        Ok(_) => Outcome::Through("resolved".to_owned()),
        Err(_) => Outcome::Refused("no name resolves".to_owned()),
    }
}

/// `RTM_NEWADDR` 192.0.2.9/24 on interface 1, acknowledged.
fn add_address() -> Outcome {
    #[rustfmt::skip]
    let message: [u8; 32] = [
        32, 0, 0, 0,  20, 0,  0x05, 0x06,  1, 0, 0, 0,  0, 0, 0, 0,
        2, 24, 0, 0,  1, 0, 0, 0,
        8, 0, 2, 0,  192, 0, 2, 9,
    ];
    let mut answer = [0u8; 256];
    // SAFETY: buffers and lengths agree; the socket ends with the process.
    let got = unsafe {
        let fd = libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::NETLINK_ROUTE,
        );
        libc::send(fd, message.as_ptr().cast(), message.len(), 0);
        libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
    };
    // `NLMSG_ERROR` carries a negative error number after the header.
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    let error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    if got < 20 || kind != 2 {
        return Outcome::Through(format!("no error came back ({got} bytes)"));
    }
    Outcome::errno(-error, &[libc::EPERM, libc::EACCES])
}

fn set_interface() -> Outcome {
    // SAFETY: an all-zero `ifreq` is valid; it outlives the call.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = from.cast_signed() as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = 0x41;
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        Outcome::call(i64::from(libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const request)))
    }
}

fn abstract_socket() -> Outcome {
    let name = parameter("host_abstract");
    let dialled = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes())
        .and_then(|address| UnixStream::connect_addr(&address));
    Outcome::of(dialled, &[libc::ECONNREFUSED, libc::EPERM, libc::EACCES])
}

fn socket_file() -> Outcome {
    let path = parameter("host_socket");
    Outcome::of(UnixStream::connect(path), &[libc::ENOENT, libc::EACCES, libc::EPERM, libc::EINVAL])
}

/// Any socket that lies in the file system, by a bounded walk of where they usually lie.
fn sockets_under_run() -> Outcome {
    use std::os::unix::fs::FileTypeExt as _;
    let mut places: Vec<std::path::PathBuf> =
        ["/run", "/var/run", "/var/lib", "/tmp", "/dev"].map(Into::into).to_vec();
    let (mut seen, mut at) = (0, 0);
    while at < places.len() && seen < 20_000 {
        for entry in fs::read_dir(&places[at]).into_iter().flatten().flatten() {
            seen += 1;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                places.push(entry.path());
            } else if kind.is_socket() {
                match UnixStream::connect(entry.path()) {
                    Err(error) if matches!(errno_of(&error), libc::EACCES | libc::EPERM) => {}
                    _ => return Outcome::Through(entry.path().display().to_string()),
                }
            }
        }
        at += 1;
    }
    Outcome::Refused(format!("none in {seen} entries"))
}
