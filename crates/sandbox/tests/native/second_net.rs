//! The second network namespace: what the shell cannot reach, what it shares, and what happens when
//! the namespace is left out.

use std::path::PathBuf;

use cofferdam_sandbox::native::NativeEngine;
use cofferdam_sandbox::{Engine as _, SandboxSpec};
use tokio::io::AsyncReadExt as _;

use crate::harness::{Bench, processes_with, small};

/// Stands for the agent's side: listens where proxy and model gateway would, and on an abstract
/// socket; then shows what the shell found.
pub(crate) const AGENT: &str = r#"
exec perl -MSocket -e '
  for my $port (3128, 3129) {
    socket(my $s, AF_INET, SOCK_STREAM, 0) or die; bind($s, pack_sockaddr_in($port, INADDR_LOOPBACK)) or die;
    listen($s, 5) or die; push @keep, $s;
  }
  socket(my $u, AF_UNIX, SOCK_STREAM, 0) or die; bind($u, pack_sockaddr_un("\0cofferdam-agent")) or die; listen($u, 5);
  open(my $f, ">", "/work/up"); close $f;
  for (1..1500) { last if -e "/work/found"; select(undef, undef, undef, 0.02) }
  open($f, "<", "/work/found") or die; print <$f>;
'"#;

/// Stands for the shell: tries what it must not reach, then what is its own.
pub(crate) const SHELL: &str = r#"
exec perl -MSocket -e '
  for (1..1500) { last if -e "/work/up"; select(undef, undef, undef, 0.02) }
  sub word { my ($name, $ok) = @_; print $out "$name ", ($ok ? "reached" : "no"), "\n" }
  open($out, ">", "/work/found.part");
  for my $port (3128, 3129) {
    socket(my $s, AF_INET, SOCK_STREAM, 0) or die;
    word($port, connect($s, pack_sockaddr_in($port, INADDR_LOOPBACK)));
  }
  socket(my $u, AF_UNIX, SOCK_STREAM, 0) or die;
  word("abstract", connect($u, pack_sockaddr_un("\0cofferdam-agent")));
  word("setns", open($ns, "<", "/proc/1/ns/net") && syscall(308, fileno($ns), 0) == 0);
  socket(my $l, AF_INET, SOCK_STREAM, 0) or die;
  word("own", bind($l, pack_sockaddr_in(3130, INADDR_LOOPBACK)) && listen($l, 5)
    && socket($c, AF_INET, SOCK_STREAM, 0) && connect($c, pack_sockaddr_in(3130, INADDR_LOOPBACK)));
  close $out; rename("/work/found.part", "/work/found"); sleep 60;
'"#;

/// What the shell finds when nothing but its own is there.
pub(crate) const APART: &str = "3128 no\n3129 no\nabstract no\nsetns no\nown reached\n";

pub(crate) fn scripted(engine: NativeEngine, first: &str, second: &str) -> NativeEngine {
    engine.with_command(&["/bin/sh", "-c", first]).with_shell_host(&["/bin/sh", "-c", second])
}

fn with_shell_host(bench: &Bench) -> SandboxSpec {
    SandboxSpec { shell_host: true, ..bench.spec(&small()) }
}

#[tokio::test]
async fn shell_reaches_neither_ports_nor_sockets_of_the_agent_but_its_own() {
    let bench = Bench::new();
    let engine = scripted(bench.engine(&[]), AGENT, SHELL);
    let outcome = bench.run_engine(&engine, &with_shell_host(&bench)).await;
    assert_eq!(outcome.stdout, APART, "{}", outcome.stderr);
}

#[tokio::test]
async fn without_the_second_namespace_the_same_shell_reaches_all_of_it() {
    let bench = Bench::new();
    let engine = scripted(bench.engine(&[]).with_shared_net(), AGENT, SHELL);
    let outcome = bench.run_engine(&engine, &with_shell_host(&bench)).await;
    let reached = "3128 reached\n3129 reached\nabstract reached\nsetns no\nown reached\n";
    assert_eq!(outcome.stdout, reached, "{}", outcome.stderr);
}

/// Rights, groups, namespaces, mounts and limits, as one sees them of oneself.
const OF_ITSELF: &str = r"
id; grep -E '^(Uid|Gid|Groups|Cap[A-Z][a-z]+|NoNewPrivs|Seccomp|Seccomp_filters):' /proc/self/status
cat /proc/self/mountinfo /proc/self/cgroup; ulimit -a; ls -A /proc/sys/net/ipv4/conf; pwd; env | sort
for ns in mnt uts ipc pid cgroup user; do readlink /proc/self/ns/$ns; done";

#[tokio::test]
async fn everything_but_the_network_is_the_same_for_both() {
    let bench = Bench::new();
    let first = format!(
        "while [ ! -e /work/theirs ]; do sleep 0.02; done\n({OF_ITSELF}) > /work/mine\n\
         cmp /work/mine /work/theirs && echo same; \
         [ $(readlink /proc/self/ns/net) = $(cat /work/net) ] || echo apart"
    );
    let second = format!(
        "readlink /proc/self/ns/net > /work/net; ({OF_ITSELF}) > /work/t 2>&1; \
         mv /work/t /work/theirs; sleep 60"
    );
    let engine = scripted(bench.engine(&[]), &first, &second);
    let outcome = bench.run_engine(&engine, &with_shell_host(&bench)).await;
    assert_eq!(outcome.stdout, "same\napart\n", "{}", outcome.stderr);
}

#[tokio::test]
async fn shell_host_holds_no_stream_of_the_sandbox_and_one_socket() {
    let bench = Bench::new();
    let second = r#"exec perl -e '
        $| = 1; print "a word that must not reach the link\n";
        for (0..255) { my $to = readlink("/proc/self/fd/$_"); push @all, "$_ $to" if defined $to }
        open(my $f, ">", "/work/part"); print $f "$_\n" for @all; close $f;
        rename("/work/part", "/work/fds"); sleep 60'"#;
    let first = "while [ ! -e /work/fds ]; do sleep 0.02; done; cat /work/fds";
    let engine = scripted(bench.engine(&[]), first, second);
    let outcome = bench.run_engine(&engine, &with_shell_host(&bench)).await;
    let open: Vec<(&str, &str)> =
        outcome.stdout.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(open.len(), 4, "{open:?}");
    assert_eq!(open[0], ("0", "/dev/null"));
    // Standard output is standard error, which is the log.
    assert!(open[1].1.starts_with("pipe:") && open[1].1 == open[2].1, "{open:?}");
    assert!(open[3].0 == "3" && open[3].1.starts_with("socket:"), "{open:?}");
    assert!(outcome.stderr.contains("a word that must not"), "{}", outcome.stderr);
}

#[tokio::test]
async fn first_process_can_end_the_shell_and_all_that_it_started() {
    let bench = Bench::new();
    let second = "setsid sleep 1000 & sleep 1000 & echo > /work/up; wait";
    let first = "while [ ! -e /work/up ]; do sleep 0.02; done; \
                 perl -e 'kill 9, -1; for (1..500) { exit 0 if `cat /proc/[0-9]*/comm | grep -c sleep` == 0; \
                 select(undef, undef, undef, 0.01) } exit 1' && echo ended";
    let engine = scripted(bench.engine(&[]), first, second);
    let outcome = bench.run_engine(&engine, &with_shell_host(&bench)).await;
    // The shell that runs this is process 1 and is spared; its perl is the caller.
    assert_eq!(outcome.stdout, "ended\n", "{}", outcome.stderr);
}

#[tokio::test]
async fn nothing_of_the_shell_outlives_the_first_process() {
    let bench = Bench::new();
    let marker = format!("outlive-{}", bench.instance);
    let second = format!("setsid sh -c 'echo > /work/up; sleep 1000; : {marker}' & wait");
    let first = "while [ ! -e /work/up ]; do sleep 0.02; done";
    let engine = scripted(bench.engine(&[]), first, &second);
    let outcome = bench.run_engine(&engine, &with_shell_host(&bench)).await;
    assert_eq!(outcome.exit.code, Some(0), "{}", outcome.stderr);
    assert_eq!(processes_with(&marker), Vec::<i32>::new());
}

#[tokio::test]
async fn shell_host_that_cannot_be_executed_leaves_the_first_process_an_end_to_read() {
    let bench = Bench::new();
    let first = "exec perl -e 'open(my $s, \"<&=3\"); print defined(sysread($s, my $b, 1)) ? \"end\" : \"error\"'";
    let engine = bench.engine(&["/bin/sh", "-c", first]).with_shell_host(&["/no/such/program"]);
    let outcome = bench.run_engine(&engine, &with_shell_host(&bench)).await;
    assert_eq!(outcome.stdout, "end");
    assert!(outcome.stderr.contains("no shell host"), "{}", outcome.stderr);
}

/// The same as an ordinary user, whose half of the suite calls it.
pub(crate) async fn shell_is_kept_apart(engine: NativeEngine, spec: SandboxSpec) {
    let spec = SandboxSpec { shell_host: true, ..spec };
    let prepared = scripted(engine, AGENT, SHELL).prepare(&spec).await.unwrap();
    let mut running = prepared.start().await.unwrap();
    drop(running.stdin);
    let (mut out, mut err) = (String::new(), String::new());
    running.stdout.read_to_string(&mut out).await.unwrap();
    running.stderr.read_to_string(&mut err).await.unwrap();
    running.control.wait().await;
    running.control.teardown().await;
    assert_eq!(out, APART, "{err}");
    assert!(!PathBuf::from(&spec.run_dir).exists());
}
