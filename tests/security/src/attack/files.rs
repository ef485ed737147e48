//! Files: the read-only root, Landlock, devices, `/proc`, `/sys`, links, mappings, interpreters.
//!
//! Files are opened and never written to, so that nothing changes where one opens.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;

use super::twins;
use crate::outcome::{Outcome, errno_of};
use crate::promise::Promise::{P4, P5};
use crate::table::Attempt;

const fn row(
    name: &'static str,
    layer: &'static str,
    attack: fn() -> Outcome,
    twin: fn() -> Result<(), String>,
) -> Attempt {
    Attempt::new(name, layer, P4, attack, twin)
}

pub(crate) const TABLE: &[Attempt] = &[
    row("root.create_in_root", "read_only_root", || create("/.attack"), twins::write_where_allowed),
    row(
        "root.create_in_usr",
        "read_only_root",
        || create("/usr/.attack"),
        twins::write_where_allowed,
    ),
    row(
        "root.create_in_etc",
        "read_only_root",
        || create("/etc/.attack"),
        twins::write_where_allowed,
    ),
    row(
        "root.create_beside_guest",
        "read_only_root",
        || create("/cofferdam/.attack"),
        twins::write_where_allowed,
    ),
    row(
        "root.open_passwd",
        "read_only_root",
        || open_write("/etc/passwd"),
        twins::write_where_allowed,
    ),
    row("root.open_shell", "read_only_root", || open_write("/bin/sh"), twins::write_where_allowed),
    row(
        "root.open_guest",
        "read_only_root",
        || open_write("/cofferdam/guest"),
        twins::write_where_allowed,
    ),
    row("root.replace_guest", "read_only_root", replace_guest, twins::write_where_allowed),
    row("root.remove_etc_file", "read_only_root", remove_etc, twins::write_where_allowed),
    row("root.chmod_guest", "read_only_root", chmod_guest, twins::write_where_allowed),
    row(
        "root.write_through_link",
        "read_only_root",
        write_through_link,
        twins::write_where_allowed,
    )
    .case("S74"),
    row("root.hard_link_out", "read_only_root", hard_link, twins::write_where_allowed),
    row("root.rename_work", "read_only_root", rename_work, twins::write_where_allowed),
    row("root.mapping_through_proc_mem", "read_only_root", proc_mem, twins::read_own_proc),
    row("landlock.create_in_dev", "landlock", || create("/dev/.attack"), twins::write_null),
    row(
        "devices.memory",
        "devices",
        || open_any(&["/dev/mem", "/dev/kmem", "/dev/port"]),
        twins::write_null,
    ),
    row("devices.kernel_log", "devices", || open_any(&["/dev/kmsg"]), twins::write_null),
    row("devices.disks", "devices", disks, twins::write_null),
    row("devices.fuse", "devices", || open_any(&["/dev/fuse", "/dev/cuse"]), twins::write_null),
    row(
        "devices.tun",
        "devices",
        || open_any(&["/dev/net/tun", "/dev/vhost-net"]),
        twins::write_null,
    ),
    row(
        "devices.kvm",
        "devices",
        || open_any(&["/dev/kvm", "/dev/vhost-vsock", "/dev/vsock"]),
        twins::write_null,
    ),
    row(
        "devices.loop",
        "devices",
        || open_any(&["/dev/loop-control", "/dev/loop0", "/dev/mapper/control"]),
        twins::write_null,
    ),
    row(
        "devices.input",
        "devices",
        || open_any(&["/dev/uinput", "/dev/input/event0", "/dev/console", "/dev/tty0", "/dev/vcs"]),
        twins::write_null,
    ),
    row(
        "proc.core_pattern",
        "read_only_paths",
        || open_write("/proc/sys/kernel/core_pattern"),
        twins::read_own_proc,
    ),
    row(
        "proc.modprobe",
        "read_only_paths",
        || open_write_or_absent("/proc/sys/kernel/modprobe"),
        twins::read_own_proc,
    ),
    row(
        "proc.sysrq_trigger",
        "read_only_paths",
        || open_write_or_absent("/proc/sysrq-trigger"),
        twins::read_own_proc,
    ),
    row(
        "proc.vm_settings",
        "read_only_paths",
        || open_write("/proc/sys/vm/overcommit_memory"),
        twins::read_own_proc,
    ),
    row(
        "proc.irq",
        "read_only_paths",
        || open_write_or_absent("/proc/irq/default_smp_affinity"),
        twins::read_own_proc,
    ),
    row(
        "proc.ip_forward",
        "read_only_paths",
        || open_write_or_absent("/proc/sys/net/ipv4/ip_forward"),
        twins::read_own_proc,
    ),
    row("proc.kcore", "masked_paths", || read_some(&["/proc/kcore"]), twins::read_own_proc),
    row("proc.keys", "masked_paths", || read_some(&["/proc/keys"]), twins::read_own_proc),
    row(
        "proc.interrupts",
        "masked_paths",
        || read_some(&["/proc/interrupts"]),
        twins::read_own_proc,
    ),
    row(
        "proc.timers",
        "masked_paths",
        || read_some(&["/proc/timer_list", "/proc/sched_debug"]),
        twins::read_own_proc,
    ),
    row(
        "proc.kernel_pages",
        "user",
        || read_some(&["/proc/kpagecount", "/proc/kpageflags", "/proc/kmsg", "/proc/vmallocinfo"]),
        twins::read_own_proc,
    ),
    row(
        "proc.config_bus",
        "masked_paths",
        || {
            open_write_any(&[
                "/proc/acpi/wakeup",
                "/proc/scsi/scsi",
                "/proc/bus/pci/devices",
                "/proc/mtrr",
            ])
        },
        twins::read_own_proc,
    ),
    row(
        "sys.power",
        "mounts",
        || {
            open_write_any(&[
                "/sys/power/state",
                "/sys/kernel/uevent_helper",
                "/sys/kernel/mm/transparent_hugepage/enabled",
            ])
        },
        twins::read_own_proc,
    ),
    row(
        "sys.debugfs",
        "mounts",
        || {
            open_any(&[
                "/sys/kernel/debug/sched",
                "/sys/kernel/tracing/trace",
                "/sys/kernel/security/lockdown",
            ])
        },
        twins::read_own_proc,
    ),
    row(
        "sys.firmware",
        "masked_paths",
        || read_some(&["/sys/firmware/dmi/tables/DMI", "/sys/firmware/acpi/tables/FACP"]),
        twins::read_own_proc,
    ),
    row(
        "sys.modules",
        "mounts",
        || open_write_any(&["/sys/module/kernel/parameters/panic", "/sys/bus/pci/rescan"]),
        twins::read_own_proc,
    ),
    Attempt::new(
        "cgroup.raise_memory",
        "mounts",
        P5,
        || cgroup(&["memory.limit_in_bytes", "memory.max"]),
        twins::read_own_proc,
    ),
    Attempt::new(
        "cgroup.raise_processes",
        "mounts",
        P5,
        || cgroup(&["pids.max"]),
        twins::read_own_proc,
    ),
    Attempt::new(
        "cgroup.release_agent",
        "mounts",
        P4,
        || cgroup(&["release_agent", "notify_on_release"]),
        twins::read_own_proc,
    ),
    Attempt::new(
        "cgroup.move_out",
        "mounts",
        P5,
        || cgroup(&["cgroup.procs", "tasks"]),
        twins::read_own_proc,
    ),
    Attempt::new("cgroup.make_child", "mounts", P5, cgroup_child, twins::read_own_proc),
    row("tmpfs.exec_from_shm", "tmpfs", exec_from_shm, twins::exec_from_tmp),
    row("tmpfs.interpreter_from_shm", "tmpfs", interpreter, twins::exec_from_memory),
    row("mounts.files_of_the_host", "mounts", host_file, twins::read_own_proc),
    row("mounts.homes_of_the_host", "mounts", homes, twins::read_own_proc),
];

/// What refuses a write: a mount, a mode, Landlock.
const CLOSED: [i32; 3] = [libc::EROFS, libc::EACCES, libc::EPERM];
/// The same, or that it is not there at all.
const ABSENT: [i32; 6] =
    [libc::EROFS, libc::EACCES, libc::EPERM, libc::ENOENT, libc::ENXIO, libc::ENODEV];

fn create(path: &str) -> Outcome {
    let made = File::options().write(true).create_new(true).open(path);
    if made.is_ok() {
        let _gone = fs::remove_file(path);
    }
    Outcome::of(made, &CLOSED)
}

fn open_write(path: &str) -> Outcome {
    // A program that runs cannot be written to by anyone: that is no wall, so it counts as through.
    Outcome::of(File::options().write(true).open(path), &CLOSED)
}

fn open_write_or_absent(path: &str) -> Outcome {
    Outcome::of(File::options().write(true).open(path), &ABSENT)
}

/// The first that gets through, else the last refusal.
fn each(paths: &[&str], attempt: impl Fn(&str) -> Outcome) -> Outcome {
    let mut last = Outcome::Refused("nothing tried".to_owned());
    for path in paths {
        last = attempt(path);
        if let Outcome::Through(detail) = last {
            return Outcome::Through(format!("{path} {detail}"));
        }
    }
    last
}

fn open_any(paths: &[&str]) -> Outcome {
    each(paths, |path| Outcome::of(File::open(path), &ABSENT))
}

fn open_write_any(paths: &[&str]) -> Outcome {
    each(paths, open_write_or_absent)
}

/// Through when a byte can be read; a masked file opens and is empty.
fn read_some(paths: &[&str]) -> Outcome {
    each(paths, |path| {
        let read = File::open(path).and_then(|mut file| file.read(&mut [0; 64]));
        match read {
            Ok(0) => Outcome::Refused("empty".to_owned()),
            other => Outcome::of(other, &ABSENT),
        }
    })
}

fn disks() -> Outcome {
    let names = fs::read_dir("/dev").into_iter().flatten().flatten().filter(|entry| {
        use std::os::unix::fs::FileTypeExt as _;
        entry.file_type().is_ok_and(|kind| kind.is_block_device())
    });
    let found: Vec<String> = names.map(|n| n.file_name().to_string_lossy().into_owned()).collect();
    match found.first() {
        Some(_) => Outcome::Through(found.join(" ")),
        None => open_any(&["/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/dm-0"]),
    }
}

fn replace_guest() -> Outcome {
    let _made = fs::write("/work/.guest", b"x");
    let outcome = Outcome::of(
        fs::rename("/work/.guest", "/cofferdam/guest"),
        &[libc::EROFS, libc::EACCES, libc::EPERM, libc::EXDEV, libc::EBUSY],
    );
    let _gone = fs::remove_file("/work/.guest");
    outcome
}

fn remove_etc() -> Outcome {
    // Moved and not removed, so that it could be moved back.
    let moved = fs::rename("/etc/hosts", "/etc/hosts.attack");
    if moved.is_ok() {
        let _back = fs::rename("/etc/hosts.attack", "/etc/hosts");
    }
    Outcome::of(moved, &[libc::EROFS, libc::EACCES, libc::EPERM, libc::EXDEV, libc::EBUSY])
}

fn chmod_guest() -> Outcome {
    use std::os::unix::fs::PermissionsExt as _;
    Outcome::of(fs::set_permissions("/cofferdam/guest", fs::Permissions::from_mode(0o755)), &CLOSED)
}

fn write_through_link() -> Outcome {
    let link = "/work/.link";
    let _old = fs::remove_file(link);
    let _made = std::os::unix::fs::symlink("/etc/passwd", link);
    let outcome = open_write(link);
    let _gone = fs::remove_file(link);
    outcome
}

fn hard_link() -> Outcome {
    let made = fs::hard_link("/etc/passwd", "/work/.hard");
    let _gone = fs::remove_file("/work/.hard");
    Outcome::of(made, &[libc::EXDEV, libc::EPERM, libc::EACCES, libc::EROFS])
}

fn rename_work() -> Outcome {
    let moved = fs::rename("/work", "/work2");
    Outcome::of(moved, &[libc::EROFS, libc::EACCES, libc::EPERM, libc::EBUSY, libc::EXDEV])
}

/// Writes into a private mapping of a read-only file by way of `/proc/self/mem`, which ignores the
/// mapping's protection: the file behind must not change.
fn proc_mem() -> Outcome {
    let attempt = || -> io::Result<bool> {
        use std::os::fd::AsRawFd as _;
        let mut file = File::open("/etc/passwd")?;
        // SAFETY: a fresh mapping of one page of an open file.
        let place = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut memory = File::options().write(true).open("/proc/self/mem")?;
        memory.seek(io::SeekFrom::Start(place as u64))?;
        let _refused = memory.write(b"attack");
        let mut begin = [0; 6];
        file.read_exact(&mut begin)?;
        Ok(&begin == b"attack")
    };
    match attempt() {
        Ok(changed) => Outcome::through_if(changed, "written into a read-only mapping"),
        Err(error) => Outcome::errno(errno_of(&error), &CLOSED),
    }
}

fn cgroup_directories() -> Vec<std::path::PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    let below = fs::read_dir(top).into_iter().flatten().flatten().map(|entry| entry.path());
    std::iter::once(top.to_owned()).chain(below.filter(|path| path.is_dir())).collect()
}

fn cgroup(files: &[&str]) -> Outcome {
    let mut last = Outcome::Refused("no such file".to_owned());
    for directory in cgroup_directories() {
        for file in files {
            last = open_write_or_absent(&directory.join(file).to_string_lossy());
            if matches!(last, Outcome::Through(_)) {
                return last;
            }
        }
    }
    last
}

fn cgroup_child() -> Outcome {
    let mut last = Outcome::Refused("no such directory".to_owned());
    for directory in cgroup_directories() {
        let made = fs::create_dir(directory.join("attack"));
        let _gone = fs::remove_dir(directory.join("attack"));
        last = Outcome::of(made, &ABSENT);
        if matches!(last, Outcome::Through(_)) {
            return last;
        }
    }
    last
}

fn exec_from_shm() -> Outcome {
    if let Err(error) = fs::copy("/proc/self/exe", "/dev/shm/.attack") {
        return Outcome::Through(format!("could not be tried: {error}"));
    }
    let started = std::process::Command::new("/dev/shm/.attack").arg("whoami").output();
    let _gone = fs::remove_file("/dev/shm/.attack");
    Outcome::of(started, &CLOSED)
}

/// The dynamic loader maps a program itself: `noexec` must hold for that too.
fn interpreter() -> Outcome {
    let loaders =
        ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"];
    let Some(loader) = loaders.iter().find(|path| Path::new(path).exists()) else {
        return Outcome::Refused("no loader here".to_owned());
    };
    if let Err(error) = fs::copy("/bin/true", "/dev/shm/.true") {
        return Outcome::Through(format!("could not be tried: {error}"));
    }
    let run = |program: &str| std::process::Command::new(loader).arg(program).output();
    let (from_usr, from_shm) = (run("/bin/true"), run("/dev/shm/.true"));
    let _gone = fs::remove_file("/dev/shm/.true");
    match (from_usr, from_shm) {
        (Ok(usr), Ok(shm)) if usr.status.success() => {
            Outcome::through_if(shm.status.success(), "the loader's own refusal")
        }
        (usr, _) => Outcome::Through(format!("could not be tried: {usr:?}")),
    }
}

fn host_file() -> Outcome {
    let path = crate::runner::parameter("host_file");
    if path.is_empty() {
        return Outcome::Refused("no file named".to_owned());
    }
    each(
        &[
            &path,
            &format!("/proc/1/root{path}"),
            &format!("/proc/self/root{path}"),
            &format!("/../..{path}"),
        ],
        |path| Outcome::of(File::open(path), &ABSENT),
    )
}

fn homes() -> Outcome {
    each(
        &[
            "/root/.ssh",
            "/root/.bashrc",
            "/home",
            "/etc/shadow",
            "/var/lib/dpkg/status",
            "/var/lib/docker",
            "/boot",
            "/etc/ssh",
        ],
        |path| match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => {
                match fs::read_dir(path).map(|mut list| list.next().is_some()) {
                    Ok(true) => Outcome::Through("has entries".to_owned()),
                    Ok(false) => Outcome::Refused("empty".to_owned()),
                    Err(error) => Outcome::errno(errno_of(&error), &ABSENT),
                }
            }
            Ok(_) => Outcome::of(File::open(path).and_then(|mut f| f.read(&mut [0])), &ABSENT),
            Err(error) => Outcome::errno(errno_of(&error), &ABSENT),
        },
    )
}
