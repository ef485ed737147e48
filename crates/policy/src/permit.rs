//! Permits: proof that a destination was admitted.
//!
//! Constructors are private to this room. A [`NamePermit`] is what a lookup needs, a
//! [`DialTarget`] what a dialler needs. Neither can be widened, and neither is kept: each
//! connection gets its own.

use std::net::{IpAddr, SocketAddr};

use crate::authority::Authority;
use crate::destination::{canonical, forbidden};
use crate::refusal::{Refusal, RefusalCode};
use crate::rules::Rule;

/// Most addresses of one answer that are kept for dialling, in the resolver's order. All answers
/// are vetted; those past this number are not dialled.
pub const MAX_DIAL_ADDRESSES: usize = 16;

/// A rule admits the name and port. The name may now be looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePermit {
    authority: Authority,
    rule: Rule,
}

impl NamePermit {
    pub(crate) fn new(authority: Authority, rule: Rule) -> Self {
        Self { authority, rule }
    }

    /// What was asked for.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The rule that admits it.
    #[must_use]
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Vets the answers of the one lookup. One forbidden address refuses the whole set, since the
    /// set shows that whoever answers for the name is not to be believed. A literal stands for
    /// itself: `answers` is not looked at.
    ///
    /// # Errors
    /// [`RefusalCode::NoAddress`] for an empty set, [`RefusalCode::ForbiddenAddress`] for a
    /// forbidden member.
    pub fn vet(self, answers: &[IpAddr]) -> Result<DialPermit, Refusal> {
        let literal = self.authority.host().literal();
        let answers = literal.as_ref().map_or(answers, std::slice::from_ref);
        if answers.is_empty() {
            return Err(Refusal::new(RefusalCode::NoAddress, "the name has no address"));
        }
        for address in answers {
            if let Some(kind) = forbidden(*address) {
                return Err(Refusal::new(
                    RefusalCode::ForbiddenAddress,
                    format!("{address} is {kind}"),
                ));
            }
        }
        Ok(DialPermit::new(self, answers.iter().copied()))
    }

    /// The host's own configuration says where this name leads; the table was asked when that was
    /// loaded.
    pub(crate) fn for_service(self, address: SocketAddr) -> DialPermit {
        DialPermit { authority: self.authority, rule: self.rule, addresses: vec![address] }
    }
}

/// Every address was vetted. Holds at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialPermit {
    authority: Authority,
    rule: Rule,
    addresses: Vec<SocketAddr>,
}

impl DialPermit {
    fn new(name: NamePermit, answers: impl Iterator<Item = IpAddr>) -> Self {
        let port = name.authority.port();
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for answer in answers {
            let address = SocketAddr::new(canonical(answer), port);
            if addresses.len() < MAX_DIAL_ADDRESSES && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Self { authority: name.authority, rule: name.rule, addresses }
    }

    /// What was asked for.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The rule that admits it.
    #[must_use]
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The vetted addresses, in the resolver's order, for records.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The vetted addresses as what a dialler takes.
    pub fn targets(&self) -> impl Iterator<Item = DialTarget> + '_ {
        self.addresses.iter().map(|address| DialTarget { address: *address })
    }
}

/// One vetted address: the only thing that a dialler accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialTarget {
    address: SocketAddr,
}

impl DialTarget {
    /// Where to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
