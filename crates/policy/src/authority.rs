//! The parsed destination: one value for the matcher, the dialler and the log.
//!
//! One host has one spelling here. Text that another parser could read differently (percent signs,
//! user information, Unicode, octal addresses, control bytes) is refused, never repaired; the only
//! repairs are lower-casing and the removal of one trailing dot, which DNS itself defines.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest name in octets, without the trailing dot (RFC 1035 section 2.3.4). Longer is malformed.
pub const MAX_NAME_BYTES: usize = 253;
/// Longest label in octets (RFC 1035 section 2.3.4). Longer is malformed.
pub const MAX_LABEL_BYTES: usize = 63;

/// Why a text is not an authority. Holds no part of the text: callers escape and cut it themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// Nothing before the port, or nothing at all.
    #[error("the host is empty")]
    EmptyHost,
    /// A byte that no host name has: anything but ASCII letters, digits, hyphens and dots.
    #[error("the host has a byte other than ASCII letters, digits, hyphens and dots")]
    BadByte,
    /// Two dots in a row, or a dot at the front.
    #[error("the host has an empty label")]
    EmptyLabel,
    /// A label starts or ends with a hyphen (RFC 1123 section 2.1).
    #[error("a label starts or ends with a hyphen")]
    HyphenAtEdge,
    /// A label exceeds [`MAX_LABEL_BYTES`].
    #[error("a label is longer than {MAX_LABEL_BYTES} octets")]
    LabelTooLong,
    /// The name exceeds [`MAX_NAME_BYTES`].
    #[error("the host is longer than {MAX_NAME_BYTES} octets")]
    NameTooLong,
    /// The last label is a number, but the whole is not a canonical dotted quad.
    #[error("the host ends in a number but is not a canonical IPv4 address")]
    NumericSpelling,
    /// Brackets without a plain IPv6 address in them; a zone identifier counts as such.
    #[error("the bracketed host is not a plain IPv6 address")]
    BadIpv6,
    /// There is no port where one is mandatory.
    #[error("the port is missing")]
    MissingPort,
    /// The port is not canonical decimal in 1 to 65535.
    #[error("the port is not a number from 1 to 65535 without leading zeros")]
    BadPort,
}

/// A canonical host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name.
    Name(Name),
    /// An IPv4 literal.
    V4(Ipv4Addr),
    /// An IPv6 literal.
    V6(Ipv6Addr),
}

/// A canonical host name: lower case, no trailing dot. Built only by parsing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Parses a name; a text whose last label is numeric is none.
    ///
    /// # Errors
    /// Any [`AuthorityError`] about hosts.
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(AuthorityError::EmptyHost);
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.') {
            return Err(AuthorityError::BadByte);
        }
        if text.len() > MAX_NAME_BYTES {
            return Err(AuthorityError::NameTooLong);
        }
        for label in text.split('.') {
            if label.is_empty() {
                return Err(AuthorityError::EmptyLabel);
            }
            if label.len() > MAX_LABEL_BYTES {
                return Err(AuthorityError::LabelTooLong);
            }
            if label.starts_with('-') || label.ends_with('-') {
                return Err(AuthorityError::HyphenAtEdge);
            }
        }
        if ends_in_number(text) {
            return Err(AuthorityError::NumericSpelling);
        }
        Ok(Self(text.to_ascii_lowercase()))
    }

    /// The canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True when `self` is a proper sub-name of `suffix`, at any depth, on a label boundary.
    #[must_use]
    pub fn is_below(&self, suffix: &Self) -> bool {
        self.0
            .strip_suffix(suffix.0.as_str())
            .and_then(|rest| rest.strip_suffix('.'))
            .is_some_and(|rest| !rest.is_empty())
    }
}

/// What resolvers and URL parsers take for an IPv4 address in some spelling: the last label is
/// decimal or `0x` hexadecimal (WHATWG URL, "ends in a number").
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    if last.bytes().all(|b| b.is_ascii_digit()) {
        return true;
    }
    last.strip_prefix("0x")
        .or_else(|| last.strip_prefix("0X"))
        .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

impl Host {
    /// Parses a host without a port: a name, a canonical dotted quad, or a bracketed IPv6 address.
    ///
    /// # Errors
    /// Any [`AuthorityError`] about hosts.
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        if let Some(rest) = text.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or(AuthorityError::BadIpv6)?;
            return inner.parse().map(Self::V6).map_err(|_| AuthorityError::BadIpv6);
        }
        // The standard parser takes canonical dotted quads only: four parts, no leading zeros.
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self::V4(address));
        }
        Name::parse(text).map(Self::Name)
    }

    /// The address, when the host is a literal.
    #[must_use]
    pub fn literal(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::V4(address) => Some(IpAddr::V4(*address)),
            Self::V6(address) => Some(IpAddr::V6(*address)),
        }
    }

    /// The name, unless the host is a literal.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Name(name) => Some(name),
            Self::V4(_) | Self::V6(_) => None,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::V4(address) => address.fmt(f),
            Self::V6(address) => write!(f, "[{address}]"),
        }
    }
}

/// Host and port, canonical. `Display` gives `host:port`, which parses back to the same value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Authority {
    host: Host,
    port: u16,
}

impl Authority {
    /// Parses `host:port`; the port is mandatory.
    ///
    /// # Errors
    /// [`AuthorityError`] for anything but the one canonical reading.
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        let (host, port) = split(text);
        let port = parse_port(port.ok_or(AuthorityError::MissingPort)?)?;
        Ok(Self { host: Host::parse(host)?, port })
    }

    /// Parses `host` or `host:port`, with `default_port` where none is written.
    ///
    /// # Errors
    /// [`AuthorityError`] for anything but the one canonical reading.
    pub fn parse_or(text: &str, default_port: u16) -> Result<Self, AuthorityError> {
        let (host, port) = split(text);
        let port = match port {
            Some(port) => parse_port(port)?,
            None if default_port == 0 => return Err(AuthorityError::MissingPort),
            None => default_port,
        };
        Ok(Self { host: Host::parse(host)?, port })
    }

    /// From parts that were parsed before.
    pub(crate) fn of(host: Host, port: u16) -> Self {
        Self { host, port }
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port, never zero.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Cuts at the colon of the port: the first one outside brackets. What stands on either side is
/// checked by the parsers of host and port, so a second colon fails there.
fn split(text: &str) -> (&str, Option<&str>) {
    let after_brackets = if text.starts_with('[') { text.find(']').unwrap_or(0) } else { 0 };
    match text[after_brackets..].find(':') {
        Some(at) => {
            let at = after_brackets + at;
            (&text[..at], Some(&text[at + 1..]))
        }
        None => (text, None),
    }
}

fn parse_port(text: &str) -> Result<u16, AuthorityError> {
    let canonical = !text.is_empty()
        && text.len() <= 5
        && !text.starts_with('0')
        && text.bytes().all(|b| b.is_ascii_digit());
    if !canonical {
        return Err(AuthorityError::BadPort);
    }
    text.parse().map_err(|_| AuthorityError::BadPort)
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl std::str::FromStr for Authority {
    type Err = AuthorityError;
    fn from_str(text: &str) -> Result<Self, AuthorityError> {
        Self::parse(text)
    }
}
