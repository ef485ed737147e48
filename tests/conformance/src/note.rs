//! Notes of what a test saw, for the table in `docs/engines.md`.
//!
//! A file per topic in the directory that `COFFERDAM_CONFORMANCE_NOTES` names; without it nothing is
//! written. A note is never what a test decides by.

use serde_json::Value;

use crate::under::{Under, variable};

/// Names the directory.
pub const NOTES: &str = "COFFERDAM_CONFORMANCE_NOTES";

/// Writes `value` down under `topic`.
///
/// # Panics
/// When the file cannot be written.
pub fn note(topic: &str, value: &Value) {
    let Some(dir) = variable(NOTES) else { return };
    let dir = std::path::Path::new(&dir).join(Under::test().name());
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(format!("{topic}.json")), value.to_string()).unwrap();
}
