//! Credentials in memory: wiped on drop, never printed.
//!
//! There is no `Display`, no serialisation and no comparison; `Debug` shows no content. Whoever
//! needs the bytes says so with [`Secret::expose`], which makes each use easy to find.

use std::fmt;

use zeroize::Zeroizing;

/// A credential as text. Wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes the text over. The caller's buffer becomes the secret's and is wiped on drop.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The credential itself. Never log it, never put it into an error.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_a_secret() {
        let secret = Secret::new("hunter2".to_owned());
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(secret.expose(), "hunter2");
    }
}
