//! Removing a tree that a guest wrote.
//!
//! It never follows a link, and neither depth nor modes that the guest chose stop it: directories
//! that are too deep are moved up and removed from there, closed ones are opened first. Nothing may
//! write to the tree at the same time.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Deepest nesting that is walked with one open descriptor per level. What lies deeper is moved to
/// the top of the tree and removed from there.
pub const WALK_DEPTH: usize = 64;

/// Bytes of directory entries that are read at a time.
const ENTRIES_BUFFER: usize = 64 * 1024;

/// How a directory of the guest's is opened: itself, never what a link leads to.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes `path` and everything below it. Nothing happens when it does not exist.
///
/// # Errors
/// What the file system says; part of the tree may be gone then.
pub fn remove(path: &Path) -> io::Result<()> {
    let top = match rustix::fs::open(path, DIRECTORY, Mode::empty()) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        // Not a directory: a file or a link, never followed.
        Err(Errno::NOTDIR | Errno::LOOP) => return std::fs::remove_file(path),
        Err(Errno::ACCESS) => {
            unlock(rustix::fs::CWD, path)?;
            rustix::fs::open(path, DIRECTORY, Mode::empty())?
        }
        Err(error) => return Err(error.into()),
    };
    let mut hoisted = 0u64;
    loop {
        let before = hoisted;
        clear(&top, &mut hoisted)?;
        // What was moved up is at the top now: go over it again.
        if hoisted == before {
            break;
        }
    }
    drop(top);
    std::fs::remove_dir(path)
}

struct Level {
    directory: OwnedFd,
    /// Directories still to go into, by name.
    pending: Vec<CString>,
    /// Its own name in the level above; none for the top.
    name: Option<CString>,
}

/// Removes what is in `top`. Directories deeper than [`WALK_DEPTH`] are moved into `top` instead,
/// and counted.
fn clear(top: &OwnedFd, hoisted: &mut u64) -> io::Result<()> {
    let mut levels = vec![enter(top.try_clone()?, None)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.pending.pop() else {
            let done = levels.pop();
            if let (Some(parent), Some(Level { name: Some(name), .. })) = (levels.last(), done) {
                unlinkat(&parent.directory, &name, AtFlags::REMOVEDIR)?;
            }
            continue;
        };
        let opened = open_directory(&level.directory, &name)?;
        if levels.len() < WALK_DEPTH {
            levels.push(enter(opened, Some(name))?);
            continue;
        }
        // Too deep: up to the top with it, under a name that nothing there has.
        let parent = &levels[levels.len() - 1].directory;
        loop {
            *hoisted += 1;
            let target = format!(".cofferdam-hoisted-{hoisted}");
            match rustix::fs::renameat_with(
                parent,
                &name,
                top,
                target.as_str(),
                rustix::fs::RenameFlags::NOREPLACE,
            ) {
                Ok(()) => break,
                Err(Errno::EXIST) => {}
                Err(Errno::INVAL | Errno::NOSYS) => {
                    renameat(parent, &name, top, target.as_str())?;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Removes every entry of a directory that is no directory and lists the rest.
fn enter(directory: OwnedFd, name: Option<CString>) -> io::Result<Level> {
    let mut directories = Vec::new();
    // Names first, then removal: a directory that changes while it is read may show less.
    let mut others = Vec::new();
    each(&directory, |name, kind, inode| {
        let list = if kind == FileType::Directory { &mut directories } else { &mut others };
        list.push((inode, name.to_owned()));
        Ok(())
    })?;
    // In the order of their inodes: a large directory names them in the order of a hash, and every
    // removal would touch another block of the disk.
    others.sort_unstable_by_key(|(inode, _)| *inode);
    for (_, other) in others {
        unlinkat(&directory, &other, AtFlags::empty())?;
    }
    // The last one is taken first.
    directories.sort_unstable_by_key(|(inode, _)| std::cmp::Reverse(*inode));
    let pending = directories.into_iter().map(|(_, name)| name).collect();
    Ok(Level { directory, pending, name })
}

/// Calls `visit` with name, kind and inode of each entry, without opening any.
pub(crate) fn each(
    directory: &OwnedFd,
    mut visit: impl FnMut(&CStr, FileType, u64) -> io::Result<()>,
) -> io::Result<()> {
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0))?;
    // Not filled first: there is one for every directory.
    let mut buffer = Vec::<u8>::with_capacity(ENTRIES_BUFFER);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            known => known,
        };
        visit(name, kind, entry.ino())?;
    }
    Ok(())
}

/// Opens a directory, which must be one, with the rights that its removal needs.
pub(crate) fn open_directory(parent: &OwnedFd, name: &CString) -> io::Result<OwnedFd> {
    let open = || openat(parent, name, DIRECTORY, Mode::empty());
    let opened = match open() {
        Err(Errno::ACCESS) => {
            unlock(parent, name)?;
            open()?
        }
        other => other?,
    };
    // Entries can be removed only from a directory that its owner may write to and search. Root
    // needs neither.
    if !rustix::process::geteuid().is_root() {
        rustix::fs::fchmod(&opened, Mode::RWXU)?;
    }
    Ok(opened)
}

/// Gives the owner back what the guest took away. The name is known to be a directory's, and
/// nothing can have replaced it.
fn unlock<Fd: AsFd, P: rustix::path::Arg>(parent: Fd, name: P) -> rustix::io::Result<()> {
    rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_removed_and_what_they_point_to_stays() {
        let temp = tempfile::tempdir().unwrap();
        let (tree, kept) = (temp.path().join("work"), temp.path().join("kept"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        symlink(&kept, tree.join("a/link")).unwrap();
        symlink(kept.join("file"), tree.join("a/b/file")).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists());
        assert!(kept.join("file").exists());
    }

    #[test]
    fn link_in_place_of_the_tree_is_removed_itself() {
        let temp = tempfile::tempdir().unwrap();
        let kept = temp.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        symlink(&kept, temp.path().join("work")).unwrap();
        remove(&temp.path().join("work")).unwrap();
        assert!(kept.join("file").exists());
        assert!(fs::symlink_metadata(temp.path().join("work")).is_err());
    }

    #[test]
    fn nesting_deeper_than_any_path_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("work");
        fs::create_dir(&tree).unwrap();
        let mut at = rustix::fs::open(&tree, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..3_000 {
            rustix::fs::mkdirat(&at, c"deep-directory", Mode::RWXU).unwrap();
            at = openat(&at, c"deep-directory", DIRECTORY, Mode::empty()).unwrap();
        }
        drop(at);
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn missing_tree_is_no_error() {
        remove(Path::new("/nonexistent/cofferdam/work")).unwrap();
    }

    #[test]
    fn many_files_in_one_directory_and_in_many_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("work");
        fs::create_dir_all(tree.join("flat")).unwrap();
        // For a measure by hand: COFFERDAM_MEASURE_FILES=100000 and `--nocapture`.
        #[expect(clippy::disallowed_methods, reason = "a measure that is asked for by hand")]
        let files = std::env::var("COFFERDAM_MEASURE_FILES")
            .map_or(6_000, |files| files.parse::<usize>().unwrap());
        for n in 0..files {
            let below = if n % 2 == 0 { "flat".to_owned() } else { format!("d{}", n % 997) };
            fs::create_dir_all(tree.join(&below)).unwrap();
            fs::write(tree.join(below).join(format!("file-{n}")), "some content").unwrap();
        }
        #[expect(clippy::disallowed_methods, reason = "shown, never asserted")]
        let start = std::time::Instant::now();
        remove(&tree).unwrap();
        println!("{files} files removed in {:?}", start.elapsed());
        assert!(!tree.exists());
    }
}
