//! Version 2 over a directory that stands in for the kernel's, and detection on real layouts.

use std::fs;
use std::io;
use std::path::Path;

use cofferdam_run::fact::ResourceUse;
use cofferdam_run::posture::{Layer, LayerStatus};
use cofferdam_run::spec::Resources;

use super::hierarchy::Base;
use super::*;
use crate::spec::Hardening;

fn ids() -> (InstanceId, RunId) {
    (InstanceId::from_entropy([7; 10]), RunId::from_entropy([9; 5]))
}

/// Makes a directory as a version 2 kernel would.
fn kernel_mkdir(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    for (file, content) in [
        ("cgroup.procs", ""),
        ("cgroup.subtree_control", ""),
        ("cpu.max", "max 100000\n"),
        ("memory.events", "low 0\noom 0\noom_kill 0\n"),
        ("memory.max", "max\n"),
        ("memory.swap.max", "max\n"),
        ("pids.max", "max\n"),
    ] {
        fs::write(path.join(file), content)?;
    }
    Ok(())
}

fn fake_v2() -> (tempfile::TempDir, Hierarchies) {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("delegated");
    kernel_mkdir(&path).unwrap();
    let base = Base { path, version: Version::V2, controllers: Controller::ALL.to_vec() };
    (temp, Hierarchies { list: vec![base] })
}

fn limits() -> crate::spec::Limits {
    Hardening::for_run(&Resources::default()).limits
}

#[test]
fn version_2_gets_memory_without_swap_pids_and_cpu() {
    let (_temp, hierarchies) = fake_v2();
    let (instance, run) = ids();
    let made = RunCgroups::create_with(&hierarchies, &instance, &run, &limits(), kernel_mkdir);
    assert!(made.read_back.iter().all(|r| r.status.is_enforced()), "{:?}", made.read_back);
    let [directory] = made.directories.as_slice() else { panic!("{:?}", made.directories) };
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
    assert_eq!(read("memory.max"), (4u64 << 30).to_string());
    assert_eq!(read("memory.swap.max"), "0");
    assert_eq!(read("pids.max"), "512");
    assert_eq!(read("cpu.max"), "200000 100000");
    for parent in directory.ancestors().skip(1).take(3) {
        let handed = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap();
        assert_eq!(handed, "+memory +pids +cpu", "{}", parent.display());
    }
    assert_eq!(runs_of(&hierarchies, &instance), vec![run.clone()]);
    assert_eq!(directories_of(&hierarchies, &instance, &run), made.directories);
}

#[tokio::test]
async fn version_2_removal_leaves_no_directory_of_ours() {
    let (temp, hierarchies) = fake_v2();
    let (instance, run) = ids();
    let made = RunCgroups::create_with(&hierarchies, &instance, &run, &limits(), kernel_mkdir);
    removal::remove_with(&made.directories, |path| fs::remove_dir_all(path)).await.unwrap();
    assert!(!temp.path().join("delegated").join(TOP).exists());
    assert!(temp.path().join("delegated").exists());
}

#[tokio::test]
async fn removal_leaves_the_cgroups_of_another_run() {
    let (_temp, hierarchies) = fake_v2();
    let (instance, run) = ids();
    let other = RunId::from_entropy([1; 5]);
    let made = RunCgroups::create_with(&hierarchies, &instance, &run, &limits(), kernel_mkdir);
    RunCgroups::create_with(&hierarchies, &instance, &other, &limits(), kernel_mkdir);
    removal::remove_with(&made.directories, |path| fs::remove_dir_all(path)).await.unwrap();
    assert_eq!(runs_of(&hierarchies, &instance), vec![other]);
}

#[test]
fn second_cgroup_of_a_run_is_refused() {
    let (_temp, hierarchies) = fake_v2();
    let (instance, run) = ids();
    RunCgroups::create_with(&hierarchies, &instance, &run, &limits(), kernel_mkdir);
    let again = RunCgroups::create_with(&hierarchies, &instance, &run, &limits(), kernel_mkdir);
    assert!(again.directories.is_empty());
    assert!(again.read_back.iter().all(|r| matches!(r.status, LayerStatus::Absent { .. })));
}

#[test]
fn limit_that_the_kernel_does_not_take_is_absent() {
    let (_temp, hierarchies) = fake_v2();
    let (instance, run) = ids();
    let made = RunCgroups::create_with(&hierarchies, &instance, &run, &limits(), |path| {
        kernel_mkdir(path)?;
        // As a kernel without the controller: the file is not there.
        fs::remove_file(path.join("pids.max"))
    });
    let of = |layer| made.read_back.iter().find(|r| r.layer == layer).unwrap().status.clone();
    assert!(of(Layer::MemoryLimit).is_enforced());
    assert!(matches!(of(Layer::PidsLimit), LayerStatus::Absent { .. }));
}

#[test]
fn no_hierarchy_means_no_limit_and_says_so() {
    let (instance, run) = ids();
    let made = RunCgroups::create(&Hierarchies::default(), &instance, &run, &limits());
    assert_eq!(made.read_back.len(), 3);
    assert!(made.read_back.iter().all(|r| matches!(r.status, LayerStatus::Absent { .. })));
}

#[test]
fn oom_kill_is_read_in_both_versions() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str, file: &str, content: &str| {
        let directory = temp.path().join(name);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(file), content).unwrap();
        vec![directory]
    };
    assert!(oom_killed(&at("a", "memory.events", "oom 3\noom_kill 1\noom_group_kill 0\n")));
    assert!(!oom_killed(&at("b", "memory.events", "oom 3\noom_kill 0\noom_group_kill 2\n")));
    assert!(oom_killed(&at(
        "c",
        "memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    )));
    assert!(!oom_killed(&at(
        "d",
        "memory.oom_control",
        "oom_kill_disable 1\nunder_oom 1\noom_kill 0\n"
    )));
    assert!(!oom_killed(&[temp.path().join("gone")]));
}

#[test]
fn counters_are_read_in_both_versions_and_what_is_missing_is_none() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str, files: &[(&str, &str)]| {
        let directory = temp.path().join(name);
        fs::create_dir(&directory).unwrap();
        for (file, content) in files {
            fs::write(directory.join(file), content).unwrap();
        }
        directory
    };
    let two = at(
        "v2",
        &[
            ("cpu.stat", "usage_usec 2500000\nuser_usec 1\nnr_throttled 3\nthrottled_usec 1500\n"),
            ("memory.peak", "4096\n"),
            ("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
            ("pids.peak", "17\n"),
            ("pids.events", "max 5\n"),
        ],
    );
    let used = ResourceUse {
        cpu_ms: Some(2_500),
        memory_peak_bytes: Some(4_096),
        oom_kills: Some(2),
        pids_peak: Some(17),
        pids_refused: Some(5),
        cpu_throttled_ms: Some(1),
        ..ResourceUse::default()
    };
    assert_eq!(usage::read(&[two]), used);
    let one = [
        at("cpu", &[("cpu.stat", "nr_periods 9\nthrottled_time 1500000\n")]),
        at("cpuacct", &[("cpuacct.usage", "2500000000\n")]),
        at(
            "memory",
            &[
                ("memory.max_usage_in_bytes", "4096\n"),
                ("memory.oom_control", "under_oom 0\noom_kill 2\n"),
            ],
        ),
        at("pids", &[("pids.events", "max 5\n")]),
    ];
    assert_eq!(usage::read(&one), ResourceUse { pids_peak: None, ..used });
    assert_eq!(usage::read(&[temp.path().join("gone")]), ResourceUse::default());
}

#[test]
fn processor_time_is_counted_where_version_1_counts_it_apart() {
    let mounts = "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n";
    let found = Hierarchies::from_text(mounts, "", true, |_| String::new());
    assert_eq!(found.list.len(), 1);
    assert!(found.list[0].controllers.is_empty());
}

const HYBRID: &str = "\
34 33 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
38 33 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 33 0:34 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
43 33 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const UNIFIED: &str =
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn hybrid_layout_uses_version_1_for_all_three() {
    let found = Hierarchies::from_text(HYBRID, "0::/\n", true, |_| String::new());
    let summary: Vec<(&str, Version, usize)> = found
        .list
        .iter()
        .map(|b| (b.path.to_str().unwrap(), b.version, b.controllers.len()))
        .collect();
    assert_eq!(
        summary,
        [
            ("/sys/fs/cgroup/cpu,cpuacct", Version::V1, 1),
            ("/sys/fs/cgroup/memory", Version::V1, 1),
            ("/sys/fs/cgroup/pids", Version::V1, 1),
        ]
    );
}

#[test]
fn ordinary_user_works_in_its_own_version_2_cgroup_only() {
    // The second text is what the first becomes once the host process has moved to its leaf.
    for own in [
        "0::/user.slice/user-1000.slice/run-7.scope\n",
        "0::/user.slice/user-1000.slice/run-7.scope/cofferdam-host\n",
    ] {
        works_in_its_own_scope(own);
    }
}

fn works_in_its_own_scope(own: &str) {
    let controllers = |path: &Path| {
        assert_eq!(path, Path::new("/sys/fs/cgroup/user.slice/user-1000.slice/run-7.scope"));
        "memory pids".to_owned()
    };
    let found = Hierarchies::from_text(UNIFIED, own, false, controllers);
    assert_eq!(found.list.len(), 1);
    assert_eq!(found.list[0].controllers, [Controller::Memory, Controller::Pids]);
}

#[test]
fn host_moves_itself_to_a_leaf_of_its_delegated_cgroup() {
    let (_temp, hierarchies) = fake_v2();
    let base = &hierarchies.list[0].path;
    setup::step_aside(base, &kernel_mkdir).unwrap();
    assert_eq!(fs::read_to_string(base.join(HOST_LEAF).join("cgroup.procs")).unwrap(), "0");
    setup::step_aside(base, &kernel_mkdir).unwrap();
}
