//! What a program inside a Docker sandbox has and has not. needs: docker

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod docker_support;

use cofferdam_run::posture::Layer;
use docker_support::{Lab, layers, not_enforced, small};

/// Runs `script`, which must succeed, and gives its output lines.
async fn lines(script: &str) -> Vec<String> {
    let outcome = Lab::shell(script).await.run(small()).await;
    assert_eq!(outcome.exit.code, Some(0), "{outcome:?}");
    outcome.stdout.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn the_guest_is_an_unprivileged_user_without_groups() {
    assert_eq!(lines("id -u; id -g; id -G; whoami").await, ["10001", "10001", "10001", "agent"]);
}

#[tokio::test]
async fn all_capability_sets_are_empty_and_no_privilege_can_be_gained() {
    let status = lines("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status").await;
    let value = |name: &str| {
        let line = status.iter().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(value(set), "0000000000000000", "{set}");
    }
    assert_eq!(value("NoNewPrivs"), "1");
    assert_eq!(value("Seccomp"), "2");
}

#[tokio::test]
async fn our_own_filter_denies_what_the_engines_default_admits() {
    // keyctl, io_uring_setup, unshare(CLONE_NEWUSER): by number, since no tool wraps them all.
    let numbers = if cfg!(target_arch = "aarch64") { [219, 425, 97] } else { [250, 425, 272] };
    let script = format!(
        "python3 -c \"
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for number, argument in zip({numbers:?}, [0, 8, 0x10000000]):
    got = libc.syscall(number, argument, 0, 0, 0, 0)
    print(got, errno.errorcode.get(ctypes.get_errno()))
\""
    );
    assert_eq!(lines(&script).await, ["-1 EPERM", "-1 EPERM", "-1 EPERM"]);
}

#[tokio::test]
async fn the_root_is_read_only_and_work_and_tmp_are_writable() {
    let script = r#"
for place in / /etc /usr/bin /cofferdam /dev /sys /proc/sys/kernel/hostname; do
    if [ -d $place ]; then target=$place/x; else target=$place; fi
    if ( echo x > $target ) 2>/dev/null; then echo "$place writable"; fi
done
for place in /work /tmp /dev/shm; do
    echo x > $place/x && echo "$place ok"
done
stat -c '%u:%g %a' /work
printf '#!/bin/sh\necho runs\n' > /tmp/p; chmod +x /tmp/p; /tmp/p
grep -c ' / / ro[ ,]' /proc/self/mountinfo
"#;
    assert_eq!(
        lines(script).await,
        ["/work ok", "/tmp ok", "/dev/shm ok", "10001:10001 755", "runs", "1"]
    );
}

#[tokio::test]
async fn there_is_no_interface_but_loopback_and_nothing_of_the_hosts_names() {
    let seen = lines("ls /sys/class/net; hostname; grep -cv '^#' /etc/hosts; grep -E '^(nameserver|search|domain)' /etc/resolv.conf | sort").await;
    assert_eq!(seen[..2], ["lo", "cofferdam"]);
    for line in &seen[3..] {
        assert!(matches!(line.as_str(), "nameserver 127.0.0.1" | "search ."), "{line}");
    }
}

#[tokio::test]
async fn the_environment_holds_nothing_but_path_and_home() {
    let mut names: Vec<String> = lines("env")
        .await
        .iter()
        .filter_map(|l| l.split_once('=').map(|(n, _)| n.to_owned()))
        .collect();
    names.sort();
    names.retain(|name| name != "PWD" && name != "_" && name != "SHLVL" && name != "OLDPWD");
    assert_eq!(names, ["HOME", "HOSTNAME", "PATH"]);
}

#[tokio::test]
async fn git_python_and_make_work_inside() {
    let script = r"
cd /work && export HOME=/work/home && mkdir home
git init -q repo && cd repo && git config user.name a && git config user.email a@example.invalid
echo hello > f && git add f && git commit -qm first && git log --format=%s
python3 -c 'import json, ssl, sqlite3, hashlib, subprocess; print(json.dumps({1: 2}))'
printf 'all:\n\t@echo made\n' > Makefile && make
git bundle create -q ../b --all && git clone -q ../b ../clone && cat ../clone/f
echo abc | sed s/b/x/ | awk '{print $1}' | grep -o axc
";
    assert_eq!(lines(script).await, ["first", "{\"1\": 2}", "made", "hello", "axc"]);
}

#[tokio::test]
async fn everything_that_was_asked_for_is_read_back() {
    let outcome = Lab::shell("true").await.run(small()).await;
    assert_eq!(not_enforced(&outcome.evidence.read_back), Vec::<&_>::new());
    let expected: Vec<Layer> = Layer::ALL.into_iter().filter(|l| *l != Layer::Landlock).collect();
    assert_eq!(layers(&outcome.evidence.read_back), expected);
    assert!(outcome.evidence.root.starts_with("sha256:"));
    assert!(outcome.evidence.engine_version.starts_with("Docker "));
}
