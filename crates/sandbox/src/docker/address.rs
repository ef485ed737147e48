//! Where the engine listens, and the first contact with it.
//!
//! It must never read the environment (the caller's configuration does) and never connect to another
//! machine: whoever holds an engine's socket holds that machine.

use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use cofferdam_run::engine::EngineKind;

use super::call::{self, CallError};
use super::flavour::Flavour;
use crate::error::SandboxError;

/// Oldest API version that is accepted, major and minor: Docker 20.10. An older engine is refused.
pub const OLDEST_API: (usize, usize) = (1, 41);

/// Ceiling of bollard's own timer per answer, seconds. Ours, per call, are shorter.
const CLIENT_TIMEOUT_S: u64 = 3600;
/// Longest wait for the first answer, milliseconds; past it the engine counts as absent.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A parsed `DOCKER_HOST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// `unix:///path`.
    Unix(PathBuf),
    /// `tcp://LOOPBACK:PORT`.
    Loopback(String),
}

impl Address {
    /// Parses the form of `DOCKER_HOST`. The error says what was wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') {
                Ok(Self::Unix(PathBuf::from(path)))
            } else {
                Err(format!("{text:?} does not name an absolute socket path"))
            };
        }
        let Some(authority) = text.strip_prefix("tcp://") else {
            return Err(format!("{text:?} is neither unix:///PATH nor tcp://LOOPBACK:PORT"));
        };
        let authority = authority.trim_end_matches('/');
        let (host, port) = authority
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok_and(|p| p != 0))
            .ok_or_else(|| format!("{text:?} has no port"))?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) {
            Ok(Self::Loopback(format!("{host}:{port}")))
        } else {
            Err(format!("{text:?} is on another machine: only a local engine is used"))
        }
    }

    /// The places that are tried when none was configured: the system's, then the user's own.
    fn usual(flavour: &Flavour) -> Vec<PathBuf> {
        let uid = rustix::process::getuid().as_raw();
        if flavour.is_podman() {
            // The user's own first: it is the one that needs no right over the machine.
            return vec![
                PathBuf::from(format!("/run/user/{uid}/podman/podman.sock")),
                PathBuf::from("/run/podman/podman.sock"),
            ];
        }
        vec![
            PathBuf::from("/var/run/docker.sock"),
            PathBuf::from(format!("/run/user/{uid}/docker.sock")),
        ]
    }
}

/// A client that has spoken to the engine.
#[derive(Debug, Clone)]
pub(crate) struct Contact {
    /// The client, at the negotiated API version.
    pub(crate) docker: Docker,
    /// Negotiated API version.
    pub(crate) api: (usize, usize),
    /// User that owns the engine's socket; `None` when it is not a socket.
    pub(crate) owner: Option<u32>,
}

/// Connects and negotiates.
///
/// # Errors
/// [`SandboxError::Unavailable`] with what was tried and how to start an engine.
pub(crate) async fn contact(
    host: Option<&str>,
    flavour: &Flavour,
) -> Result<Contact, SandboxError> {
    let absent = |reason: &str| absent(reason, flavour);
    let address = match host {
        Some(text) => Address::parse(text).map_err(|reason| SandboxError::Unavailable {
            engine: EngineKind::Docker,
            reason,
            fix: "set the engine's host to unix:///PATH of a local socket".to_owned(),
        })?,
        None => {
            let usual = Address::usual(flavour);
            match usual.iter().find(|path| is_socket(path)) {
                Some(path) => Address::Unix(path.clone()),
                None => {
                    let tried: Vec<String> =
                        usual.iter().map(|p| p.display().to_string()).collect();
                    return Err(absent(&format!("there is no engine at {}", tried.join(" or "))));
                }
            }
        }
    };
    let client = match &address {
        Address::Unix(path) => {
            if !is_socket(path) {
                return Err(absent(&format!("there is no socket at {}", path.display())));
            }
            Docker::connect_with_unix(
                &path.to_string_lossy(),
                CLIENT_TIMEOUT_S,
                API_DEFAULT_VERSION,
            )
        }
        Address::Loopback(authority) => Docker::connect_with_http(
            &format!("tcp://{authority}"),
            CLIENT_TIMEOUT_S,
            API_DEFAULT_VERSION,
        ),
    };
    let client = client.map_err(|error| absent(&format!("{}: {error}", shown(&address))))?;
    let docker = call::bounded(CONNECT_TIMEOUT, client.negotiate_version())
        .await
        .map_err(|error| unreachable_engine(&address, &error, flavour))?;
    let version = docker.client_version();
    let api = (version.major_version, version.minor_version);
    if api < OLDEST_API {
        return Err(SandboxError::Unavailable {
            engine: EngineKind::Docker,
            reason: format!(
                "the engine at {} speaks API {}.{}, older than {}.{}",
                shown(&address),
                api.0,
                api.1,
                OLDEST_API.0,
                OLDEST_API.1
            ),
            fix: "install Docker 20.10 or newer".to_owned(),
        });
    }
    let owner = match &address {
        Address::Unix(path) => {
            use std::os::unix::fs::MetadataExt as _;
            std::fs::metadata(path).ok().map(|meta| meta.uid())
        }
        Address::Loopback(_) => None,
    };
    is_the_engine(&docker, &address, flavour).await?;
    Ok(Contact { docker, api, owner })
}

/// Podman answers Docker's questions, but differs in what it does: it is taken for what it says it is.
async fn is_the_engine(
    docker: &Docker,
    address: &Address,
    flavour: &Flavour,
) -> Result<(), SandboxError> {
    let version = call::bounded(CONNECT_TIMEOUT, docker.version())
        .await
        .map_err(|error| unreachable_engine(address, &error, flavour))?;
    let podman = version.components.iter().flatten().any(|part| part.name.contains("Podman"));
    if podman == flavour.is_podman() {
        return Ok(());
    }
    let (is, fix) = if podman {
        (
            "Podman",
            "use `--engine podman`, or set DOCKER_HOST (or docker.host) to the socket of a Docker engine",
        )
    } else {
        (
            "not Podman",
            "set podman.host to the socket of `podman system service`, or use `--engine docker`",
        )
    };
    Err(SandboxError::Unavailable {
        engine: flavour.kind,
        reason: format!("the engine at {} is {is}", shown(address)),
        fix: fix.to_owned(),
    })
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

fn shown(address: &Address) -> String {
    match address {
        Address::Unix(path) => path.display().to_string(),
        Address::Loopback(authority) => authority.clone(),
    }
}

fn absent(reason: &str, flavour: &Flavour) -> SandboxError {
    let fix = if flavour.is_podman() {
        "start it with `systemctl --user start podman.socket` (or `podman system service --time 0 unix://PATH &`; \
         install it first where it is missing: `sudo apt-get install podman`), set podman.host to its socket, or \
         use the native engine"
    } else {
        "start it with `sudo systemctl start docker` (install it first where it is missing: \
         `sudo apt-get install docker.io`), set DOCKER_HOST to another local engine, or use the native engine"
    };
    SandboxError::Unavailable {
        engine: flavour.kind,
        reason: reason.to_owned(),
        fix: fix.to_owned(),
    }
}

fn unreachable_engine(address: &Address, error: &CallError, flavour: &Flavour) -> SandboxError {
    let detail = error.to_string();
    if detail.contains("ermission denied") && !flavour.is_podman() {
        return SandboxError::Unavailable {
            engine: flavour.kind,
            reason: format!("no permission to use {}", shown(address)),
            fix: "let your account use it with `sudo usermod -aG docker $USER` and log in again, \
                  run a rootless engine, or use the native engine"
                .to_owned(),
        };
    }
    absent(&format!("no engine answers at {}: {detail}", shown(address)), flavour)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_local_engine_is_accepted() {
        for (text, good) in [
            ("unix:///var/run/docker.sock", true),
            ("tcp://127.0.0.1:2375", true),
            ("tcp://[::1]:2375", true),
            ("tcp://localhost:2375/", true),
            ("unix://docker.sock", false),
            ("tcp://192.0.2.1:2375", false),
            ("tcp://127.0.0.1.example.com:2375", false),
            ("tcp://127.0.0.1", false),
            ("tcp://127.0.0.1:0", false),
            ("ssh://somewhere", false),
            ("https://127.0.0.1:2376", false),
            ("", false),
        ] {
            assert_eq!(Address::parse(text).is_ok(), good, "{text}");
        }
    }
}
