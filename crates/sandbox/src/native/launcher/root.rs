//! The new root: assembled on a private tmpfs, then entered, then made read-only.
//!
//! It never leaves a writable mount of the host but the run's own volume, and never a way back to
//! the old root.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::{Failure, Stage as _, sys, userland};
use crate::native::handoff::{LaunchRoot, LaunchSpec, files};
use crate::spec::{Hardening, Tmpfs};

const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const NO_SUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NO_DEV: u64 = libc::MOUNT_ATTR_NODEV;
const NO_EXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Room for the directories, links and synthetic files of the root itself.
const ROOT_OPTIONS: &str = "size=16m,nr_inodes=8k,mode=755";

/// Builds the root below the run's directory and makes it this process's root.
pub(super) fn enter(spec: &LaunchSpec, hardening: &Hardening) -> Result<(), Failure> {
    // Nothing done from here on shows on the host.
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .stage("make mounts private")?;
    let top = spec.run_dir.join(files::ROOT);
    mount("tmpfs", &top, MountFlags::NOSUID | MountFlags::NODEV, ROOT_OPTIONS)?;
    match &spec.root {
        LaunchRoot::HostUserland => userland::from_host(&top)?,
        LaunchRoot::Directory(from) => userland::from_directory(&top, from)?,
    }
    let (work, guest) = (spec.run_dir.join(files::WORK), spec.guest.as_path());
    let mut attributes = if hardening.work.no_setuid { NO_SUID } else { 0 };
    attributes |= if hardening.work.no_devices { NO_DEV } else { 0 };
    bind_directory(&work, &inside(&top, &hardening.work.path), attributes, false)?;
    bind_file(
        guest,
        &inside(&top, cofferdam_wire::layout::GUEST_BIN),
        READ_ONLY | NO_SUID | NO_DEV,
    )?;
    devices(&top, hardening)?;
    for tmpfs in &hardening.tmpfs {
        mount_tmpfs(&top, tmpfs)?;
    }
    if let Some(extra) = &spec.extra {
        bind_directory(extra, &top.join("dev/extra"), NO_SUID | NO_DEV, false)?;
    }
    // The tmpfs of /dev gets its mount points first and is closed then; the nodes are mounts of
    // their own.
    sys::set_mount_attributes(&top.join("dev"), READ_ONLY | NO_EXEC | NO_DEV, false)
        .stage("close /dev")?;
    processes(&top, hardening)?;
    for view in &spec.cgroup_views {
        let target = inside(&top, "/sys/fs/cgroup").join(&view.inside);
        bind_directory(&view.host, &target, READ_ONLY | NO_SUID | NO_DEV | NO_EXEC, false)?;
    }
    switch(&top, hardening.read_only_root)
}

/// The path of `absolute` (as seen inside) below the staged root.
fn inside(top: &Path, absolute: &str) -> PathBuf {
    top.join(absolute.trim_start_matches('/'))
}

fn switch(top: &Path, read_only: bool) -> Result<(), Failure> {
    rustix::process::chdir(top).stage("enter the new root")?;
    // Stacks the old root on the new one, then takes it away: no directory is needed for it.
    rustix::process::pivot_root(".", ".").stage("pivot_root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).stage("let go of the old root")?;
    rustix::process::chdir("/").stage("enter /")?;
    let read_only = if read_only { READ_ONLY } else { 0 };
    sys::set_mount_attributes(Path::new("/"), read_only | NO_SUID | NO_DEV, false)
        .stage("make the root read-only")
}

fn mount(kind: &str, target: &Path, flags: MountFlags, options: &str) -> Result<(), Failure> {
    let stage = || format!("mount {kind} on {}", target.display());
    let options = CString::new(options).stage(stage())?;
    rustix::mount::mount(kind, target, kind, flags, options.as_c_str()).stage(stage())
}

fn mount_tmpfs(top: &Path, tmpfs: &Tmpfs) -> Result<(), Failure> {
    let target = inside(top, &tmpfs.path);
    fs::create_dir_all(&target).stage(format!("create {}", tmpfs.path))?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if !tmpfs.exec {
        flags |= MountFlags::NOEXEC;
    }
    let options =
        format!("size={},nr_inodes={},mode={:o}", tmpfs.size_bytes, tmpfs.inodes, tmpfs.mode);
    mount("tmpfs", &target, flags, &options)
}

/// Binds a directory of the host, with what is mounted below it when `recursive`.
pub(super) fn bind_directory(
    source: &Path,
    target: &Path,
    attributes: u64,
    recursive: bool,
) -> Result<(), Failure> {
    let stage = || format!("bind {} into the sandbox", source.display());
    fs::create_dir_all(target).stage(stage())?;
    if recursive {
        rustix::mount::mount_bind_recursive(source, target).stage(stage())?;
    } else {
        rustix::mount::mount_bind(source, target).stage(stage())?;
    }
    sys::set_mount_attributes(target, attributes, recursive)
        .stage(format!("restrict {} in the sandbox", source.display()))
}

/// Binds one file of the host.
pub(super) fn bind_file(source: &Path, target: &Path, attributes: u64) -> Result<(), Failure> {
    let stage = || format!("bind {} into the sandbox", source.display());
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).stage(stage())?;
    }
    File::create(target).stage(stage())?;
    rustix::mount::mount_bind(source, target).stage(stage())?;
    sys::set_mount_attributes(target, attributes, false)
        .stage(format!("restrict {} in the sandbox", source.display()))
}

/// Attributes for a part of the host's userland.
pub(super) const USERLAND: u64 = READ_ONLY | NO_SUID | NO_DEV;

fn devices(top: &Path, hardening: &Hardening) -> Result<(), Failure> {
    let dev = top.join("dev");
    fs::create_dir_all(&dev).stage("create /dev")?;
    mount("tmpfs", &dev, MountFlags::NOSUID, "size=64k,nr_inodes=64,mode=755")?;
    for node in &hardening.devices {
        let node = Path::new(&**node);
        bind_file(&Path::new("/dev").join(node), &dev.join(node), NO_SUID | NO_EXEC)?;
    }
    let links = [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ];
    for (to, name) in links {
        symlink(to, dev.join(name)).stage(format!("link /dev/{name}"))?;
    }
    let pts = dev.join("pts");
    fs::create_dir(&pts).stage("create /dev/pts")?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", &pts, flags, "newinstance,ptmxmode=0666,mode=0620")
}

/// `/proc` of the new process-id namespace, with what tells of the machine hidden.
fn processes(top: &Path, hardening: &Hardening) -> Result<(), Failure> {
    let proc = top.join("proc");
    fs::create_dir_all(&proc).stage("create /proc")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", &proc, flags, "")?;
    for path in &hardening.masked_paths {
        let target = inside(top, path);
        match kind(&target).stage(format!("look at {path}"))? {
            // There is no sysfs here, and not every kernel has every file.
            Kind::Missing => {}
            Kind::Directory => {
                mount("tmpfs", &target, MountFlags::RDONLY | flags, "size=0,nr_inodes=2,mode=555")?
            }
            Kind::Other => {
                rustix::mount::mount_bind("/dev/null", &target).stage(format!("mask {path}"))?;
                sys::set_mount_attributes(&target, READ_ONLY | NO_SUID | NO_EXEC, false)
                    .stage(format!("close {path}"))?;
            }
        }
    }
    for path in &hardening.read_only_paths {
        let target = inside(top, path);
        if matches!(kind(&target).stage(format!("look at {path}"))?, Kind::Missing) {
            continue;
        }
        rustix::mount::mount_bind_recursive(&target, &target)
            .stage(format!("bind {path} onto itself"))?;
        sys::set_mount_attributes(&target, READ_ONLY | NO_SUID | NO_DEV | NO_EXEC, true)
            .stage(format!("make {path} read-only"))?;
    }
    Ok(())
}

enum Kind {
    Missing,
    Directory,
    Other,
}

fn kind(path: &Path) -> io::Result<Kind> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => Ok(Kind::Directory),
        Ok(_) => Ok(Kind::Other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kind::Missing),
        Err(error) => Err(error),
    }
}

/// Writes a small file that everyone may read.
pub(super) fn write_file(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let stage = || format!("write {}", path.display());
    fs::write(path, content).stage(stage())?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).stage(stage())
}
