//! Tokens, one-time codes and browser sessions.
//!
//! The operator's token lies in the data directory, mode 0600, and is made once. Everything else
//! lives in memory and ends with the process. A secret is compared by its digest, in constant time,
//! and never printed by `Debug`.

use std::collections::HashMap;
use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use cofferdam_run::TimestampMs;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::access::{Principal, Role, Via};

/// Bytes of randomness in a token, a session or a code.
const ENTROPY: usize = 32;
/// How long a printed code may be exchanged, milliseconds. Past it: print a new one.
pub(crate) const CODE_MS: u64 = 10 * 60 * 1000;
/// How long a browser session lasts without a request, milliseconds.
pub(crate) const SESSION_IDLE_MS: u64 = 12 * 60 * 60 * 1000;
/// How long it lasts at most, milliseconds.
pub(crate) const SESSION_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Sessions at once; a further one ends the one that was used longest ago.
pub(crate) const MAX_SESSIONS: usize = 64;
/// Codes at once; a further one ends the oldest.
pub(crate) const MAX_CODES: usize = 16;
/// Wrong codes a minute; past it exchange is refused until the minute is over (API-008).
pub(crate) const MAX_WRONG_CODES: u32 = 20;

/// A text that lets its bearer in. Shown only on purpose.
pub(crate) struct Bearer(String);

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(…)")
    }
}

impl Bearer {
    fn mint() -> std::io::Result<Self> {
        let mut bytes = [0u8; ENTROPY];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self(hex::encode(bytes)))
    }

    /// The text.
    #[must_use]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

type Hash = [u8; 32];

fn hash(text: &str) -> Hash {
    Sha256::digest(text.as_bytes()).into()
}

struct Session {
    made: TimestampMs,
    used: TimestampMs,
}

#[derive(Default)]
struct Held {
    codes: Vec<(Hash, TimestampMs)>,
    sessions: HashMap<Hash, Session>,
    wrong: (u64, u32),
}

/// What became of a code.
#[derive(Debug)]
pub(crate) enum Exchange {
    Session(Bearer),
    Wrong,
    TooMany,
}

/// Every secret that this process accepts.
pub(crate) struct Secrets {
    token: Hash,
    held: Mutex<Held>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

/// Reads the operator's token, or makes it: created with mode 0600, never widened.
fn token(path: &Path) -> std::io::Result<Bearer> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let text = text.trim();
            if text.len() != 2 * ENTROPY || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(std::io::Error::other("it does not hold a token: remove it"));
            }
            use std::os::unix::fs::PermissionsExt as _;
            if std::fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
                return Err(std::io::Error::other(
                    "others may read it: remove it, a new one is made",
                ));
            }
            Ok(Bearer(text.to_owned()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let token = Bearer::mint()?;
            let mut file =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            writeln!(file, "{}", token.expose())?;
            file.sync_all()?;
            Ok(token)
        }
        Err(error) => Err(error),
    }
}

impl Secrets {
    /// Opens the token of the data directory; makes it when it is not there.
    pub(crate) fn open(token_file: &Path) -> std::io::Result<Self> {
        let token = token(token_file)?;
        Ok(Self { token: hash(token.expose()), held: Mutex::default() })
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        // The map is whole after each statement: a panic in between leaves nothing half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who the bearer of `text` is.
    pub(crate) fn who(&self, text: &str, now: TimestampMs) -> Option<Principal> {
        let given = hash(text);
        if bool::from(given.ct_eq(&self.token)) {
            return Some(Principal { role: Role::Operator, via: Via::Token });
        }
        let mut held = self.held();
        // Looked up by digest: what the time of a lookup could tell is about the digest alone.
        let session = held.sessions.get_mut(&given)?;
        let fresh =
            now.since_ms(session.used) < SESSION_IDLE_MS && now.since_ms(session.made) < SESSION_MS;
        if !fresh {
            held.sessions.remove(&given);
            return None;
        }
        session.used = now;
        Some(Principal { role: Role::Operator, via: Via::Session })
    }

    /// A code for one exchange.
    pub(crate) fn new_code(&self, now: TimestampMs) -> std::io::Result<Bearer> {
        let code = Bearer::mint()?;
        let mut held = self.held();
        held.codes.retain(|(_, made)| now.since_ms(*made) < CODE_MS);
        if held.codes.len() >= MAX_CODES {
            held.codes.remove(0);
        }
        held.codes.push((hash(code.expose()), now));
        Ok(code)
    }

    /// Takes a code, at most once, and gives a session.
    pub(crate) fn exchange(&self, code: &str, now: TimestampMs) -> std::io::Result<Exchange> {
        let given = hash(code);
        let session = Bearer::mint()?;
        let mut held = self.held();
        let minute = now.0 / 60_000;
        if held.wrong.0 != minute {
            held.wrong = (minute, 0);
        }
        if held.wrong.1 >= MAX_WRONG_CODES {
            return Ok(Exchange::TooMany);
        }
        let found = held.codes.iter().position(|(code, made)| {
            bool::from(code.ct_eq(&given)) && now.since_ms(*made) < CODE_MS
        });
        let Some(place) = found else {
            held.wrong.1 += 1;
            return Ok(Exchange::Wrong);
        };
        held.codes.remove(place);
        if held.sessions.len() >= MAX_SESSIONS {
            let oldest = held.sessions.iter().min_by_key(|(_, s)| s.used).map(|(hash, _)| *hash);
            if let Some(oldest) = oldest {
                held.sessions.remove(&oldest);
            }
        }
        held.sessions.insert(hash(session.expose()), Session { made: now, used: now });
        Ok(Exchange::Session(session))
    }

    /// Ends a session.
    pub(crate) fn end(&self, text: &str) {
        self.held().sessions.remove(&hash(text));
    }
}

#[cfg(test)]
#[path = "secrets_tests.rs"]
mod tests;
