//! Who may call what: three roles in a row, and who a caller turned out to be.
//!
//! A role is given by what the caller presents, never by where the request comes from alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a caller may do. Each includes the ones before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks.
    Viewer,
    /// Starts and stops runs.
    Operator,
    /// Decides about what leaves the sandbox. Never given by the operator's token.
    Approver,
}

impl Role {
    /// The name used in answers and documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Approver => "approver",
        }
    }
}

/// The authorisation row of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Needs no token. Tells nothing about any run.
    Anyone,
    /// Needs a token of this role or a higher one.
    AtLeast(Role),
    /// Only over the local socket, whose peer the kernel names: what makes a browser session.
    LocalSocket,
}

impl Access {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Anyone => "anyone",
            Self::AtLeast(role) => role.as_str(),
            Self::LocalSocket => "local socket",
        }
    }
}

/// How a caller proved who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// The local socket: the kernel says that the peer is this person's.
    Socket,
    /// The operator's token from the data directory.
    Token,
    /// A browser session.
    Session,
}

/// A caller that was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) role: Role,
    pub(crate) via: Via,
}

impl Access {
    /// Whether a caller, or nobody in particular, may pass.
    pub(crate) fn admits(self, caller: Option<Principal>) -> bool {
        match self {
            Self::Anyone => true,
            Self::AtLeast(role) => caller.is_some_and(|c| c.role >= role),
            Self::LocalSocket => caller.is_some_and(|c| c.via == Via::Socket),
        }
    }
}
