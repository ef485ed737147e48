//! The per-run token that the guest's proxy client shows.
//!
//! It separates the run's own clients from whatever else reaches the loopback door inside the
//! sandbox. It is no credential of the host, yet it is treated as one: compared in constant time,
//! never printed.

use std::fmt;

use subtle::ConstantTimeEq as _;

use crate::secret::Secret;

/// User name that goes with the token in proxy Basic authentication.
pub const TOKEN_USER: &str = "run";

/// The token of one run.
#[derive(Clone)]
pub struct RunToken(Secret);

impl RunToken {
    /// Wraps a token that was minted elsewhere. An empty token matches nothing.
    #[must_use]
    pub fn new(token: Secret) -> Self {
        Self(token)
    }

    /// Mints a token from sixteen random bytes: 32 lower-case hex characters.
    #[must_use]
    pub fn from_entropy(bytes: [u8; 16]) -> Self {
        Self(Secret::new(hex::encode(bytes)))
    }

    /// True when `candidate` is the token. Takes the same time for each candidate of one length.
    #[must_use]
    pub fn matches(&self, candidate: &[u8]) -> bool {
        let own = self.0.expose().as_bytes();
        !own.is_empty() && bool::from(own.ct_eq(candidate))
    }

    /// The token as text, to hand to the run's own client.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl fmt::Debug for RunToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_matches() {
        let token = RunToken::from_entropy([7; 16]);
        let text = token.expose().to_owned();
        assert!(token.matches(text.as_bytes()));
        assert!(!token.matches(&text.as_bytes()[..31]));
        assert!(!token.matches(format!("{text}0").as_bytes()));
        assert!(!token.matches(text.to_uppercase().as_bytes()) || text == text.to_uppercase());
        assert!(!token.matches(b""));
    }

    #[test]
    fn an_empty_token_admits_nobody() {
        assert!(!RunToken::new(Secret::new(String::new())).matches(b""));
    }
}
