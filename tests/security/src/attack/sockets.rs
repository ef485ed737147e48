//! Kinds of sockets that the filter refuses, raw ones included.

use super::twins;
use crate::outcome::Outcome;
use crate::promise::Promise::P1;
use crate::table::Attempt;

const fn row(
    name: &'static str,
    attack: fn() -> Outcome,
    twin: fn() -> Result<(), String>,
) -> Attempt {
    Attempt::new(name, "seccomp", P1, attack, twin)
}

pub(crate) const TABLE: &[Attempt] = &[
    row("socket.packet", packet, twins::loopback),
    row("socket.vsock", vsock, twins::loopback),
    row("socket.alg", alg, twins::socket_pair),
    row("socket.alg_upper_bits", alg_upper, twins::socket_pair),
    row("socket.xdp", xdp, twins::loopback),
    row("socket.bluetooth", bluetooth, twins::loopback),
    row("socket.tipc", tipc, twins::socket_pair),
    row("socket.can", can, twins::loopback),
    row("socket.key", key, twins::route_netlink),
    row("socket.netlink_netfilter", netfilter, twins::route_netlink),
    row("socket.netlink_kobject", kobject, twins::route_netlink),
    row("socket.netlink_audit", audit, twins::route_netlink),
    row("socket.sctp", sctp, twins::loopback),
    row("socket.udplite", udplite, twins::udp_loopback),
    row("socket.unknown_family", unknown, twins::loopback),
    row("socket.pair_of_tipc", pair, twins::socket_pair),
    Attempt::new("caps.raw_icmp", "capabilities", P1, raw, twins::udp_loopback),
    Attempt::new("caps.raw_ipv6", "capabilities", P1, raw6, twins::udp_loopback),
];

fn socket(family: i64, kind: i32, protocol: i32) -> Outcome {
    // SAFETY: takes numbers only.
    Outcome::call(unsafe { libc::syscall(libc::SYS_socket, family, kind, protocol) })
}

fn packet() -> Outcome {
    socket(libc::AF_PACKET.into(), libc::SOCK_RAW, 0)
}

fn vsock() -> Outcome {
    socket(libc::AF_VSOCK.into(), libc::SOCK_STREAM, 0)
}

fn alg() -> Outcome {
    socket(libc::AF_ALG.into(), libc::SOCK_SEQPACKET, 0)
}

fn alg_upper() -> Outcome {
    // The kernel cuts the family to 32 bits.
    socket(i64::from(libc::AF_ALG) | 1 << 32, libc::SOCK_SEQPACKET, 0)
}

fn xdp() -> Outcome {
    socket(libc::AF_XDP.into(), libc::SOCK_RAW, 0)
}

fn bluetooth() -> Outcome {
    socket(libc::AF_BLUETOOTH.into(), libc::SOCK_RAW, 1)
}

fn tipc() -> Outcome {
    socket(libc::AF_TIPC.into(), libc::SOCK_STREAM, 0)
}

fn can() -> Outcome {
    socket(libc::AF_CAN.into(), libc::SOCK_RAW, 1)
}

fn key() -> Outcome {
    socket(libc::AF_KEY.into(), libc::SOCK_RAW, 2)
}

fn netfilter() -> Outcome {
    socket(libc::AF_NETLINK.into(), libc::SOCK_RAW, libc::NETLINK_NETFILTER)
}

fn kobject() -> Outcome {
    socket(libc::AF_NETLINK.into(), libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT)
}

fn audit() -> Outcome {
    socket(libc::AF_NETLINK.into(), libc::SOCK_RAW, libc::NETLINK_AUDIT)
}

fn sctp() -> Outcome {
    socket(libc::AF_INET.into(), libc::SOCK_STREAM, 132)
}

fn udplite() -> Outcome {
    socket(libc::AF_INET.into(), libc::SOCK_DGRAM, 136)
}

fn unknown() -> Outcome {
    socket(200, libc::SOCK_RAW, 0)
}

fn pair() -> Outcome {
    let mut ends = [0i32; 2];
    // SAFETY: the array has room for two descriptors.
    Outcome::call(i64::from(unsafe {
        libc::socketpair(libc::AF_TIPC, libc::SOCK_STREAM, 0, ends.as_mut_ptr())
    }))
}

fn raw() -> Outcome {
    socket(libc::AF_INET.into(), libc::SOCK_RAW, libc::IPPROTO_ICMP)
}

fn raw6() -> Outcome {
    socket(libc::AF_INET6.into(), libc::SOCK_RAW, libc::IPPROTO_ICMPV6)
}
