//! Local services: names that the host's own configuration ties to one address.
//!
//! This is the only way in which a run reaches a loopback or private address. A service replaces
//! the lookup, not the rules: a rule of the run must still admit the name. Names are exact. A run's
//! specification or a workspace file must never be the source of this map.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::authority::{Authority, AuthorityError, Host, Name};
use crate::destination::{Forbidden, canonical, forbidden};
use crate::permit::{DialPermit, NamePermit};
use crate::rules::EgressPolicy;

/// Most services. A larger map is refused at load.
pub const MAX_SERVICES: usize = 100;

/// Why a service was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The name is not a host name.
    #[error("service {name:?}: not a host name")]
    Name {
        /// The name as written.
        name: String,
        /// What is wrong with it.
        source: AuthorityError,
    },
    /// Two spellings of one name.
    #[error("service {name:?} is given twice")]
    Twice {
        /// The canonical name.
        name: String,
    },
    /// The address is not an IP address, with or without a port.
    #[error("service {name:?}: {address:?} is not an IP address or ADDRESS:PORT")]
    Address {
        /// The name as written.
        name: String,
        /// The address as written.
        address: String,
    },
    /// The address is of a kind that not even the host's configuration may open.
    #[error("service {name:?}: {address} is {kind}, which no configuration opens")]
    Forbidden {
        /// The name as written.
        name: String,
        /// The address.
        address: IpAddr,
        /// Its kind.
        kind: Forbidden,
    },
    /// Too many of them.
    #[error("{count} services; the most is {MAX_SERVICES}")]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

/// Where a service is. Without a port, the port that the guest asks for is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    address: IpAddr,
    port: Option<u16>,
}

/// The services of this host. The default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Services {
    places: BTreeMap<Name, Place>,
}

/// How an admitted name is turned into addresses.
#[derive(Debug)]
pub enum Route {
    /// The configuration says where: there is no lookup.
    Service(DialPermit),
    /// The name is to be looked up and the answers to be vetted.
    Lookup(NamePermit),
}

impl Services {
    /// Loads a map from name to `ADDRESS` or `ADDRESS:PORT` (IPv6 with a port in brackets).
    ///
    /// # Errors
    /// [`ServiceError`] naming the first wrong entry.
    pub fn load(map: BTreeMap<String, String>) -> Result<Self, ServiceError> {
        if map.len() > MAX_SERVICES {
            return Err(ServiceError::TooMany { count: map.len() });
        }
        let mut places = BTreeMap::new();
        for (text, address) in map {
            let name = Name::parse(&text)
                .map_err(|source| ServiceError::Name { name: text.clone(), source })?;
            let place = parse_place(&address)
                .ok_or_else(|| ServiceError::Address { name: text.clone(), address })?;
            if let Some(kind) = forbidden(place.address).filter(|kind| !may_serve(*kind)) {
                return Err(ServiceError::Forbidden { name: text, address: place.address, kind });
            }
            if places.insert(name.clone(), place).is_some() {
                return Err(ServiceError::Twice { name: name.as_str().to_owned() });
            }
        }
        Ok(Self { places })
    }

    /// Sends an admitted name to its service, or on to a lookup when it is no service.
    #[must_use]
    pub fn route(&self, permit: NamePermit) -> Route {
        match self.address_of(permit.authority()) {
            Some(address) => Route::Service(permit.for_service(address)),
            None => Route::Lookup(permit),
        }
    }

    /// Where the service of that name is, seen from the port that is asked for.
    #[must_use]
    pub fn address_of(&self, authority: &Authority) -> Option<SocketAddr> {
        let place = self.places.get(authority.host().name()?)?;
        Some(SocketAddr::new(place.address, place.port.unwrap_or(authority.port())))
    }

    /// The services that `policy` admits on some port, as `NAME = ADDRESS`, ascending by name.
    #[must_use]
    pub fn admitted_by(&self, policy: &EgressPolicy) -> Vec<String> {
        let admits = |name: &Name| {
            policy.allow().any(|rule| {
                let authority = Authority::of(Host::Name(name.clone()), rule.port());
                policy.decide(&authority).is_ok()
            })
        };
        self.places
            .iter()
            .filter(|(name, _)| admits(name))
            .map(|(name, place)| match place.port {
                Some(port) => format!("{name} = {}", SocketAddr::new(place.address, port)),
                None => format!("{name} = {}", place.address),
            })
            .collect()
    }

    /// The names of all services, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(Name::as_str)
    }
}

fn parse_place(text: &str) -> Option<Place> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(Place { address: canonical(address), port: None });
    }
    let socket: SocketAddr = text.parse().ok()?;
    // A scope or flow label would be lost on the way to the dialler.
    let plain = match socket {
        SocketAddr::V4(_) => true,
        SocketAddr::V6(v6) => v6.scope_id() == 0,
    };
    (plain && socket.port() != 0)
        .then(|| Place { address: canonical(socket.ip()), port: Some(socket.port()) })
}

/// Which forbidden kinds the host's configuration may open. Metadata is never one of them.
fn may_serve(kind: Forbidden) -> bool {
    match kind {
        Forbidden::Loopback
        | Forbidden::Private
        | Forbidden::CarrierNat
        | Forbidden::UniqueLocal => true,
        Forbidden::Unspecified
        | Forbidden::LinkLocal
        | Forbidden::Metadata
        | Forbidden::SiteLocal
        | Forbidden::Multicast
        | Forbidden::Broadcast
        | Forbidden::Documentation
        | Forbidden::Benchmark
        | Forbidden::Transition
        | Forbidden::Reserved => false,
    }
}
