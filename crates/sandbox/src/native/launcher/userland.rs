//! What of a userland is shown: the host's, or an unpacked one.
//!
//! Of the host it never shows a home, `/var`, `/opt`, `/run`, or anything of `/etc` but what the
//! lists here name.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::root::{USERLAND, bind_directory, bind_file, write_file};
use super::{Failure, Stage as _};

/// Most entries in the top directory of an unpacked root. One with more is refused.
pub(super) const ROOT_ENTRIES: usize = 256;
/// Largest single file copied from the host's `/etc`, bytes. A larger one is refused.
pub(super) const ETC_FILE_BYTES: u64 = 8 << 20;

/// Top-level names that on most systems are links into `/usr`.
const USR_LINKS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Directories of certificates and of the links that `/usr` needs, where they exist.
const ETC_DIRECTORIES: [&str; 6] = [
    "alternatives",
    "ca-certificates/extracted",
    "ld.so.conf.d",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "ssl/certs",
];
/// Single files of the host's `/etc`, copied where they exist.
const ETC_FILES: [&str; 5] =
    ["ld.so.cache", "ld.so.conf", "ssl/openssl.cnf", "pki/tls/openssl.cnf", "os-release"];

/// The host's `/usr` and what it needs.
pub(super) fn from_host(top: &Path) -> Result<(), Failure> {
    bind_directory(Path::new("/usr"), &top.join("usr"), USERLAND, true)?;
    for name in USR_LINKS {
        entry(top, Path::new("/"), name)?;
    }
    let etc = top.join("etc");
    fs::create_dir(&etc).stage("create /etc")?;
    for name in ETC_DIRECTORIES {
        let source = Path::new("/etc").join(name);
        if fs::metadata(&source).is_ok_and(|m| m.is_dir()) {
            bind_directory(&source, &etc.join(name), USERLAND, true)?;
        }
    }
    for name in ETC_FILES {
        copy(&Path::new("/etc").join(name), &etc.join(name))?;
    }
    for (name, content) in SYNTHETIC {
        write_file(&etc.join(name), content.as_bytes())?;
    }
    zone(&etc)
}

/// Files of `/etc` that say nothing about the host.
const SYNTHETIC: [(&str, &str); 6] = [
    (
        "passwd",
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
         agent:x:10001:10001:agent:/work/home:/bin/sh\n",
    ),
    ("group", "root:x:0:\nagent:x:10001:\n"),
    ("hosts", "127.0.0.1 localhost cofferdam\n::1 localhost cofferdam\n"),
    ("hostname", "cofferdam\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    // There is no resolver in the box.
    ("resolv.conf", ""),
];

/// The local time zone, when it is a link into `/usr`.
fn zone(etc: &Path) -> Result<(), Failure> {
    match fs::read_link("/etc/localtime") {
        Ok(to) if to.starts_with("/usr/share/zoneinfo") => {
            symlink(to, etc.join("localtime")).stage("link /etc/localtime")
        }
        _ => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let stage = || format!("copy {}", from.display());
    let meta = match fs::metadata(from) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).stage(stage()),
    };
    if !meta.is_file() || meta.len() > ETC_FILE_BYTES {
        return Err(io::Error::other("not a regular file of a sane size")).stage(stage());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).stage(stage())?;
    }
    write_file(to, &fs::read(from).stage(stage())?)
}

/// Names that the sandbox makes itself, whatever an unpacked root brings.
const OWN_NAMES: [&str; 6] = ["cofferdam", "dev", "proc", "sys", "tmp", "work"];

/// Everything in the top directory of an unpacked root, read-only.
pub(super) fn from_directory(top: &Path, from: &Path) -> Result<(), Failure> {
    let stage = || format!("read {}", from.display());
    let mut names = Vec::new();
    for item in fs::read_dir(from).stage(stage())? {
        names.push(item.stage(stage())?.file_name());
        if names.len() > ROOT_ENTRIES {
            return Err(io::Error::other(format!("more than {ROOT_ENTRIES} entries")))
                .stage(stage());
        }
    }
    for name in names {
        let Some(name) = name.to_str() else {
            return Err(io::Error::other("a name that is not UTF-8")).stage(stage());
        };
        if !OWN_NAMES.contains(&name) {
            entry(top, from, name)?;
        }
    }
    Ok(())
}

/// Shows `from/name` as `/name`: a link as the same link, the rest bound read-only.
fn entry(top: &Path, from: &Path, name: &str) -> Result<(), Failure> {
    let (source, target) = (from.join(name), top.join(name));
    let stage = || format!("show {}", source.display());
    let meta = match fs::symlink_metadata(&source) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).stage(stage()),
    };
    if meta.file_type().is_symlink() {
        let to = fs::read_link(&source).stage(stage())?;
        symlink(to, &target).stage(stage())
    } else if meta.is_dir() {
        bind_directory(&source, &target, USERLAND, true)
    } else if meta.is_file() {
        bind_file(&source, &target, USERLAND)
    } else {
        Ok(())
    }
}
