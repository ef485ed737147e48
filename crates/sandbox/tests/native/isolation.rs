//! What a process inside is, sees and may do.

use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::posture::Layer;

use crate::harness::{Bench, small};

/// Runs a script that must succeed, and returns what it wrote.
async fn inside(script: &str) -> String {
    let outcome = Bench::new().run(script, &small()).await;
    assert_eq!(outcome.exit.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.teardown, TeardownOutcome::Removed, "{outcome:?}");
    outcome.stdout
}

/// A perl program that makes a system call and prints the error number, or 0.
fn call(number: i64, arguments: &str) -> String {
    format!("perl -e '$!=0; $r=syscall({number}{arguments}); print $r<0 ? $!+0 : 0, \"\\n\"'")
}

#[tokio::test]
async fn every_layer_is_enforced_on_this_kernel() {
    let outcome = Bench::new().run("exit 0", &small()).await;
    let mut seen: Vec<Layer> = Vec::new();
    for report in outcome.read_back.iter().chain(&outcome.outside) {
        assert!(report.status.is_enforced(), "{report:?}");
        seen.push(report.layer);
    }
    seen.sort();
    let mut all = Layer::ALL.to_vec();
    all.sort();
    assert_eq!(seen, all, "each layer has one observer");
}

#[tokio::test]
async fn process_is_10001_without_groups_capabilities_or_new_privileges() {
    let status = inside("cat /proc/self/status").await;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
            .unwrap_or_else(|| panic!("{name} in {status}"))
            .trim()
            .to_owned()
    };
    assert_eq!(field("Uid"), "10001\t10001\t10001\t10001");
    assert_eq!(field("Gid"), "10001\t10001\t10001\t10001");
    assert_eq!(field("Groups"), "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
}

#[tokio::test]
async fn host_sees_the_first_process_as_10001() {
    let bench = Bench::new();
    let mut running = bench.start("cat >/dev/null", &small()).await;
    let child = std::fs::read_dir(bench.temp.path()).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(child.join("child.json")).unwrap();
    let pid = serde_json::from_str::<serde_json::Value>(&text).unwrap()["pid"].as_i64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("Uid:\t10001\t10001\t10001\t10001"), "{status}");
    drop(running.stdin);
    assert_eq!(running.control.wait().await.code, Some(0));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn only_loopback_exists_and_it_is_up() {
    let out =
        inside("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; cat /proc/net/if_inet6").await;
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some("lo"));
    assert!(lines.all(|l| l.ends_with(" lo")), "{out}");
    // A listener on loopback is reached; the address of another machine is not.
    let perl = r#"perl -MIO::Socket::INET -e '
        $s=IO::Socket::INET->new(Listen=>1,LocalAddr=>"127.0.0.1") or die "listen $!";
        IO::Socket::INET->new(PeerAddr=>"127.0.0.1",PeerPort=>$s->sockport) or die "connect $!";
        print "loop\n";
        IO::Socket::INET->new(PeerAddr=>"192.0.2.1",PeerPort=>9) or print $!+0, "\n"'"#;
    assert_eq!(inside(perl).await, format!("loop\n{}\n", libc::ENETUNREACH));
}

#[tokio::test]
async fn dangerous_calls_are_refused() {
    use libc::{EAFNOSUPPORT, ENOSYS, EPERM};
    let cases: Vec<(&str, i64, &str, i32)> = vec![
        ("keyctl", libc::SYS_keyctl, ",0,0,0", EPERM),
        ("io_uring_setup", libc::SYS_io_uring_setup, ",1,0", EPERM),
        ("bpf", libc::SYS_bpf, ",0,0,0", EPERM),
        ("userfaultfd", libc::SYS_userfaultfd, ",0", EPERM),
        ("perf_event_open", libc::SYS_perf_event_open, ",0,0,0,0,0", EPERM),
        ("ptrace", libc::SYS_ptrace, ",0,0,0,0", EPERM),
        ("process_vm_readv", libc::SYS_process_vm_readv, ",1,0,0,0,0,0", EPERM),
        ("unshare user", libc::SYS_unshare, ",0x10000000", EPERM),
        ("setns", libc::SYS_setns, ",0,0", EPERM),
        ("mount", libc::SYS_mount, ",0,0,0,0,0", EPERM),
        ("fsopen", libc::SYS_fsopen, ",0,0", EPERM),
        ("move_mount", libc::SYS_move_mount, ",0,0,0,0,0", EPERM),
        ("pivot_root", libc::SYS_pivot_root, ",0,0", EPERM),
        ("chroot", libc::SYS_chroot, ",0", EPERM),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, ",0,0,0", EPERM),
        ("clone newuser", libc::SYS_clone, ",0x10000000,0,0,0,0", EPERM),
        ("clone newnet", libc::SYS_clone, ",0x40000000,0,0,0,0", EPERM),
        ("clone3", libc::SYS_clone3, ",0,0", ENOSYS),
        ("a call newer than the table", 5_000, "", ENOSYS),
        ("an x32 call", 0x4000_0000 + libc::SYS_getpid, "", ENOSYS),
        ("AF_ALG", libc::SYS_socket, ",38,5,0", EAFNOSUPPORT),
        ("AF_VSOCK", libc::SYS_socket, ",40,1,0", EAFNOSUPPORT),
        ("AF_PACKET", libc::SYS_socket, ",17,3,0", EAFNOSUPPORT),
        ("AF_ALG with upper bits set", libc::SYS_socket, ",0x100000026,5,0", EAFNOSUPPORT),
        ("an unnamed family", libc::SYS_socket, ",60,1,0", EAFNOSUPPORT),
        ("TIOCSTI", libc::SYS_ioctl, ",0,0x5412,0", EPERM),
        ("TIOCSTI with upper bits set", libc::SYS_ioctl, ",0,0x100005412,0", EPERM),
        ("netlink of the firewall", libc::SYS_socket, ",16,3,12", EAFNOSUPPORT),
        ("SCTP", libc::SYS_socket, ",2,1,132", EAFNOSUPPORT),
        ("Multipath TCP", libc::SYS_socket, ",2,1,262", EAFNOSUPPORT),
        ("TIOCLINUX", libc::SYS_ioctl, ",0,0x541c,0", EPERM),
        ("a line discipline", libc::SYS_ioctl, ",0,0x5423,0", EPERM),
        ("sysfs", libc::SYS_sysfs, ",3,0,0", EPERM),
        ("generic netlink", libc::SYS_socket, ",16,3,16", EAFNOSUPPORT),
        ("crypto netlink", libc::SYS_socket, ",16,3,21", EAFNOSUPPORT),
        ("pidfd_getfd", libc::SYS_pidfd_getfd, ",0,0,0", EPERM),
        ("an ordinary terminal request, allowed", libc::SYS_ioctl, ",0,0x5413,0", libc::ENOTTY),
        ("AF_UNIX, allowed", libc::SYS_socket, ",1,1,0", 0),
        ("AF_INET, allowed", libc::SYS_socket, ",2,1,0", 0),
        ("routing netlink, allowed", libc::SYS_socket, ",16,3,0", 0),
        ("getpid, allowed", libc::SYS_getpid, "", 0),
    ];
    let script: Vec<String> = cases.iter().map(|(_, n, args, _)| call(*n, args)).collect();
    let out = inside(&script.join("\n")).await;
    let seen: Vec<(&str, i32)> =
        cases.iter().map(|c| c.0).zip(out.lines().map(|l| l.parse().unwrap())).collect();
    let wanted: Vec<(&str, i32)> = cases.iter().map(|c| (c.0, c.3)).collect();
    assert_eq!(seen, wanted);
}

#[tokio::test]
async fn nothing_is_writable_but_the_work_places() {
    let script = "
        for d in / /usr /usr/local /etc /cofferdam /dev /proc/sys/kernel /sys /sys/fs/cgroup; do
            if ( : > $d/probe ) 2>/dev/null; then echo written $d; fi
        done
        for f in /etc/passwd /usr/bin/true /proc/sys/kernel/hostname /proc/sysrq-trigger \
                 /cofferdam/guest /sys/fs/cgroup/*/*.max /sys/fs/cgroup/*/*limit_in_bytes; do
            if ( : >> $f ) 2>/dev/null; then echo opened $f; fi
        done
        for d in /work /tmp /dev/shm; do echo x > $d/probe && cat $d/probe; done
        echo x > /dev/null && echo null";
    assert_eq!(inside(script).await, "x\nx\nx\nnull\n");
}

/// A directory that mounts and modes leave open, in a tree where Landlock lets nothing be made.
#[tokio::test]
async fn landlock_refuses_what_mounts_and_modes_allow() {
    let bench = Bench::new();
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    std::fs::write(open.path().join("old"), "").unwrap();
    std::os::unix::fs::chown(open.path().join("old"), Some(10001), Some(10001)).unwrap();
    let script = "cd /dev/extra && stat -c %a . && \
                  { (: > new) 2>/dev/null || echo 'not made'; }; \
                  { mkdir d 2>/dev/null || echo 'no directory'; }; \
                  { rm -f old 2>/dev/null || echo 'not removed'; }; \
                  echo x > old && cat old; : > /work/new && echo 'made in work'";
    let engine = bench.engine(&["/bin/sh", "-c", script]).with_extra(open.path());
    let outcome = bench.run_engine(&engine, &bench.spec(&small())).await;
    let wanted = "777\nnot made\nno directory\nnot removed\nx\nmade in work\n";
    assert_eq!(outcome.stdout, wanted, "{outcome:?}");
}

#[tokio::test]
async fn nothing_else_of_the_host_is_visible() {
    let script = "
        for d in /root /home /var /opt /run /mnt /srv /boot /old_root /etc/shadow /etc/ssh \
                 /etc/ssl/private /etc/machine-id /sys/class /sys/devices; do
            if [ -e $d ]; then echo visible $d; fi
        done
        for f in /proc/kcore /proc/keys /proc/timer_list; do
            if [ -e $f ] && [ -n \"$(head -c1 $f | tr -d '\\0')\" ]; then echo readable $f; fi
        done
        cat /etc/hostname; hostname; id -un; ls / | tr '\\n' ' '";
    let out = inside(script).await;
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some("cofferdam"), "{out}");
    assert_eq!(lines.next(), Some("cofferdam"), "{out}");
    assert_eq!(lines.next(), Some("agent"), "{out}");
    for name in lines.next().unwrap_or_default().split(' ').filter(|n| !n.is_empty()) {
        let known = [
            "bin",
            "cofferdam",
            "dev",
            "etc",
            "lib",
            "lib32",
            "lib64",
            "libx32",
            "proc",
            "sbin",
            "sys",
            "tmp",
            "usr",
            "work",
        ];
        assert!(known.contains(&name), "{name} in {out}");
    }
}

#[tokio::test]
async fn certificates_and_tools_of_the_userland_work() {
    let out = inside(
        "git --version | cut -c1-3; test -s /etc/ssl/certs/ca-certificates.crt && echo ca; \
         awk 'BEGIN{print \"awk\"}'; cp /usr/bin/true /tmp/t && /tmp/t && echo exec; \
         stat -c %U /work; python3 -c 'print(1)' >/dev/null 2>&1; perl -e 'print \"perl\\n\"'",
    )
    .await;
    assert_eq!(out, "git\nca\nawk\nexec\nagent\nperl\n");
}

#[tokio::test]
async fn no_descriptor_or_variable_of_the_host_leaks_in() {
    // Descriptors of this process without close-on-exec, as a careless library leaves them.
    let leaked = leak_descriptors();
    // Reading the list takes a descriptor of its own, which is gone when its name is looked at.
    let script = "for fd in /proc/$$/fd/*; do [ -e $fd ] && echo ${fd##*/}; done; \
                  env | cut -d= -f1 | sort";
    let out = inside(script).await;
    let words: Vec<&str> = out.split_ascii_whitespace().collect();
    assert_eq!(words, ["0", "1", "2", "HOME", "LANG", "PATH", "PWD", "TMPDIR", "USER"]);
    drop(leaked);
}

fn leak_descriptors() -> Vec<std::fs::File> {
    let open = |_| {
        let leaked = std::fs::File::open("/etc/hostname").unwrap();
        rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
        leaked
    };
    (0..200).map(open).collect()
}

#[tokio::test]
async fn the_launcher_keeps_no_descriptor_of_the_host_either() {
    let leaked = leak_descriptors();
    let bench = Bench::new();
    let mut running = bench.start("cat >/dev/null", &small()).await;
    let child = std::fs::read_dir(bench.temp.path()).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(child.join("label.json")).unwrap();
    let label: serde_json::Value = serde_json::from_str(&text).unwrap();
    let fds = format!("/proc/{}/fd", label["launcher"]["pid"]);
    let targets: Vec<_> = std::fs::read_dir(fds)
        .unwrap()
        .map(|fd| std::fs::read_link(fd.unwrap().path()).unwrap())
        .collect();
    assert!(!targets.is_empty());
    assert!(!targets.contains(&"/etc/hostname".into()), "{targets:?}");
    drop((leaked, running.stdin));
    assert_eq!(running.control.wait().await.code, Some(0));
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

/// A call of the 32-bit interface has other numbers, which no rule of ours names.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn a_call_of_a_foreign_architecture_ends_the_process() {
    // `mov eax, 20; int 0x80; ret`: getpid, the 32-bit way.
    let script = r#"python3 -c '
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes([0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3]))
print("tried", flush=True)
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())'
echo $?"#;
    let out = inside(script).await;
    let lines: Vec<&str> = out.lines().collect();
    // A kernel without that interface faults instead.
    assert!(["159", "139"].contains(&lines[1]), "{out}");
    assert_eq!((lines[0], lines.len()), ("tried", 2), "{out}");
}

#[tokio::test]
async fn first_process_is_alone_in_its_namespaces() {
    let out = inside(
        "echo $$; ls /proc > /tmp/list; grep -c '^[0-9]' /tmp/list; cat /proc/1/comm; \
         cut -d: -f3 /proc/self/cgroup | sort -u",
    )
    .await;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "1");
    // The shell and `ls`.
    assert_eq!(lines[1], "2");
    assert_eq!(lines[2], "sh");
    assert!(!out.contains("cofferdam"), "the host's cgroup path shows: {out}");
}

#[tokio::test]
async fn no_mount_honours_set_user_id_and_only_dev_has_devices() {
    let out = inside("cut -d' ' -f5,6 /proc/self/mountinfo").await;
    assert!(out.lines().count() > 10, "{out}");
    for line in out.lines() {
        let (point, options) = line.split_once(' ').unwrap();
        let has = |wanted: &str| options.split(',').any(|o| o == wanted);
        assert!(has("nosuid"), "{line}");
        // What is masked in /proc is the null device.
        let device = point.starts_with("/dev/") || (point.starts_with("/proc/") && has("ro"));
        assert!(has("nodev") || device, "{line}");
        let writable = ["/work", "/tmp", "/cofferdam/tripwire", "/dev/", "/proc"]
            .iter()
            .any(|w| point.starts_with(w));
        assert!(has("ro") || writable, "{line}");
    }
}

const GROUPS_ROLE: &str = "COFFERDAM_TEST_GROUPS_ROLE";

/// The suite's own process may have no supplementary groups to lose: this one is given two.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "re-executes the test binary with groups")]
async fn supplementary_groups_of_the_host_are_dropped() {
    let status = std::process::Command::new("setpriv")
        .args(["--groups", "4,27"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "isolation::host_with_groups", "--nocapture"])
        .env(GROUPS_ROLE, "1")
        .status()
        .unwrap();
    assert!(status.success());
}

/// Not a fact of its own: what the test above runs with groups.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the role is handed to the re-executed test binary")]
async fn host_with_groups() {
    if std::env::var(GROUPS_ROLE).is_err() {
        return;
    }
    assert_eq!(rustix::process::getgroups().unwrap().len(), 2);
    assert_eq!(inside("grep Groups /proc/self/status").await.trim(), "Groups:");
}

#[tokio::test]
async fn unpacked_directory_serves_as_root() {
    let bench = Bench::new();
    let root = tempfile::tempdir().unwrap();
    copy_shell(root.path());
    std::fs::create_dir_all(root.path().join("etc")).unwrap();
    std::fs::write(root.path().join("etc/mine"), "mine\n").unwrap();
    std::os::unix::fs::symlink("etc/mine", root.path().join("link")).unwrap();
    let mut spec = bench.spec(&small());
    spec.root = cofferdam_sandbox::RootSource::Directory(root.path().to_owned());
    let script = "read x < /link; echo $x; [ -e /usr/bin/perl ] || echo alone; echo > /etc/y";
    let outcome = bench.run_command(&["/bin/sh", "-c", script], &spec).await;
    assert_eq!(outcome.stdout, "mine\nalone\n", "{outcome:?}");
    assert_ne!(outcome.exit.code, Some(0), "its /etc is writable");
    assert!(!root.path().join("etc/y").exists());
}

/// A shell and its libraries, copied.
#[expect(clippy::disallowed_methods, reason = "asks the host's ldd what to copy")]
fn copy_shell(root: &std::path::Path) {
    let ldd = std::process::Command::new("ldd").arg("/bin/sh").output().unwrap();
    let text = String::from_utf8(ldd.stdout).unwrap();
    let libraries = text.split_ascii_whitespace().filter(|w| w.starts_with('/'));
    for file in libraries.chain(["/bin/sh"]) {
        let target = root.join(file.trim_start_matches('/'));
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(std::fs::canonicalize(file).unwrap(), target).unwrap();
    }
}
