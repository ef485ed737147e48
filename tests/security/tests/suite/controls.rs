//! Negative controls. Each takes away everything else that holds an attempt, sees it refused by the one
//! layer that is left, takes that away too, and sees it get through: so it is this layer that holds it,
//! and the suite turns red without it.

use std::path::Path;

use cofferdam_sandbox::seccomp::SeccompProfile;
use cofferdam_sandbox::spec::Hardening;

use crate::bare::{Plant, attack, ordinary, tight};
use crate::world::{EngineName, bin_dir};

/// One layer, alone and then off.
struct Control {
    /// What a sandbox starts from.
    from: fn() -> Hardening,
    /// Takes away what else would hold.
    alone: fn(&mut Hardening),
    /// Takes the layer away.
    off: fn(&mut Hardening),
    /// Attempts that must be refused before and get through after.
    flips: &'static [&'static str],
    /// Things in the work volume.
    plant: Option<Plant>,
}

impl Control {
    const fn new(
        alone: fn(&mut Hardening),
        off: fn(&mut Hardening),
        flips: &'static [&'static str],
    ) -> Self {
        Self { from: ordinary, alone, off, flips, plant: None }
    }

    const fn tight(off: fn(&mut Hardening), flips: &'static [&'static str]) -> Self {
        Self { from: tight, alone: nothing, off, flips, plant: None }
    }

    const fn planted(mut self) -> Self {
        self.plant = Some(plant);
        self
    }

    fn show(&self, engine: EngineName) {
        let mut hardening = (self.from)();
        (self.alone)(&mut hardening);
        let names = || self.flips.iter().copied();
        let held = attack(engine, hardening.clone(), self.flips, self.plant);
        held.assert_all_held(names());
        (self.off)(&mut hardening);
        attack(engine, hardening, self.flips, self.plant).assert_all_through(names());
    }
}

fn nothing(_: &mut Hardening) {}

fn root(hardening: &mut Hardening) {
    (hardening.uid, hardening.gid) = (0, 0);
}

/// A set-user-id program of root and a copy of `/dev/zero`.
pub(crate) fn plant(work: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let program = work.join("planted-suid");
    std::fs::copy(bin_dir().join("cofferdam-attacker"), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let node =
        std::ffi::CString::new(work.join("planted-zero").into_os_string().into_encoded_bytes());
    let node = node.unwrap();
    // SAFETY: a valid path, below a directory of this test.
    let made = unsafe { libc::mknod(node.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 5)) };
    assert_eq!(made, 0, "mknod: {}", std::io::Error::last_os_error());
    std::fs::set_permissions(work.join("planted-zero"), std::fs::Permissions::from_mode(0o666))
        .unwrap();
}

const USER: Control = Control::new(nothing, root, &["user.is_root", "user.foreign_group"]);

const CAPABILITIES: Control = Control::new(
    root,
    |h| h.drop_all_capabilities = false,
    &["caps.any_set", "caps.raw_icmp", "caps.raw_ipv6", "caps.mknod_memory", "user.setgroups"],
);

const NO_NEW_PRIVILEGES: Control =
    Control::new(nothing, |h| h.no_new_privileges = false, &["nnp.bit"]);

const NO_NEW_PRIVILEGES_AT_A_PROGRAM: Control = Control::new(
    |h| h.work.no_setuid = false,
    |h| h.no_new_privileges = false,
    &["planted.setuid_program"],
)
.planted();

const NO_SETUID_MOUNT: Control = Control::new(
    |h| h.no_new_privileges = false,
    |h| h.work.no_setuid = false,
    &["planted.setuid_program"],
)
.planted();

const NO_DEVICE_MOUNT: Control =
    Control::new(nothing, |h| h.work.no_devices = false, &["planted.device_node"]).planted();

const SECCOMP: Control = Control::new(
    nothing,
    |h| h.seccomp = SeccompProfile::none(),
    &[
        "seccomp.ptrace_traceme",
        "seccomp.process_vm_readv",
        "seccomp.process_vm_writev",
        "seccomp.pidfd_getfd",
        "seccomp.unshare_user",
        "seccomp.unshare_net",
        "seccomp.clone_user",
        "seccomp.clone3",
        "seccomp.keyctl",
        "seccomp.add_key",
        "seccomp.open_tree",
        "seccomp.name_to_handle_at",
        "seccomp.fanotify_init",
        "seccomp.clock_adjtime",
        "seccomp.move_pages",
        "seccomp.set_mempolicy",
        "seccomp.tiocsti",
        "seccomp.tiocsti_upper_bits",
        "socket.netlink_kobject",
        "socket.netlink_audit",
    ],
);

const SECCOMP_NAMESPACES: Control = Control::new(
    nothing,
    |h| h.seccomp.rules.retain(|rule| !rule.names.iter().any(|name| name == "clone")),
    &["seccomp.clone_user", "seccomp.clone_net"],
);

const READ_ONLY_ROOT: Control = Control::new(
    |h| {
        root(h);
        h.landlock = None;
    },
    |h| h.read_only_root = false,
    &["root.create_in_root", "root.create_in_etc", "root.open_passwd"],
);

const LANDLOCK: Control = Control::new(
    |h| {
        root(h);
        h.read_only_root = false;
    },
    |h| h.landlock = None,
    &["root.create_in_root", "root.create_in_etc", "root.open_passwd", "root.remove_etc_file"],
);

fn unscoped(hardening: &mut Hardening) {
    if let Some(landlock) = &mut hardening.landlock {
        landlock.scoped = false;
    }
}

const LANDLOCK_SCOPE: Control = Control::new(
    |h| h.namespaces.network = false,
    unscoped,
    &["network.abstract_socket_of_the_host"],
);

const NETWORK: Control = Control::new(
    unscoped,
    |h| h.namespaces.network = false,
    &["network.interfaces", "network.listener_of_the_host", "network.abstract_socket_of_the_host"],
);

const PROCESS_IDS: Control = Control::new(
    nothing,
    |h| h.namespaces.pid = false,
    &["namespaces.see_host_process", "namespaces.signal_host_process", "namespaces.many_processes"],
);

const IPC: Control =
    Control::new(nothing, |h| h.namespaces.ipc = false, &["namespaces.shared_memory_of_the_host"]);

const UTS: Control = Control::new(nothing, |h| h.namespaces.uts = false, &["namespaces.host_name"]);

const CGROUP: Control =
    Control::new(nothing, |h| h.namespaces.cgroup = false, &["namespaces.cgroup_path"]);

const MASKED_PATHS: Control =
    Control::new(nothing, |h| h.masked_paths.clear(), &["proc.interrupts"]);

const READ_ONLY_PATHS: Control =
    Control::new(root, |h| h.read_only_paths.clear(), &["proc.core_pattern", "proc.vm_settings"]);

const DEVICES: Control = Control::new(
    |h| {
        root(h);
        h.drop_all_capabilities = false;
    },
    |h| h.devices.push("kmsg".into()),
    &["devices.kernel_log"],
);

/// Reading the kernel's log needs a capability that an engine does not give to root either.
const DEVICES_OF_THE_ENGINE: Control = Control::new(
    |h| {
        root(h);
        h.drop_all_capabilities = false;
    },
    |h| h.devices.push("fuse".into()),
    &["devices.fuse"],
);

const NOEXEC: Control = Control::new(
    nothing,
    |h| h.tmpfs.iter_mut().for_each(|tmpfs| tmpfs.exec = true),
    &["tmpfs.exec_from_shm", "tmpfs.interpreter_from_shm"],
);

const TMPFS: Control = Control::tight(
    |h| {
        h.limits.memory_bytes = 512 << 20;
        for tmpfs in &mut h.tmpfs {
            (tmpfs.size_bytes, tmpfs.inodes) = (64 << 20, 10_000);
        }
    },
    &["exhaust.tmp_bytes", "exhaust.tmp_files", "exhaust.shm_bytes"],
);

const RLIMITS: Control = Control::tight(|h| h.rlimits.clear(), &["exhaust.open_files"]);

const PROCESSES: Control = Control::tight(
    |h| (h.limits.pids, h.limits.memory_bytes) = (1024, 512 << 20),
    &["exhaust.processes", "exhaust.threads", "exhaust.zombies"],
);

const MEMORY: Control = Control::tight(
    |h| h.limits.memory_bytes = 1 << 30,
    &["exhaust.memory", "exhaust.memory_in_memfd", "exhaust.shared_memory"],
);

macro_rules! controls {
    ($engine:ident: $($name:ident = $control:ident),* $(,)?) => {
        $( #[test] fn $name() { super::$control.show(crate::world::EngineName::$engine) } )*
    };
}

mod native {
    controls!(Native:
        without_the_unprivileged_user = USER,
        without_dropped_capabilities = CAPABILITIES,
        without_no_new_privileges = NO_NEW_PRIVILEGES,
        without_no_new_privileges_at_a_program_of_root = NO_NEW_PRIVILEGES_AT_A_PROGRAM,
        without_nosuid_on_work = NO_SETUID_MOUNT,
        without_nodev_on_work = NO_DEVICE_MOUNT,
        without_the_filter = SECCOMP,
        without_one_rule_of_the_filter = SECCOMP_NAMESPACES,
        without_the_read_only_root = READ_ONLY_ROOT,
        without_landlock = LANDLOCK,
        without_the_scope_of_landlock = LANDLOCK_SCOPE,
        without_a_network_namespace = NETWORK,
        without_a_process_namespace = PROCESS_IDS,
        without_an_ipc_namespace = IPC,
        without_a_host_name_namespace = UTS,
        without_a_cgroup_namespace = CGROUP,
        without_masked_paths = MASKED_PATHS,
        without_read_only_paths = READ_ONLY_PATHS,
        with_one_more_device = DEVICES,
        without_noexec = NOEXEC,
        without_bounds_of_tmpfs = TMPFS,
        without_process_limits = RLIMITS,
        without_a_pids_limit = PROCESSES,
        without_a_memory_limit = MEMORY,
    );
}

/// What the guest gives by itself (Landlock) and what an engine has no say in (flags of the volume's
/// mount) is not here, nor the namespaces of processes and of System V objects: an engine that is asked
/// to share those changes other things too, and the read-back refuses them.
mod docker {
    controls!(Docker:
        without_the_unprivileged_user = USER,
        without_dropped_capabilities = CAPABILITIES,
        without_no_new_privileges = NO_NEW_PRIVILEGES,
        without_the_filter = SECCOMP,
        without_one_rule_of_the_filter = SECCOMP_NAMESPACES,
        without_the_read_only_root = READ_ONLY_ROOT,
        without_a_network_namespace = NETWORK,
        without_a_host_name_namespace = UTS,
        without_a_cgroup_namespace = CGROUP,
        without_masked_paths = MASKED_PATHS,
        without_read_only_paths = READ_ONLY_PATHS,
        with_one_more_device = DEVICES_OF_THE_ENGINE,
        without_noexec = NOEXEC,
        without_bounds_of_tmpfs = TMPFS,
        without_process_limits = RLIMITS,
        without_a_pids_limit = PROCESSES,
        without_a_memory_limit = MEMORY,
    );
}
