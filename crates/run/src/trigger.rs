//! Things that arrive from outside and may arrive twice: webhook deliveries, repeated requests.
//!
//! Parsed once into bounded values. Pure; what was seen before only the ledger knows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::Digest;

/// Bytes of a key, scope, source, delivery id, object or version. A longer one is refused.
pub const MAX_KEY_BYTES: usize = 255;

/// A text that cannot be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {what} must be 1 to {MAX_KEY_BYTES} printable ASCII characters without spaces")]
pub struct InvalidKey {
    /// Which.
    pub what: &'static str,
}

fn checked(what: &'static str, text: &str) -> Result<String, InvalidKey> {
    let fits = (1..=MAX_KEY_BYTES).contains(&text.len());
    if fits && text.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(InvalidKey { what })
    }
}

/// A key that a client gives a request, so that sending it again makes nothing new.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    scope: String,
    key: String,
    body: Digest,
}

impl IdempotencyKey {
    /// `scope` names the client and the route, `body` what was asked for.
    ///
    /// # Errors
    /// When scope or key cannot be one.
    pub fn new(scope: &str, key: &str, body: &[u8]) -> Result<Self, InvalidKey> {
        Ok(Self {
            scope: checked("scope", scope)?,
            key: checked("idempotency key", key)?,
            body: Digest::of(body),
        })
    }

    /// The scope.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// The key within the scope.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Digest of what was asked for.
    #[must_use]
    pub fn body(&self) -> &Digest {
        &self.body
    }
}

/// One delivery of a webhook whose signature was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delivery {
    /// Who sends, for example `github/acme`.
    pub source: String,
    /// The sender's id of the delivery; the same when it is sent again.
    pub delivery: String,
    /// What it is about, for example `issue/42`; `None` when that cannot be said.
    pub object: Option<ObjectVersion>,
}

/// An object at the source, as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectVersion {
    /// Which, for example `issue/42`.
    pub object: String,
    /// Which version of it, for example its `updated_at`.
    pub version: String,
}

impl Delivery {
    /// A delivery; object and version together or not at all.
    ///
    /// # Errors
    /// When a part cannot be one.
    pub fn new(
        source: &str,
        delivery: &str,
        object: Option<(&str, &str)>,
    ) -> Result<Self, InvalidKey> {
        let object = match object {
            None => None,
            Some((object, version)) => Some(ObjectVersion {
                object: checked("object", object)?,
                version: checked("object version", version)?,
            }),
        };
        Ok(Self {
            source: checked("source", source)?,
            delivery: checked("delivery id", delivery)?,
            object,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_bounded_and_printable() {
        let long = "k".repeat(256);
        for bad in ["", "a b", "a\n", "ä", &long] {
            IdempotencyKey::new("s", bad, b"").unwrap_err();
            Delivery::new("s", bad, None).unwrap_err();
        }
        let key = IdempotencyKey::new("s", &long[..255], b"x").unwrap();
        assert_eq!(*key.body(), Digest::of(b"x"));
    }
}
