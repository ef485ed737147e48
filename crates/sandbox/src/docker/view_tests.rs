//! Over directories and texts that stand in for the kernel's.

use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn asked() -> Limits {
    Limits { memory_bytes: 1000, pids: 64, cpu_millis: 500, work_bytes: 1, work_files: 1 }
}

#[test]
fn only_a_cgroup_that_names_the_container_is_taken() {
    let root = tree(&[(&format!("m/docker/{ID}/x"), ""), ("m/docker/other/x", "")]);
    let point = root.path().join("m");
    let mounts = format!("30 20 0:1 / {} rw - cgroup cgroup rw,memory\n", point.display());
    let found = directories(&format!("4:memory:/docker/{ID}\n"), &mounts, ID);
    assert_eq!(found, [point.join("docker").join(ID)]);
    for foreign in ["4:memory:/docker/other\n", "4:memory:/\n", "", "0::/\n", "nonsense"] {
        assert_eq!(directories(foreign, &mounts, ID), Vec::<PathBuf>::new(), "{foreign}");
    }
    // An id that is none does not match everything.
    assert_eq!(directories("4:memory:/docker/other\n", &mounts, ""), Vec::<PathBuf>::new());
}

#[test]
fn the_scope_of_systemd_on_version_2_is_found() {
    let scope = format!("system.slice/docker-{ID}.scope");
    let root = tree(&[(&format!("{scope}/memory.max"), "1000\n")]);
    let mounts = format!("30 20 0:1 / {} rw - cgroup2 cgroup2 rw\n", root.path().display());
    let found = directories(&format!("0::/{scope}\n"), &mounts, ID);
    assert_eq!(found, [root.path().join(scope)]);
}

#[test]
fn version_1_limits_that_hold_and_that_do_not() {
    let root = tree(&[
        ("memory/memory.limit_in_bytes", "1000\n"),
        ("memory/memory.memsw.limit_in_bytes", "1000\n"),
        ("pids/pids.max", "64\n"),
        ("cpu/cpu.cfs_quota_us", "50000\n"),
        ("cpu/cpu.cfs_period_us", "100000\n"),
    ]);
    let dirs: Vec<PathBuf> = ["memory", "pids", "cpu"].map(|d| root.path().join(d)).to_vec();
    let seen = Seen::read(&dirs);
    assert!(seen.memory(asked().memory_bytes).is_enforced());
    assert_eq!((seen.pids, seen.cpu_millis), (Some(64), Some(500)));
    fs::write(root.path().join("memory/memory.memsw.limit_in_bytes"), "9000\n").unwrap();
    assert!(matches!(Seen::read(&dirs).memory(1000), LayerStatus::Degraded { .. }));
    fs::write(root.path().join("memory/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
    assert!(matches!(Seen::read(&dirs).memory(1000), LayerStatus::Absent { .. }));
}

#[test]
fn version_2_limits_that_hold_and_that_do_not() {
    let root = tree(&[
        ("g/memory.max", "1000\n"),
        ("g/memory.swap.max", "0\n"),
        ("g/pids.max", "max\n"),
        ("g/cpu.max", "max 100000\n"),
    ]);
    let seen = Seen::read(&[root.path().join("g")]);
    assert!(seen.memory(1000).is_enforced());
    assert!(!at_most("process", seen.pids, 64).is_enforced());
    assert!(!at_most("processor", seen.cpu_millis, 500).is_enforced());
    fs::write(root.path().join("g/cpu.max"), "60000 100000\n").unwrap();
    assert_eq!(Seen::read(&[root.path().join("g")]).cpu_millis, Some(600));
}

#[test]
fn a_process_that_is_not_the_containers_gives_no_view() {
    let own = i64::from(std::process::id());
    assert!(HostView::of(own, ID).is_none());
    assert!(HostView::of(0, ID).is_none() && HostView::of(-1, ID).is_none());
}
