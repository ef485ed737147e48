//! Refusals: why something may not leave, as stable codes.
//!
//! A guest is shown the code and the code's fixed message; the reason, which can name internal
//! addresses, is for the record only.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The step at which a refusal happens. A request passes them in this order.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reading the request.
    Parse,
    /// Checking the token.
    Auth,
    /// Matching text against the rules.
    Policy,
    /// Looking up the name and vetting the answers.
    Resolve,
    /// Connecting.
    Dial,
    /// Looking at the first bytes of a tunnel.
    Tls,
    /// Carrying bytes for an admitted connection.
    Relay,
}

impl Stage {
    /// The name used in records and output.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Auth => "auth",
            Self::Policy => "policy",
            Self::Resolve => "resolve",
            Self::Dial => "dial",
            Self::Tls => "tls",
            Self::Relay => "relay",
        }
    }
}

macro_rules! refusal_codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $status:literal, $stage:ident, $message:literal;)*) => {
        /// Every reason for which the egress door refuses. Codes are stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum RefusalCode {
            $($(#[$doc])* $variant,)*
        }

        impl RefusalCode {
            /// Every code, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable code, for example `EGRESS-020`.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// HTTP status that goes with it.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// The step that it belongs to.
            #[must_use]
            pub fn stage(self) -> Stage {
                match self { $(Self::$variant => Stage::$stage,)* }
            }

            /// One fixed sentence for the client. Tells nothing that the client did not know but
            /// the decision.
            #[must_use]
            pub fn message(self) -> &'static str {
                match self { $(Self::$variant => $message,)* }
            }
        }
    };
}

refusal_codes! {
    /// The request is not strict HTTP/1.1, or its target or Host is not canonical.
    Malformed = "EGRESS-001", 400, Parse, "The request is malformed.";
    /// The header, one of its parts or a body's framing line exceeds its limit.
    TooLarge = "EGRESS-002", 400, Parse, "The request header exceeds a size limit.";
    /// The header did not arrive in time.
    HeaderTimeout = "EGRESS-003", 408, Parse, "The request header did not arrive in time.";
    /// The framing of a request body is wrong, or the body ended early.
    BodyFraming = "EGRESS-004", 400, Parse, "The request body is malformed or incomplete.";
    /// The run's token is missing or wrong.
    Credential = "EGRESS-010", 407, Auth, "The proxy needs the token of this run.";
    /// No rule names the host and port.
    NotAdmitted = "EGRESS-020", 403, Policy, "No egress rule of this run admits this host and port.";
    /// A deny rule names it.
    Denied = "EGRESS-021", 403, Policy, "An egress rule of this run denies this host and port.";
    /// A protocol upgrade was asked for.
    Upgrade = "EGRESS-022", 403, Policy, "Protocol upgrades over plain HTTP are not admitted.";
    /// Plain HTTP to port 443.
    PlainOnTls = "EGRESS-023", 403, Policy, "Plain HTTP to port 443 is not admitted. Use CONNECT.";
    /// The host is reachable through the model gateway only.
    Gatewayed = "EGRESS-024", 403, Policy, "This host is reached through the model gateway only.";
    /// An IPv6 literal, which no rule can name.
    Ipv6Literal = "EGRESS-025", 403, Policy, "IPv6 addresses cannot be admitted. Use a host name.";
    /// Too many connections at once.
    TooManyStreams = "EGRESS-027", 503, Policy, "Too many connections at once. Try again later.";
    /// The name has no address.
    NoAddress = "EGRESS-030", 502, Resolve, "The host name has no address.";
    /// The lookup failed after its retries.
    LookupFailed = "EGRESS-031", 502, Resolve, "The host name could not be looked up. Try again later.";
    /// An answer points to an address that nothing may be sent to.
    ForbiddenAddress = "EGRESS-032", 403, Resolve, "The host leads to an address that is never admitted.";
    /// No vetted address accepted the connection.
    DialFailed = "EGRESS-040", 502, Dial, "The host did not accept the connection.";
    /// The TLS hello names another host, or none.
    SniMismatch = "EGRESS-050", 403, Tls, "The TLS server name is not the host of the tunnel.";
    /// The first bytes of a tunnel to port 443 are not a TLS hello.
    NotTls = "EGRESS-051", 403, Tls, "A tunnel to port 443 must carry TLS.";
    /// The origin's answer is not strict HTTP/1.1, or it ended early.
    BadUpstream = "EGRESS-060", 502, Relay, "The host sent an answer that cannot be relayed safely.";
}

impl RefusalCode {
    /// The code of that text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal with what is known about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {reason}")]
pub struct Refusal {
    /// Stable code, `EGRESS-0xx`.
    pub code: &'static str,
    /// HTTP status.
    pub status: u16,
    /// The step at which it happened.
    pub stage: Stage,
    /// One line for the record. Not for the guest: it may name internal addresses.
    pub reason: String,
    /// The code as a value.
    pub kind: RefusalCode,
}

impl Refusal {
    /// A refusal of that kind; status and stage follow from it.
    #[must_use]
    pub fn new(kind: RefusalCode, reason: impl Into<String>) -> Self {
        Self {
            code: kind.as_str(),
            status: kind.status(),
            stage: kind.stage(),
            reason: reason.into(),
            kind,
        }
    }
}
