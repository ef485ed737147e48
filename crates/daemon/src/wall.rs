//! The wall test, seen from the host: a target that nothing admits, bait in the host's own network
//! namespace, and the judgement of what came of it.
//!
//! A run goes on only when the door itself saw each attempt and the rules refused it, and the guest
//! found no way around the door. What the guest says can only make it worse.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use cofferdam_broker::egress::{EgressDoor, WallSeen};
use cofferdam_policy::authority::Name;
use cofferdam_policy::{Authority, EgressPolicy};
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_wire::{WallTest, layout};

use crate::arm::entropy;
use crate::config::ConfigError;
use crate::error::HostError;
use crate::text;

/// Open ways that a guest may name. Further ones are dropped: one is enough.
const MAX_OPEN: usize = 32;
/// Characters of one of them. The rest is cut.
const MAX_OPEN_CHARS: usize = 200;
/// Names that are tried as targets before arming gives up.
const TARGETS: usize = 4;

/// Picks a target that no rule admits. Nobody can have asked for it before, and nobody has the name:
/// `.invalid` is reserved (RFC 6761).
pub(crate) fn target(policy: &EgressPolicy) -> Result<Name, HostError> {
    for _ in 0..TARGETS {
        let host = format!("wall-{}.invalid", hex::encode(entropy::<16>()?));
        let refused = |port: u16| {
            Authority::parse_or(&host, port).is_ok_and(|target| policy.decide(&target).is_err())
        };
        if let (true, true, Ok(name)) = (refused(443), refused(80), Name::parse(&host)) {
            return Ok(name);
        }
    }
    Err(ConfigError::Value {
        key: "egress.allow".to_owned(),
        message: "admits every target that the wall test could try".to_owned(),
    }
    .into())
}

/// A test under way. The bait is gone when it is dropped.
pub(crate) struct Wall {
    target: Name,
    door: Arc<EgressDoor>,
    token: String,
    /// Nobody accepts: that somebody can connect is enough.
    port: Option<TcpListener>,
    socket: Option<(String, UnixListener)>,
}

impl Wall {
    /// Makes the door watch and puts out the bait. Bait that cannot be put out is left out.
    pub(crate) fn begin(target: &Name, door: &Arc<EgressDoor>, token: &str) -> Self {
        door.begin_wall_test(target.clone());
        let name = format!("cofferdam-{target}");
        let socket = UnixAddr::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .ok()
            .map(|listener| (name, listener));
        Self {
            target: target.clone(),
            door: Arc::clone(door),
            token: format!("{}:{token}", layout::PROXY_USER),
            port: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok(),
            socket,
        }
    }

    /// What the guest is told to try.
    pub(crate) fn task(&self) -> WallTest {
        let port = self.port.as_ref().and_then(|listener| listener.local_addr().ok());
        WallTest {
            target: self.target.to_string(),
            proxy_authorization: format!("Basic {}", BASE64_STANDARD.encode(&self.token)),
            host_port: port.map(|address| address.port()),
            host_socket: self.socket.as_ref().map(|(name, _)| name.clone()),
        }
    }

    /// Ends the test: what goes on record, and why the run must not go on.
    pub(crate) fn end(
        self,
        tunnel: Option<u16>,
        plain: Option<u16>,
        open: &[String],
    ) -> (Fact, Option<StopCause>) {
        let seen = self.door.end_wall_test();
        let open: Vec<String> =
            open.iter().take(MAX_OPEN).map(|way| text::line(way, MAX_OPEN_CHARS)).collect();
        let fact = Fact::EgressTest {
            target: self.target.to_string(),
            refused: seen.holds(),
            // Where the two differ, the one that should worry.
            status_claim: [tunnel, plain]
                .into_iter()
                .find(|status| *status != Some(403))
                .unwrap_or(tunnel),
            open_claim: open.clone(),
        };
        let detail = fault(seen, tunnel, plain, &open);
        (fact, detail.map(|detail| StopCause::EgressOpen { detail }))
    }
}

/// What does not hold, when something does not.
fn fault(
    seen: WallSeen,
    tunnel: Option<u16>,
    plain: Option<u16>,
    open: &[String],
) -> Option<String> {
    if seen.let_through > 0 {
        return Some("the door admits a target that no rule admits".to_owned());
    }
    if !open.is_empty() {
        return Some(format!("there is a way around the door: {}", open.join(", ")));
    }
    for (what, refused, claim) in [
        ("CONNECT", seen.tunnels_refused > 0, tunnel),
        ("plain HTTP", seen.plain_refused > 0, plain),
    ] {
        let said = claim.map_or("nothing".to_owned(), |status| status.to_string());
        if !refused {
            return Some(format!(
                "the door saw no {what} to a target that no rule admits; the guest was told {said}"
            ));
        }
        // The door refused, and something else answered.
        if claim != Some(403) {
            return Some(format!("the door refused {what}, yet the guest was told {said}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(tunnels: u32, plain: u32, let_through: u32) -> WallSeen {
        WallSeen { tunnels_refused: tunnels, plain_refused: plain, let_through, other: 0 }
    }

    #[test]
    fn only_what_the_door_saw_refused_counts() {
        let fine = (Some(403), Some(403));
        assert_eq!(fault(seen(1, 1, 0), fine.0, fine.1, &[]), None);
        for (case, seen, tunnel, plain, open) in [
            ("let through", seen(1, 0, 1), fine.0, fine.1, vec![]),
            ("no tunnel seen", seen(0, 1, 0), fine.0, fine.1, vec![]),
            ("no plain request seen", seen(1, 0, 0), fine.0, fine.1, vec![]),
            ("another answer", seen(1, 1, 0), Some(200), fine.1, vec![]),
            ("no answer", seen(1, 1, 0), fine.0, None, vec![]),
            ("a way around", seen(1, 1, 0), fine.0, fine.1, vec!["dns".to_owned()]),
        ] {
            assert!(fault(seen, tunnel, plain, &open).is_some(), "{case}");
        }
    }

    #[test]
    fn the_target_is_new_each_time_and_nothing_admits_it() {
        let policy = EgressPolicy::load(&["*.a.invalid:443".to_owned()], &[]).unwrap();
        let (one, two) = (target(&policy).unwrap(), target(&policy).unwrap());
        assert_ne!(one, two);
        assert!(one.as_str().ends_with(".invalid"));
    }
}
