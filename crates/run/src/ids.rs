//! Typed identifiers. Each is parsed once and then trusted; none can be built from unchecked text.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Lower-case Crockford base 32 without `i`, `l`, `o`, `u`: nothing to misread or misspell.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Why a text is not the id that it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid {kind}")]
pub struct InvalidId {
    /// What was expected, for people.
    pub kind: &'static str,
    /// The offending text, cut at 80 characters.
    pub text: String,
}

impl InvalidId {
    fn new(kind: &'static str, text: &str) -> Self {
        Self { kind, text: text.chars().take(80).collect() }
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(with = "String")]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.to_owned())) } else { Err(InvalidId::new($kind, text)) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

fn is_base32(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| ALPHABET.contains(&b))
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

text_id!(
    /// A run: eight base-32 characters (40 bits), for example `7k2m9qxc`.
    RunId,
    "run id",
    |t| is_base32(t, 8)
);

text_id!(
    /// One data directory of one person on one machine: sixteen base-32 characters. Sandboxes carry
    /// it as a label so that a sweep never touches what belongs to another instance.
    InstanceId,
    "instance id",
    |t| is_base32(t, 16)
);

text_id!(
    /// A git object id in lower-case hex: 40 characters (SHA-1) or 64 (SHA-256).
    ObjectId,
    "git object id",
    |t| is_hex(t, 40) || is_hex(t, 64)
);

text_id!(
    /// A content digest, `sha256:` and 64 lower-case hex characters.
    Digest,
    "digest",
    |t| t.strip_prefix("sha256:").is_some_and(|h| is_hex(h, 64))
);

macro_rules! prefixed_ids {
    ($($(#[$doc:meta])* $name:ident $prefix:literal $kind:literal;)*) => {$(
        text_id!(
            $(#[$doc])*
            $name,
            $kind,
            |t| t.strip_prefix(concat!($prefix, "-")).is_some_and(|rest| is_base32(rest, 8))
        );

        impl $name {
            /// What every id of this kind begins with, before the hyphen.
            pub const PREFIX: &'static str = $prefix;

            /// Mints an id from five random bytes.
            #[must_use]
            pub fn from_entropy(bytes: [u8; 5]) -> Self {
                Self(format!(concat!($prefix, "-{}"), base32(&bytes)))
            }
        }
    )*};
}

prefixed_ids! {
    /// A project: one checkout that work is done for, for example `prj-7k2m9qxc`.
    ProjectId "prj" "project id";
    /// A thread: turns of work that follow one another.
    ThreadId "thr" "thread id";
    /// A task: what somebody wants done. Its attempts are runs.
    TaskId "tsk" "task id";
    /// A named agent profile.
    AgentId "agt" "agent id";
    /// A named policy.
    PolicyId "pol" "policy id";
    /// A question that waits for a person's decision.
    ApprovalId "apr" "approval id";
    /// A schedule.
    ScheduleId "sch" "schedule id";
}

fn base32(bytes: &[u8]) -> String {
    let mut out = String::new();
    let (mut acc, mut bits) = (0u32, 0u32);
    for &byte in bytes {
        acc = (acc << 8) | u32::from(byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            out.push(char::from(ALPHABET[((acc >> bits) & 31) as usize]));
        }
    }
    out
}

impl RunId {
    /// The id of a task's next attempt: follows from the task and the number, so that a repeated
    /// write makes the same one. `salt` counts up while the id is taken.
    #[must_use]
    pub fn of_attempt(task: &TaskId, attempt: u32, salt: u32) -> Self {
        use sha2::Digest as _;
        let hash = sha2::Sha256::digest(format!("attempt\n{task}\n{attempt}\n{salt}").as_bytes());
        Self(base32(&hash[..5]))
    }

    /// Mints an id from five random bytes.
    #[must_use]
    pub fn from_entropy(bytes: [u8; 5]) -> Self {
        Self(base32(&bytes))
    }
}

impl TaskId {
    /// The id of the task of a slot: follows from schedule and instant, so that a repeated write makes
    /// the same one. `salt` counts up while the id is taken.
    #[must_use]
    pub fn of_slot(schedule: &ScheduleId, slot: TimestampMs, salt: u32) -> Self {
        use sha2::Digest as _;
        let text = format!("slot\n{schedule}\n{}\n{salt}", slot.0);
        let hash = sha2::Sha256::digest(text.as_bytes());
        Self(format!("tsk-{}", base32(&hash[..5])))
    }
}

impl InstanceId {
    /// Mints an id from ten random bytes.
    #[must_use]
    pub fn from_entropy(bytes: [u8; 10]) -> Self {
        Self(base32(&bytes))
    }
}

impl Digest {
    /// The SHA-256 digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(format!("sha256:{}", hex::encode(sha2::Sha256::digest(bytes))))
    }

    /// Wraps a finished SHA-256 hash.
    #[must_use]
    pub fn from_sha256(hash: [u8; 32]) -> Self {
        Self(format!("sha256:{}", hex::encode(hash)))
    }
}

/// Milliseconds since the Unix epoch, UTC.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct TimestampMs(pub u64);

impl TimestampMs {
    /// `self` plus `ms` milliseconds, saturating.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    pub fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
