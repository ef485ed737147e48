//! The base layer made of the host's own files: shell, coreutils, git, python, certificates, and the
//! libraries that they need.
//!
//! It is a list of programs, never a copy of the host: no configuration but the synthetic `/etc`
//! below, nothing from a home directory, no set-user-id bit. It must never run a program to find out
//! what that program needs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cofferdam_run::Digest;
use cofferdam_wire::layout;

use super::tree::{Node, Tree};

/// Where programs are looked for, in this order.
const PROGRAM_DIRS: [&str; 3] = ["/usr/bin", "/bin", "/usr/local/bin"];

/// Without these the base is of no use; a missing one is an error.
const REQUIRED: [&str; 12] =
    ["sh", "bash", "cat", "cp", "env", "git", "grep", "ls", "mkdir", "mv", "rm", "sed"];

/// Taken when the host has them.
const OPTIONAL: &[&str] = &[
    "[",
    "awk",
    "b2sum",
    "base32",
    "base64",
    "basename",
    "bunzip2",
    "bzip2",
    "chgrp",
    "chmod",
    "chown",
    "cksum",
    "clear",
    "cmp",
    "column",
    "comm",
    "csplit",
    "curl",
    "cut",
    "dash",
    "date",
    "dd",
    "df",
    "diff",
    "diff3",
    "dirname",
    "du",
    "echo",
    "egrep",
    "expand",
    "expr",
    "factor",
    "false",
    "fgrep",
    "file",
    "find",
    "flock",
    "fmt",
    "fold",
    "free",
    "getconf",
    "getopt",
    "gunzip",
    "gzip",
    "head",
    "hostname",
    "iconv",
    "id",
    "install",
    "join",
    "kill",
    "less",
    "link",
    "ln",
    "locale",
    "logname",
    "m4",
    "make",
    "mawk",
    "gawk",
    "md5sum",
    "mkfifo",
    "mktemp",
    "more",
    "nice",
    "nl",
    "nohup",
    "nproc",
    "numfmt",
    "od",
    "openssl",
    "paste",
    "patch",
    "pathchk",
    "pgrep",
    "pkill",
    "pr",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "python3",
    "readlink",
    "realpath",
    "rev",
    "rg",
    "rmdir",
    "seq",
    "setsid",
    "sha1sum",
    "sha256sum",
    "sha512sum",
    "shred",
    "shuf",
    "sleep",
    "sort",
    "split",
    "stat",
    "stdbuf",
    "sum",
    "sync",
    "tac",
    "tail",
    "tar",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "tsort",
    "tty",
    "uname",
    "unexpand",
    "uniq",
    "unlink",
    "unxz",
    "unzip",
    "uptime",
    "vdir",
    "wc",
    "which",
    "whoami",
    "xargs",
    "xz",
    "xzcat",
    "yes",
    "zcat",
    "zip",
];

/// Directories of the Python library that no program needs at run time.
const PYTHON_LEFT_OUT: [&str; 8] =
    ["__pycache__", "test", "tests", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3"];

/// Libraries that glibc opens by name at run time, so that no ELF header names them.
const OPENED_AT_RUN_TIME: [&str; 3] = ["libgcc_s.so.1", "libnss_files.so.2", "libnss_dns.so.2"];

/// What is missing on this host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserlandError {
    /// A program that the base cannot do without.
    #[error("{program} is not in {}", PROGRAM_DIRS.join(", "))]
    NoProgram {
        /// Its name.
        program: String,
    },
    /// A library that a program needs.
    #[error("{program} needs {library}, which is not installed")]
    NoLibrary {
        /// Path of the program.
        program: PathBuf,
        /// Name of the library.
        library: String,
    },
    /// A host file could not be read.
    #[error("reading {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn read_error(path: &Path) -> impl FnOnce(io::Error) -> UserlandError + '_ {
    |source| UserlandError::Read { path: path.to_owned(), source }
}

/// Plans the base layer. Blocking: reads a few thousand directory entries and ELF headers.
pub(crate) fn plan() -> Result<Tree, UserlandError> {
    let mut base = Planner::default();
    base.top_level_links()?;
    for name in REQUIRED {
        let path = find_program(name)
            .ok_or_else(|| UserlandError::NoProgram { program: name.to_owned() })?;
        base.program(&path, true)?;
    }
    for name in OPTIONAL {
        if let Some(path) = find_program(name) {
            base.program(&path, false)?;
        }
    }
    base.git()?;
    base.python()?;
    base.certificates()?;
    base.locale()?;
    base.libraries_opened_at_run_time()?;
    base.synthetic_etc()?;
    Ok(base.tree)
}

/// A digest over what the plan would read: names, sizes, times, inode numbers. Equal keys mean that no
/// file was touched since, so that the content digest of last time still holds.
pub(crate) fn stat_key(tree: &Tree) -> io::Result<Digest> {
    use sha2::Digest as _;
    let mut hash = sha2::Sha256::new();
    hash.update(b"cofferdam-userland-1\0");
    for (path, node) in tree.entries() {
        let line = match node {
            Node::Host { source, len, executable } => {
                let meta = fs::metadata(source)?;
                format!(
                    "h {path:?} {source:?} {len} {executable} {} {} {}.{} {}.{} {}\n",
                    meta.dev(),
                    meta.ino(),
                    meta.mtime(),
                    meta.mtime_nsec(),
                    meta.ctime(),
                    meta.ctime_nsec(),
                    meta.len(),
                )
            }
            other => format!("o {path:?} {other:?}\n"),
        };
        hash.update(line.as_bytes());
    }
    Ok(Digest::from_sha256(hash.finalize().into()))
}

/// Looked at whatever comes of it, besides what is in a plan.
const CONSULTED: [&str; 18] = [
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr/bin",
    "/usr/local/bin",
    "/usr/lib",
    "/usr/libexec",
    "/usr/share",
    "/usr/share/misc",
    "/usr/lib/ssl",
    "/usr/lib/locale",
    "/etc/ssl",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.cache",
];

/// Every place of the host that the plan depends on: its files, links and directories under their own
/// names, so that a file that comes, goes or is replaced shows in the directory that holds it.
pub(crate) fn places(tree: &Tree) -> Vec<PathBuf> {
    let mut places: BTreeSet<PathBuf> = CONSULTED.iter().map(PathBuf::from).collect();
    for (path, node) in tree.entries() {
        match node {
            Node::Host { source, .. } => {
                places.insert(source.clone());
                places.extend(source.parent().map(Path::to_owned));
            }
            Node::Link(_) | Node::Directory { .. } => {
                places.insert(Path::new("/").join(path));
            }
            Node::Text(_) => {}
        }
    }
    places.into_iter().collect()
}

fn find_program(name: &str) -> Option<PathBuf> {
    PROGRAM_DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

#[derive(Default)]
struct Planner {
    tree: Tree,
    /// Canonical paths whose ELF closure is in already.
    closed: BTreeSet<PathBuf>,
    /// Directory of the C library: the loader always looks there.
    libc_dir: Option<PathBuf>,
}

impl Planner {
    /// On a merged-usr host `/bin` and friends are links; the image has the same ones.
    fn top_level_links(&mut self) -> Result<(), UserlandError> {
        for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
            let path = Path::new("/").join(name);
            if let Ok(target) = fs::read_link(&path) {
                let resolved = fs::canonicalize(&path).map_err(read_error(&path))?;
                self.put(&resolved, Node::Directory { mode: 0o755, owner: 0 })?;
                self.put(&path, Node::Link(target))?;
            }
        }
        Ok(())
    }

    fn put(&mut self, path: &Path, node: Node) -> Result<(), UserlandError> {
        self.tree.add(path, node).map_err(read_error(path))
    }

    /// Adds the file that `path` leads to, under its canonical name, and a link for each other name.
    fn file(&mut self, path: &Path) -> Result<PathBuf, UserlandError> {
        let canonical = fs::canonicalize(path).map_err(read_error(path))?;
        let meta = fs::metadata(&canonical).map_err(read_error(&canonical))?;
        if !meta.is_file() {
            return Err(read_error(&canonical)(io::Error::other("not a regular file")));
        }
        let executable = meta.mode() & 0o111 != 0;
        let node = Node::Host { source: canonical.clone(), len: meta.len(), executable };
        self.put(&canonical, node)?;
        if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
            let asked = fs::canonicalize(parent).map_err(read_error(parent))?.join(name);
            if asked != canonical {
                self.put(&asked, Node::Link(canonical.clone()))?;
            }
        }
        Ok(canonical)
    }

    /// Adds a program and the libraries that it needs.
    fn program(&mut self, path: &Path, required: bool) -> Result<(), UserlandError> {
        let canonical = self.file(path)?;
        self.close_over(&canonical, required)
    }

    fn close_over(&mut self, elf: &Path, required: bool) -> Result<(), UserlandError> {
        if !self.closed.insert(elf.to_owned()) || !is_elf(elf).map_err(read_error(elf))? {
            return Ok(());
        }
        let found = match lddtree::DependencyAnalyzer::new(PathBuf::from("/")).analyze(elf) {
            Ok(found) => found,
            Err(error) if required => {
                return Err(read_error(elf)(io::Error::other(error.to_string())));
            }
            Err(_) => return Ok(()),
        };
        // The kernel opens the loader by this very path, wherever the libraries name it.
        if let Some(loader) = &found.interpreter {
            self.file(Path::new(loader))?;
        }
        for library in found.libraries.values() {
            if library.found() {
                self.library(&library.path)?;
            } else if required {
                return Err(UserlandError::NoLibrary {
                    program: elf.to_owned(),
                    library: library.name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Adds a library. One outside the C library's own directory gets a link there too: the image
    /// has no loader cache, and the loader always searches that directory.
    fn library(&mut self, path: &Path) -> Result<(), UserlandError> {
        let canonical = self.file(path)?;
        let Some(name) = path.file_name() else { return Ok(()) };
        if name == OsStr::new("libc.so.6") && self.libc_dir.is_none() {
            self.libc_dir = canonical.parent().map(Path::to_owned);
        }
        if let Some(dir) = &self.libc_dir {
            let beside = dir.join(name);
            if !self.tree.contains(&beside) {
                self.put(&beside, Node::Link(canonical))?;
            }
        }
        Ok(())
    }

    /// Adds a directory with everything below it. Links that lead out of it and other special files
    /// are left out.
    fn directory(&mut self, root: &Path, left_out: &[&str]) -> Result<(), UserlandError> {
        let Ok(root) = fs::canonicalize(root) else { return Ok(()) };
        let walk =
            walkdir::WalkDir::new(&root).sort_by_file_name().into_iter().filter_entry(|entry| {
                !left_out.iter().any(|name| entry.file_name() == OsStr::new(name))
            });
        for entry in walk {
            let entry = entry.map_err(|error| read_error(&root)(error.into()))?;
            let path = entry.path();
            let kind = entry.file_type();
            if kind.is_dir() {
                self.put(path, Node::Directory { mode: 0o755, owner: 0 })?;
            } else if kind.is_symlink() {
                // The target is added under its own name; a dangling link is of no use to anyone.
                if fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
                    self.file(path)?;
                }
            } else if kind.is_file() {
                // Unreadable files are left out rather than failing everyone who is not root.
                if rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok() {
                    let canonical = self.file(path)?;
                    if may_be_elf(path, &entry) {
                        self.close_over(&canonical, false)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Git's own programs and templates live beside the prefix that it was installed under.
    fn git(&mut self) -> Result<(), UserlandError> {
        let Some(prefix) = find_program("git").and_then(|path| prefix_of(&path)) else {
            return Ok(());
        };
        for part in ["lib/git-core", "libexec/git-core", "share/git-core/templates"] {
            self.directory(&prefix.join(part), &[])?;
        }
        Ok(())
    }

    fn python(&mut self) -> Result<(), UserlandError> {
        let Some(path) = find_program("python3") else { return Ok(()) };
        let canonical = fs::canonicalize(&path).map_err(read_error(&path))?;
        let (Some(version), Some(prefix)) =
            (canonical.file_name().and_then(OsStr::to_str), prefix_of(&canonical))
        else {
            return Ok(());
        };
        for lib in ["lib", "lib64"] {
            let root = prefix.join(lib).join(version);
            // The directory with the static library for embedding: tens of megabytes.
            let config: Vec<String> = fs::read_dir(&root)
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|entry| entry.file_name().into_string().ok())
                .filter(|name| name.starts_with("config-"))
                .collect();
            let left_out: Vec<&str> =
                PYTHON_LEFT_OUT.into_iter().chain(config.iter().map(String::as_str)).collect();
            self.directory(&root, &left_out)?;
        }
        Ok(())
    }

    /// Public certificates only: the private directory beside them is never read.
    fn certificates(&mut self) -> Result<(), UserlandError> {
        self.directory(Path::new("/etc/ssl/certs"), &[])?;
        for bundle in
            ["/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"]
        {
            if Path::new(bundle).is_file() {
                self.file(Path::new(bundle))?;
            }
        }
        for link in ["/usr/lib/ssl/certs", "/usr/lib/ssl/cert.pem"] {
            if let Ok(target) = fs::read_link(link) {
                self.put(Path::new(link), Node::Link(target))?;
            }
        }
        Ok(())
    }

    fn locale(&mut self) -> Result<(), UserlandError> {
        for name in ["/usr/lib/locale/C.utf8", "/usr/share/misc/magic.mgc"] {
            self.directory(Path::new(name), &[])?;
        }
        Ok(())
    }

    fn libraries_opened_at_run_time(&mut self) -> Result<(), UserlandError> {
        let Some(dir) = self.libc_dir.clone() else { return Ok(()) };
        for name in OPENED_AT_RUN_TIME {
            let path = dir.join(name);
            if path.is_file() {
                self.library(&path)?;
            }
        }
        Ok(())
    }

    fn synthetic_etc(&mut self) -> Result<(), UserlandError> {
        let (uid, work, home) = (layout::UID, layout::WORK, layout::HOME);
        let files = [
            (
                "/etc/passwd",
                format!(
                    "root:x:0:0:root:{work}:/bin/sh\nagent:x:{uid}:{uid}:agent:{home}:/bin/bash\n"
                ),
            ),
            ("/etc/group", format!("root:x:0:\nagent:x:{uid}:\n")),
            (
                "/etc/nsswitch.conf",
                "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\n"
                    .to_owned(),
            ),
            ("/etc/hosts", "127.0.0.1 localhost\n".to_owned()),
            ("/etc/resolv.conf", String::new()),
            ("/etc/hostname", "cofferdam\n".to_owned()),
        ];
        for (path, text) in files {
            self.put(Path::new(path), Node::Text(text))?;
        }
        self.put(Path::new("/etc/mtab"), Node::Link(PathBuf::from("/proc/self/mounts")))
    }
}

/// `/usr` for `/usr/bin/git`.
fn prefix_of(program: &Path) -> Option<PathBuf> {
    let dir = fs::canonicalize(program.parent()?).ok()?;
    dir.parent().map(Path::to_owned)
}

/// Programs are executable and modules carry `.so` in their names: a look at the name saves opening
/// thousands of scripts and texts.
fn may_be_elf(path: &Path, entry: &walkdir::DirEntry) -> bool {
    let is_module = path.file_name().and_then(OsStr::to_str).is_some_and(|n| n.contains(".so"));
    is_module || entry.metadata().is_ok_and(|meta| meta.mode() & 0o111 != 0)
}

fn is_elf(path: &Path) -> io::Result<bool> {
    let mut magic = [0u8; 4];
    let mut file = fs::File::open(path)?;
    match file.read_exact(&mut magic) {
        Ok(()) => Ok(magic == *b"\x7fELF"),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_has_a_shell_git_and_the_loader_and_nothing_private() {
        let tree = plan().unwrap();
        for path in ["/etc/passwd", "/etc/hosts"] {
            assert!(tree.contains(Path::new(path)), "{path}");
        }
        let loader = lddtree::DependencyAnalyzer::new(PathBuf::from("/"))
            .analyze(find_program("sh").unwrap())
            .unwrap()
            .interpreter
            .unwrap();
        let place = Path::new(&loader);
        let dir = fs::canonicalize(place.parent().unwrap()).unwrap();
        assert!(tree.contains(&dir.join(place.file_name().unwrap())), "{loader}");
        for (path, _) in tree.entries() {
            for private in ["home", "root", "etc/ssl/private", "etc/shadow", "var", "run"] {
                assert!(!path.starts_with(private), "{}", path.display());
            }
        }
        for (_, node) in tree.entries() {
            if let Node::Text(text) = node {
                assert!(!text.contains("shadow:x"));
            }
        }
    }

    #[test]
    fn planning_twice_gives_the_same_key() {
        assert_eq!(stat_key(&plan().unwrap()).unwrap(), stat_key(&plan().unwrap()).unwrap());
    }
}
