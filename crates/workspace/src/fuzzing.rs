//! A door into the reader of bundle heads for the fuzz targets.
//!
//! Hidden from the documentation and no part of the crate's promises. It must never hold a parser
//! or a limit of its own: what is tried here is what runs.

use cofferdam_run::ObjectId;

use crate::bundle;
pub use crate::bundle::{MAX_BUNDLE_HEADER_BYTES, MAX_BUNDLE_REFS};

/// What a bundle says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenHeader {
    /// `sha1` or `sha256`.
    pub object_format: &'static str,
    /// Commits that it builds on.
    pub prerequisites: Vec<ObjectId>,
    /// Names and objects.
    pub refs: Vec<(String, ObjectId)>,
    /// Objects, as the pack claims.
    pub objects: u32,
}

/// Reads the head of a bundle.
///
/// # Errors
/// Why it is not acceptable, as it is shown to people.
pub fn bundle_header(bytes: &[u8]) -> Result<SeenHeader, String> {
    let header = bundle::parse(bytes).map_err(|error| error.to_string())?;
    Ok(SeenHeader {
        object_format: header.object_format,
        prerequisites: header.prerequisites,
        refs: header.refs,
        objects: header.objects,
    })
}
