//! Searching for secrets in everything that a run could have touched.
//!
//! Two kinds of needle: a marker planted on the host for this run alone, and every credential that
//! the broker holds for it. Never tells the value of what it found, only where.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use base64::Engine as _;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Bytes of the run's work directory that are searched; what lies beyond is named as not searched.
pub const MAX_SEARCH_BYTES: u64 = 4 << 30;

/// What is searched for.
#[derive(Clone, Default)]
pub struct Needles {
    patterns: Vec<(String, Vec<u8>)>,
}

impl std::fmt::Debug for Needles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.patterns.iter().map(|(name, _)| name)).finish()
    }
}

impl Needles {
    /// Adds a secret under a name, plain and in Base64. Values of under eight bytes are not added:
    /// they would be found everywhere.
    pub fn add(&mut self, name: &str, value: &[u8]) {
        if value.len() < 8 {
            return;
        }
        self.patterns.push((name.to_owned(), value.to_vec()));
        let encoded = base64::engine::general_purpose::STANDARD_NO_PAD.encode(value);
        self.patterns.push((format!("{name} (Base64)"), encoded.into_bytes()));
    }

    fn longest(&self) -> usize {
        self.patterns.iter().map(|(_, p)| p.len()).max().unwrap_or(0)
    }

    fn find(&self, haystack: &[u8]) -> Option<&str> {
        self.patterns
            .iter()
            .find(|(_, pattern)| memchr::memmem::find(haystack, pattern).is_some())
            .map(|(name, _)| name.as_str())
    }

    /// Starts a search over a stream of chunks.
    #[must_use]
    pub fn scan(&self) -> Scan<'_> {
        Scan { needles: self, tail: Vec::new(), found: None }
    }

    /// The text without any of the secrets, for what is kept and shown.
    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut clean = Cow::Borrowed(text);
        for (name, pattern) in &self.patterns {
            let Ok(secret) = std::str::from_utf8(pattern) else { continue };
            if clean.contains(secret) {
                clean = Cow::Owned(clean.replace(secret, &format!("[secret: {name}]")));
            }
        }
        clean
    }

    /// Searches one piece.
    #[must_use]
    pub fn find_in(&self, bytes: &[u8]) -> Option<String> {
        self.find(bytes).map(str::to_owned)
    }

    /// Searches a reader to its end.
    ///
    /// # Errors
    /// What reading says.
    pub fn find_in_reader(&self, mut reader: impl Read) -> std::io::Result<Option<String>> {
        let mut scan = self.scan();
        let mut buffer = vec![0; 256 << 10];
        loop {
            let n = reader.read(&mut buffer)?;
            if n == 0 {
                return Ok(scan.found);
            }
            scan.feed(&buffer[..n]);
            if scan.found.is_some() {
                return Ok(scan.found);
            }
        }
    }
}

/// A search over chunks: a secret that lies across a border is found.
#[derive(Debug)]
pub struct Scan<'a> {
    needles: &'a Needles,
    tail: Vec<u8>,
    found: Option<String>,
}

impl Scan<'_> {
    /// The next chunk.
    pub fn feed(&mut self, chunk: &[u8]) {
        if self.found.is_some() || self.needles.patterns.is_empty() {
            return;
        }
        let mut window = std::mem::take(&mut self.tail);
        window.extend_from_slice(chunk);
        self.found = self.needles.find(&window).map(str::to_owned);
        let keep = self.needles.longest().saturating_sub(1).min(window.len());
        self.tail = window.split_off(window.len() - keep);
    }

    /// Name of what was found.
    #[must_use]
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }
}

/// Searches what is stored of a file and passes over its holes. A secret across a hole is none.
fn find_in_file(needles: &Needles, mut file: &File, size: u64) -> std::io::Result<Option<String>> {
    let mut at = 0;
    while at < size {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // Nothing but a hole follows.
            Err(Errno::NXIO) => return Ok(None),
            // A file system that knows no holes.
            Err(Errno::INVAL) => return needles.find_in_reader(file.take(size)),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(begin))?.min(size);
        seek(file, SeekFrom::Start(begin))?;
        let found = needles.find_in_reader(file.by_ref().take(end.saturating_sub(begin)))?;
        if found.is_some() {
            return Ok(found);
        }
        at = end.max(begin + 1);
    }
    Ok(None)
}

/// Searches the files below `root` without following any link. Gives places as text and whether
/// everything was searched.
#[must_use]
pub fn search_tree(needles: &Needles, root: &Path, label: &str) -> (Vec<String>, bool) {
    let mut found = Vec::new();
    let (mut left, mut whole) = (MAX_SEARCH_BYTES, true);
    for entry in walkdir::WalkDir::new(root).follow_links(false).same_file_system(true) {
        let Ok(entry) = entry else {
            whole = false;
            continue;
        };
        let name = entry.path().strip_prefix(root).unwrap_or(entry.path()).to_string_lossy();
        if let Some(what) = needles.find_in(name.as_bytes()) {
            found.push(format!("{label}: name of a file ({what})"));
        }
        if !entry.file_type().is_file() {
            continue;
        }
        // What is on the disk counts: a file of a terabyte may hold nothing but a hole.
        let (size, stored) = entry
            .metadata()
            .map_or((0, 0), |m| (m.len(), m.blocks().saturating_mul(512).min(m.len())));
        if stored > left {
            whole = false;
            continue;
        }
        left -= stored;
        match std::fs::File::open(entry.path()).and_then(|f| find_in_file(needles, &f, size)) {
            Ok(Some(what)) => {
                let shown: String = name.chars().flat_map(char::escape_default).take(200).collect();
                found.push(format!("{label}: {shown} ({what})"));
            }
            Ok(None) => {}
            Err(_) => whole = false,
        }
        if found.len() >= 20 {
            break;
        }
    }
    (found, whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needles() -> Needles {
        let mut needles = Needles::default();
        needles.add("model key", b"sk-very-secret-value");
        needles
    }

    #[test]
    fn a_secret_across_any_chunk_border_is_found() {
        let needles = needles();
        let text = b"before sk-very-secret-value after";
        for at in 0..text.len() {
            let mut scan = needles.scan();
            scan.feed(&text[..at]);
            scan.feed(&text[at..]);
            assert_eq!(scan.found(), Some("model key"), "split at {at}");
        }
        let mut scan = needles.scan();
        for byte in text {
            scan.feed(&[*byte]);
        }
        assert_eq!(scan.found(), Some("model key"));
    }

    #[test]
    fn the_base64_form_is_found_and_innocent_text_is_not() {
        let encoded = base64::engine::general_purpose::STANDARD.encode(b"sk-very-secret-value");
        assert_eq!(needles().find_in(encoded.as_bytes()).as_deref(), Some("model key (Base64)"));
        assert_eq!(needles().find_in(b"sk-very-secret-valu"), None);
    }

    #[test]
    fn a_tree_is_searched_by_content_and_by_name_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("real"), "sk-very-secret-value").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        assert_eq!(search_tree(&needles(), dir.path(), "work"), (vec![], true));
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/file"), "x sk-very-secret-value x").unwrap();
        std::fs::write(dir.path().join("sk-very-secret-value"), "").unwrap();
        let (found, whole) = search_tree(&needles(), dir.path(), "work");
        assert_eq!((found.len(), whole), (2, true), "{found:?}");
        assert!(
            found.iter().all(|f| !f.contains("very")),
            "the place is told, the value is not: {found:?}"
        );
    }

    #[test]
    fn a_secret_behind_a_terabyte_of_hole_is_found_and_the_hole_costs_nothing() {
        use std::io::{Seek as _, Write as _};
        let dir = tempfile::tempdir().unwrap();
        let mut file = File::create(dir.path().join("sparse")).unwrap();
        file.seek(std::io::SeekFrom::Start(1 << 40)).unwrap();
        file.write_all(b"x sk-very-secret-value x").unwrap();
        file.set_len(2 << 40).unwrap();
        let (found, whole) = search_tree(&needles(), dir.path(), "work");
        assert_eq!((found.len(), whole), (1, true), "{found:?}");
    }

    #[test]
    fn what_is_kept_of_a_text_holds_no_secret() {
        let text = "key=sk-very-secret-value.";
        assert_eq!(needles().redact(text), "key=[secret: model key].");
        assert_eq!(needles().redact("nothing"), "nothing");
    }

    #[test]
    fn debug_names_secrets_and_never_shows_them() {
        assert!(!format!("{:?}", needles()).contains("very"));
    }
}
