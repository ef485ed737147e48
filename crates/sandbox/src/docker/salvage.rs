//! Bringing the work of a dead run out of its volume, so that work is not lost with it.
//!
//! The archive comes from a hostile file system. Symbolic links are made last, so that nothing is
//! ever written through one; devices, sockets and set-user-id bits are left out. Entries named `.git`
//! get another name before they exist on the host. It must never write outside the directory that it
//! was given.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use bollard::query_parameters::DownloadFromContainerOptionsBuilder;
use bytes::{Buf as _, Bytes};
use cofferdam_wire::layout;
use futures::StreamExt;
use tokio::sync::mpsc;

use super::call::{CallError, Client};
use crate::disarm;
use crate::error::SandboxError;

/// Most bytes of file content that are brought out; past it the rest is left out, and a file named
/// `TO.incomplete` beside the directory says so.
pub const MAX_SALVAGE_BYTES: u64 = 16 << 30;
/// Most files, directories and links that are brought out; past it likewise.
pub const MAX_SALVAGE_ENTRIES: u64 = 2_000_000;
/// Longest that it may take; past it likewise.
pub const SALVAGE_TIMEOUT: Duration = Duration::from_secs(600);
/// Pieces of the archive that wait for the disk; past it the engine waits.
const PIECES_WAITING: usize = 8;

/// Copies the repository out of container `id` into `to`, which must not exist. Where the repository
/// should be and there is none, all of the work is copied. `false` when there is nothing but empty
/// directories.
pub(crate) async fn work(client: &Client, id: &str, to: &Path) -> Result<bool, SandboxError> {
    let kept =
        copy(client, id, layout::REPO, to).await? || copy(client, id, layout::WORK, to).await?;
    if kept {
        disarm::explain(to);
    }
    Ok(kept)
}

async fn copy(
    client: &Client,
    id: &str,
    from: &'static str,
    to: &Path,
) -> Result<bool, SandboxError> {
    const ATTEMPT: &str = "bring the work out of the container";
    let options = DownloadFromContainerOptionsBuilder::default().path(from).build();
    let (send, receive) = mpsc::channel::<io::Result<Bytes>>(PIECES_WAITING);
    let place = to.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || bring(Incoming::new(receive), &place));
    let download = async {
        let mut pieces = std::pin::pin!(client.docker.download_from_container(id, Some(options)));
        while let Some(piece) = pieces.next().await {
            if send.send(Ok(piece?)).await.is_err() {
                // The unpacker gave up and says why.
                break;
            }
        }
        Ok(())
    };
    let downloaded = client.ask(SALVAGE_TIMEOUT, download).await;
    if let Err(error) = &downloaded {
        // A broken archive must not look like a short one. A full channel is drained by the unpacker.
        let _ = send.send(Err(io::Error::other(error.to_string()))).await;
    }
    drop(send);
    let io = |source| SandboxError::Io { attempt: "keep the work in", path: to.to_owned(), source };
    let unpacked = unpacking.await.map_err(|error| io(io::Error::other(error)))?;
    match (downloaded, unpacked) {
        (Err(CallError::Refused { status: 404, .. }), _) => Ok(false),
        (Ok(()), Ok(Unpacked::Whole)) => Ok(true),
        (Ok(()), Ok(Unpacked::Nothing)) => Ok(false),
        (Ok(()), Ok(Unpacked::Cut(why))) => incomplete(to, &why).map_err(io),
        (Ok(()), Err(error)) | (Err(_), Err(error)) if to.exists() => {
            incomplete(to, &error.to_string()).map_err(io)
        }
        (Err(error), _) => Err(error.during(ATTEMPT)),
        (Ok(()), Err(error)) => Err(io(error)),
    }
}

/// Says beside the directory that it is not everything.
fn incomplete(to: &Path, why: &str) -> io::Result<bool> {
    tracing::warn!(%why, "the work was brought out in part");
    fs::write(to.with_extension("incomplete"), format!("{why}\n"))?;
    Ok(true)
}

/// How far unpacking went.
enum Unpacked {
    Whole,
    Nothing,
    Cut(String),
}

/// Unpacks, and makes harmless what came, whole or not.
fn bring(archive: impl Read, to: &Path) -> io::Result<Unpacked> {
    let unpacked = unpack(archive, to);
    if !to.exists() {
        return unpacked;
    }
    if matches!(unpacked, Ok(Unpacked::Whole)) && !disarm::has_content(to)? {
        fs::remove_dir_all(to)?;
        return Ok(Unpacked::Nothing);
    }
    disarm::disarm(to)?;
    unpacked
}

fn unpack(archive: impl Read, to: &Path) -> io::Result<Unpacked> {
    let mut links: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let (mut entries, mut bytes) = (0u64, 0u64);
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        entries += 1;
        bytes = bytes.saturating_add(entry.size());
        if entries > MAX_SALVAGE_ENTRIES || bytes > MAX_SALVAGE_BYTES {
            make_links(to, &links)?;
            return Ok(Unpacked::Cut(format!(
                "stopped after {entries} entries: at most {MAX_SALVAGE_ENTRIES} entries and {MAX_SALVAGE_BYTES} bytes are kept"
            )));
        }
        let Some(inside) = below_top(&entry.path()?) else { continue };
        let place = to.join(&inside);
        let kind = entry.header().entry_type();
        if inside.as_os_str().is_empty() && !kind.is_dir() {
            // The guest put something else in the repository's place, perhaps a link that leads out.
            return Ok(Unpacked::Nothing);
        }
        if kind.is_dir() {
            directory(&place)?;
        } else if kind.is_file() || kind == tar::EntryType::GNUSparse {
            parent(&place)?;
            let executable = entry.header().mode().unwrap_or(0) & 0o100 != 0;
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(if executable { 0o700 } else { 0o600 })
                .open(&place)?;
            io::copy(&mut entry, &mut file)?;
            file.flush()?;
        } else if kind.is_symlink() {
            if let Some(target) = entry.link_name()? {
                links.insert(inside, target.into_owned());
            }
        } else if kind.is_hard_link() {
            // To a file that came before; a link to one outside the repository finds nothing.
            if let Some(source) = entry.link_name()?.and_then(|target| below_top(&target)) {
                parent(&place)?;
                match fs::hard_link(to.join(source), &place) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    other => other?,
                }
            }
        }
    }
    make_links(to, &links)?;
    Ok(if entries == 0 { Unpacked::Nothing } else { Unpacked::Whole })
}

/// Made when every file is in place. A link never replaces anything.
fn make_links(to: &Path, links: &BTreeMap<PathBuf, PathBuf>) -> io::Result<()> {
    for (inside, target) in links {
        let place = to.join(inside);
        // Sorted, so a link's own parent may be a link made before: then it has no place of its own.
        let through_link = inside.ancestors().skip(1).any(|above| links.contains_key(above));
        if through_link {
            continue;
        }
        parent(&place)?;
        match std::os::unix::fs::symlink(target, &place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
    }
    Ok(())
}

/// The path without its first part, the name of the directory that was asked for; `None` for a path
/// that is not plain. The directory itself is the empty path.
fn below_top(path: &Path) -> Option<PathBuf> {
    let mut parts = path.components().filter(|part| *part != Component::CurDir);
    if !matches!(parts.next()?, Component::Normal(_)) {
        return None;
    }
    let mut inside = PathBuf::new();
    for part in parts {
        let Component::Normal(name) = part else { return None };
        inside.push(harmless(name));
    }
    Some(inside)
}

/// The name that an entry gets on the host. Different names stay different: `.git` in another case
/// is numbered by which letters are capitals, and names that look like the new ones end in `-0`.
fn harmless(name: &OsStr) -> OsString {
    let bytes = name.as_bytes();
    let mut new = name.to_owned();
    if disarm::is_git_name(bytes) {
        let capitals = bytes[1..]
            .iter()
            .fold(0, |number, letter| number * 2 + u8::from(letter.is_ascii_uppercase()));
        new = OsString::from(disarm::GIT_RENAMED);
        if capitals > 0 {
            new.push(format!("-{capitals}"));
        }
    } else if bytes.starts_with(disarm::GIT_RENAMED.as_bytes()) {
        new.push("-0");
    }
    new
}

fn parent(place: &Path) -> io::Result<()> {
    place.parent().map_or(Ok(()), directory)
}

fn directory(place: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(place)
}

/// The archive as a blocking reader.
struct Incoming {
    receive: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Incoming {
    fn new(receive: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self { receive, piece: Bytes::new() }
    }
}

impl Read for Incoming {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receive.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let n = self.piece.len().min(buf.len());
        self.piece.copy_to_slice(&mut buf[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o4755);
            header.set_size(if kind.is_file() { content.len() as u64 } else { 0 });
            // Written raw: the builder itself refuses the paths that matter here.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            if !kind.is_file() {
                header.as_gnu_mut().unwrap().linkname[..content.len()]
                    .copy_from_slice(content.as_bytes());
            }
            header.set_cksum();
            let body = if kind.is_file() { content.as_bytes() } else { b"" };
            builder.append(&header, body).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn files_directories_and_links_come_out_and_nothing_else() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("work");
        let bytes = archive(&[
            ("repo", tar::EntryType::Directory, ""),
            ("repo/a", tar::EntryType::Regular, "text"),
            ("repo/deep/b", tar::EntryType::Regular, "more"),
            ("repo/link", tar::EntryType::Symlink, "/etc/passwd"),
            ("repo/hard", tar::EntryType::Link, "repo/a"),
            ("repo/pipe", tar::EntryType::Fifo, ""),
        ]);
        assert!(matches!(unpack(bytes.as_slice(), &to).unwrap(), Unpacked::Whole));
        assert_eq!(fs::read(to.join("deep/b")).unwrap(), b"more");
        assert_eq!(fs::read(to.join("hard")).unwrap(), b"text");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/etc/passwd"));
        assert!(fs::symlink_metadata(to.join("pipe")).is_err());
        assert_eq!(fs::metadata(to.join("a")).unwrap().permissions().mode() & 0o7777, 0o700);
    }

    #[test]
    fn nothing_is_written_outside_whatever_the_archive_says() {
        let dir = tempfile::tempdir().unwrap();
        let (to, outside) = (dir.path().join("work"), dir.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        let there = outside.to_str().unwrap();
        let into = format!("{there}/planted");
        let secret = format!("{there}/secret");
        let bytes = archive(&[
            ("repo", tar::EntryType::Directory, ""),
            ("repo/d", tar::EntryType::Symlink, there),
            ("repo/d/planted", tar::EntryType::Regular, "x"),
            ("repo/d/deep/link", tar::EntryType::Symlink, "x"),
            ("repo/../../outside/planted", tar::EntryType::Regular, "x"),
            (into.as_str(), tar::EntryType::Regular, "x"),
            ("repo/steal", tar::EntryType::Link, secret.as_str()),
            ("repo/steal2", tar::EntryType::Link, "repo/../../outside/secret"),
        ]);
        assert!(unpack(bytes.as_slice(), &to).is_ok());
        let left: Vec<_> =
            fs::read_dir(&outside).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["secret"]);
        assert!(!to.join("steal").exists() && !to.join("steal2").exists());
        assert!(fs::symlink_metadata(to.join("d")).unwrap().is_dir());
    }

    #[test]
    fn entries_named_dot_git_have_another_name_from_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("work");
        let bytes = archive(&[
            ("repo/.git/config", tar::EntryType::Regular, "a"),
            ("repo/.GIT", tar::EntryType::Regular, "b"),
            ("repo/git-of-the-sandbox", tar::EntryType::Regular, "c"),
            ("repo/git-of-the-sandbox-7", tar::EntryType::Regular, "d"),
            ("repo/sub/.git", tar::EntryType::Symlink, "../.git"),
            ("repo/hard", tar::EntryType::Link, "repo/.git/config"),
        ]);
        // Not yet gone over afterwards.
        assert!(matches!(unpack(bytes.as_slice(), &to).unwrap(), Unpacked::Whole));
        assert_eq!(fs::read(to.join("git-of-the-sandbox/config")).unwrap(), b"a");
        assert_eq!(fs::read(to.join("git-of-the-sandbox-7")).unwrap(), b"b");
        assert_eq!(fs::read(to.join("git-of-the-sandbox-0")).unwrap(), b"c");
        assert_eq!(fs::read(to.join("git-of-the-sandbox-7-0")).unwrap(), b"d");
        assert_eq!(fs::read(to.join("hard")).unwrap(), b"a");
        let link = fs::read_link(to.join("sub/git-of-the-sandbox")).unwrap();
        assert_eq!(link, Path::new("../.git"));
    }

    #[test]
    fn a_bare_repository_in_a_cut_archive_is_harmless() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("work");
        let mut bytes = archive(&[
            ("repo/b/objects", tar::EntryType::Directory, ""),
            ("repo/b/refs", tar::EntryType::Directory, ""),
            ("repo/b/HEAD", tar::EntryType::Regular, "ref: refs/heads/main"),
            ("repo/b/config", tar::EntryType::Regular, &"x".repeat(2000)),
        ]);
        bytes.truncate(bytes.len() - 2048);
        assert!(bring(bytes.as_slice(), &to).is_err());
        assert!(to.join("b/HEAD-of-the-sandbox").exists());
        assert!(!to.join("b/HEAD").exists() && !to.join("b/config").exists());
    }

    #[test]
    fn empty_directories_are_nothing_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("work");
        let bytes = archive(&[("work/home/.cache", tar::EntryType::Directory, "")]);
        assert!(matches!(bring(bytes.as_slice(), &to).unwrap(), Unpacked::Nothing));
        assert!(!to.exists());
    }

    #[test]
    fn a_link_in_the_repositorys_place_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("work");
        for kind in [tar::EntryType::Symlink, tar::EntryType::Regular] {
            let bytes = archive(&[("repo", kind, "/etc")]);
            assert!(matches!(unpack(bytes.as_slice(), &to).unwrap(), Unpacked::Nothing));
            assert!(fs::symlink_metadata(&to).is_err());
        }
    }

    #[test]
    fn a_broken_archive_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = archive(&[("repo/a", tar::EntryType::Regular, &"x".repeat(2000))]);
        assert!(unpack(&bytes[..1024], &dir.path().join("work")).is_err());
    }
}
