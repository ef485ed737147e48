//! The destination table: addresses that nothing is ever sent to, whatever a rule says.
//!
//! Sources: IANA special-purpose registries for IPv4 and IPv6 (RFC 6890 and updates). IPv6 is an
//! allow list (global unicast `2000::/3` and forms that carry an IPv4 address), IPv4 a deny list.
//! Forms that carry an IPv4 address are unwrapped first, so that none is a way around the table.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is never dialled on behalf of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Forbidden {
    /// `0.0.0.0/8`, `::`: reaches the local host on many systems.
    Unspecified,
    /// `127.0.0.0/8`, `::1`.
    Loopback,
    /// `10.0.0.0/8`, `172.16.0.0/12`, `192.168.0.0/16`.
    Private,
    /// `169.254.0.0/16`, `fe80::/10`.
    LinkLocal,
    /// A cloud's metadata or host-agent address.
    Metadata,
    /// `100.64.0.0/10`, shared carrier space, also used by overlay networks.
    CarrierNat,
    /// `fc00::/7`.
    UniqueLocal,
    /// `fec0::/10`, withdrawn but still routed in places.
    SiteLocal,
    /// `224.0.0.0/4`, `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// `192.0.2.0/24`, `198.51.100.0/24`, `203.0.113.0/24`, `2001:db8::/32`, `3fff::/20`.
    Documentation,
    /// `198.18.0.0/15`, `2001:2::/48`.
    Benchmark,
    /// A withdrawn or host-local way to carry IPv4 in IPv6 (IPv4-compatible, Teredo, local NAT64).
    Transition,
    /// Reserved by IANA or not allocated for global use.
    Reserved,
}

impl Forbidden {
    /// A short phrase for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "an unspecified address",
            Self::Loopback => "a loopback address",
            Self::Private => "a private address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a cloud metadata address",
            Self::CarrierNat => "a shared carrier address",
            Self::UniqueLocal => "a unique local address",
            Self::SiteLocal => "a site-local address",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "the broadcast address",
            Self::Documentation => "a documentation address",
            Self::Benchmark => "a benchmarking address",
            Self::Transition => "a transition address",
            Self::Reserved => "a reserved address",
        }
    }
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why `address` is never dialled, or `None` when it is an ordinary public address.
#[must_use]
pub fn forbidden(address: IpAddr) -> Option<Forbidden> {
    match address {
        IpAddr::V4(v4) => forbidden_v4(v4),
        IpAddr::V6(v6) => forbidden_v6(v6),
    }
}

/// The form in which an address is dialled and logged: IPv4-mapped IPv6 becomes IPv4.
#[must_use]
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn forbidden_v4(address: Ipv4Addr) -> Option<Forbidden> {
    let octets = address.octets();
    Some(match octets {
        // Link-local in general, but these are the ones that attackers ask for.
        [169, 254, 169, 254 | 253 | 249] | [169, 254, 170, 2 | 23] => Forbidden::Metadata,
        // Alibaba, Oracle, and Azure's host agent, which has a public address.
        [100, 100, 100, 200] | [192, 0, 0, 192] | [168, 63, 129, 16] => Forbidden::Metadata,
        [0, ..] => Forbidden::Unspecified,
        [10, ..] | [192, 168, ..] | [172, 16..=31, ..] => Forbidden::Private,
        [100, 64..=127, ..] => Forbidden::CarrierNat,
        [127, ..] => Forbidden::Loopback,
        [169, 254, ..] => Forbidden::LinkLocal,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Forbidden::Documentation,
        [198, 18..=19, ..] => Forbidden::Benchmark,
        // IETF protocol assignments; the former 6to4 relay anycast.
        [192, 0, 0, _] | [192, 88, 99, _] => Forbidden::Reserved,
        [224..=239, ..] => Forbidden::Multicast,
        [255, 255, 255, 255] => Forbidden::Broadcast,
        [240..=255, ..] => Forbidden::Reserved,
        _ => return None,
    })
}

fn forbidden_v6(address: Ipv6Addr) -> Option<Forbidden> {
    let segments = address.segments();
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Forbidden::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Forbidden::Loopback),
        // IPv4-mapped (RFC 4291) and the well-known NAT64 prefix (RFC 6052).
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            forbidden_v4(embedded(high, low))
        }
        // IPv4-compatible and IPv4-translated (SIIT): withdrawn, yet some stacks still route them.
        [0, 0, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            Some(forbidden_v4(embedded(high, low)).unwrap_or(Forbidden::Transition))
        }
        // NAT64 for local use (RFC 8215): where the IPv4 address stands depends on the operator.
        [0x64, 0xff9b, 1, ..] => Some(Forbidden::Transition),
        // Teredo (RFC 4380): server in clear, client inverted.
        [0x2001, 0, server_high, server_low, _, _, high, low] => Some(
            forbidden_v4(embedded(server_high, server_low))
                .or_else(|| forbidden_v4(embedded(!high, !low)))
                .unwrap_or(Forbidden::Transition),
        ),
        [0x2001, 2, 0, ..] => Some(Forbidden::Benchmark),
        [0x2001, 0..=0x1ff, ..] => Some(Forbidden::Reserved),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(Forbidden::Documentation),
        // 6to4 (RFC 3056): the packet goes to the IPv4 address.
        [0x2002, high, low, ..] => forbidden_v4(embedded(high, low)),
        // ISATAP (RFC 5214): an interface identifier that carries an IPv4 address.
        [0x2000..=0x3fff, _, _, _, 0 | 0x200, 0x5efe, high, low] => {
            forbidden_v4(embedded(high, low))
        }
        [0x2000..=0x3fff, ..] => None,
        [0xfc00..=0xfdff, ..] => Some(if is_v6_metadata(&segments) {
            Forbidden::Metadata
        } else {
            Forbidden::UniqueLocal
        }),
        [0xfe80..=0xfebf, ..] => Some(Forbidden::LinkLocal),
        [0xfec0..=0xfeff, ..] => Some(Forbidden::SiteLocal),
        [0xff00..=0xffff, ..] => Some(Forbidden::Multicast),
        _ => Some(Forbidden::Reserved),
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))
}

/// AWS instance metadata, DNS, time and pod identity; Google's metadata server.
fn is_v6_metadata(segments: &[u16; 8]) -> bool {
    matches!(segments, [0xfd00, 0xec2, 0, 0, 0, 0, 0, _] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254])
}
