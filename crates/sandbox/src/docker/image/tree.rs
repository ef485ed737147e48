//! A file tree held as a plan, and the one tar writer that turns it into a layer.
//!
//! The same tree gives the same bytes: names are sorted, times are zero, owners and modes come from
//! the plan. It must never carry a set-user-id bit, a device, or a path that leaves the tree.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use cofferdam_run::Digest;
use sha2::Digest as _;

/// Most entries that a layer may have; past it the plan is refused ([`io::ErrorKind::FileTooLarge`]).
pub const MAX_LAYER_ENTRIES: usize = 60_000;
/// Most bytes of file content that a layer may have; past it the plan is refused.
pub const MAX_LAYER_BYTES: u64 = 4 << 30;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// A directory.
    Directory {
        /// Permission bits.
        mode: u32,
        /// User and group id.
        owner: u32,
    },
    /// A regular file copied from the host when the layer is written.
    Host {
        /// Canonical path on the host.
        source: PathBuf,
        /// Size when it was planned; a file that changed since fails the write.
        len: u64,
        /// True for mode 0755, false for 0644.
        executable: bool,
    },
    /// A regular file with this content, mode 0644.
    Text(String),
    /// A symbolic link with this target, stored as it is.
    Link(PathBuf),
}

/// A planned tree. Keys are relative paths of normal components only.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
    bytes: u64,
}

impl Tree {
    /// Adds `node` at the absolute or relative `path`, with parents as root-owned directories of mode
    /// 0755. The first entry of a path wins, so that adding something twice is harmless.
    pub(crate) fn add(&mut self, path: &Path, node: Node) -> io::Result<()> {
        let key = relative(path)?;
        let mut parent = PathBuf::new();
        for part in key.parent().into_iter().flat_map(Path::components) {
            parent.push(part);
            self.nodes.entry(parent.clone()).or_insert(Node::Directory { mode: 0o755, owner: 0 });
        }
        if self.nodes.contains_key(&key) {
            return Ok(());
        }
        if let Node::Host { len, .. } = node {
            self.bytes = self.bytes.saturating_add(len);
        }
        self.nodes.insert(key, node);
        if self.nodes.len() > MAX_LAYER_ENTRIES || self.bytes > MAX_LAYER_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("more than {MAX_LAYER_ENTRIES} entries or {MAX_LAYER_BYTES} bytes"),
            ));
        }
        Ok(())
    }

    /// True when something is planned at `path`.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        relative(path).is_ok_and(|key| self.nodes.contains_key(&key))
    }

    /// Entries in tar order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Path, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_path(), node))
    }

    /// Writes the tree as an uncompressed tar and returns digest and size of what was written.
    ///
    /// # Errors
    /// When a host file cannot be read, changed its size since it was planned, or `out` fails.
    pub(crate) fn write_tar(&self, out: impl Write) -> io::Result<LayerDigest> {
        let mut builder = tar::Builder::new(Hashing::new(out));
        for (path, node) in self.entries() {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(0);
            header.set_uid(0);
            header.set_gid(0);
            header.set_size(0);
            match node {
                Node::Directory { mode, owner } => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_uid(u64::from(*owner));
                    header.set_gid(u64::from(*owner));
                    builder.append_data(&mut header, path, io::empty())?;
                }
                Node::Host { source, len, executable } => {
                    header.set_entry_type(tar::EntryType::Regular);
                    header.set_mode(if *executable { 0o755 } else { 0o644 });
                    header.set_size(*len);
                    let exact = Exact { inner: File::open(source)?, left: *len, source };
                    builder.append_data(&mut header, path, exact)?;
                }
                Node::Text(text) => {
                    header.set_entry_type(tar::EntryType::Regular);
                    header.set_mode(0o644);
                    header.set_size(text.len() as u64);
                    builder.append_data(&mut header, path, text.as_bytes())?;
                }
                Node::Link(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    builder.append_link(&mut header, path, target)?;
                }
            }
        }
        builder.into_inner()?.finish()
    }
}

/// `path` without its root; refuses `..`, so that no plan leaves the tree.
fn relative(path: &Path) -> io::Result<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => out.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("{} leaves the tree", path.display()),
                ));
            }
        }
    }
    Ok(out)
}

/// What identifies a written layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerDigest {
    /// SHA-256 of the uncompressed tar: the diff id.
    pub(crate) digest: Digest,
    /// Its size, bytes.
    pub(crate) len: u64,
}

/// Gives exactly `left` bytes or fails: a tar header must not lie about its entry.
struct Exact<'a> {
    inner: File,
    left: u64,
    source: &'a Path,
}

impl Read for Exact<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let changed =
            || io::Error::other(format!("{} changed while it was read", self.source.display()));
        if self.left == 0 {
            let mut probe = [0u8; 1];
            return if self.inner.read(&mut probe)? == 0 { Ok(0) } else { Err(changed()) };
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        match self.inner.read(&mut buf[..most])? {
            0 if most > 0 => Err(changed()),
            n => {
                self.left -= n as u64;
                Ok(n)
            }
        }
    }
}

/// Hashes and counts what passes through.
struct Hashing<W: Write> {
    inner: io::BufWriter<W>,
    hash: sha2::Sha256,
    len: u64,
}

impl<W: Write> Hashing<W> {
    fn new(inner: W) -> Self {
        Self {
            inner: io::BufWriter::with_capacity(256 << 10, inner),
            hash: sha2::Sha256::new(),
            len: 0,
        }
    }

    fn finish(mut self) -> io::Result<LayerDigest> {
        self.inner.flush()?;
        Ok(LayerDigest { digest: Digest::from_sha256(self.hash.finalize().into()), len: self.len })
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(buf)?;
        self.hash.update(&buf[..n]);
        self.len += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(order: &[&str]) -> Tree {
        let mut tree = Tree::default();
        for name in order {
            tree.add(Path::new(name), Node::Text((*name).to_owned())).unwrap();
        }
        tree
    }

    #[test]
    fn the_same_tree_gives_the_same_bytes_whatever_the_order_of_adding() {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let first = sample(&["/etc/passwd", "/usr/bin/x", "/a"]).write_tar(&mut a).unwrap();
        let second = sample(&["/a", "/usr/bin/x", "/etc/passwd"]).write_tar(&mut b).unwrap();
        assert_eq!(a, b);
        assert_eq!(first, second);
        assert_eq!(first.digest, Digest::of(&a));
        assert_eq!(first.len, a.len() as u64);
    }

    #[test]
    fn a_path_that_leaves_the_tree_is_refused() {
        let mut tree = Tree::default();
        assert!(tree.add(Path::new("/a/../../etc/passwd"), Node::Text(String::new())).is_err());
    }

    #[test]
    fn a_file_that_grew_after_planning_fails_the_write() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("f");
        std::fs::write(&source, b"longer than planned").unwrap();
        for len in [3, 300] {
            let mut tree = Tree::default();
            tree.add(Path::new("f"), Node::Host { source: source.clone(), len, executable: false })
                .unwrap();
            assert!(tree.write_tar(io::sink()).is_err());
        }
    }
}
