//! How runs end that do not end by themselves, and agents that do not behave.

use std::process::Stdio;

use crate::support::{Guest, World, run, spawn};
use cofferdam_wire::{AgentStart, Down, OutputStream, Up};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Waits for a line of output that is a process id.
async fn told_pid(guest: &mut Guest) -> u32 {
    let mut all = String::new();
    loop {
        if let Up::Output { text, .. } = guest.next().await {
            all.push_str(&text);
            if all.ends_with('\n') {
                return all.trim().parse().unwrap();
            }
        }
    }
}

fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|s| s.starts_with(" Z")))
}

#[tokio::test]
async fn two_hundred_megabytes_of_output_are_cut_and_counted() {
    let world = World::new();
    let done = run(&world, "head -c 200000000 /dev/zero | tr '\\0' x; echo end").await;
    assert_eq!(done.end.code, Some(0));
    let relayed = done.printed().len() as u64;
    assert_eq!(relayed, 1 << 20);
    assert_eq!(done.end.output_cut_bytes, 200_000_004 - relayed);
    assert!(done.end.report.ends_with("xend\n"), "the last words are the real ones");
    assert!(done.end.report.chars().count() <= 8_000);
}

#[tokio::test]
async fn bytes_that_are_no_text_and_split_characters_pass() {
    let world = World::new();
    let done =
        run(&world, "printf 'a\\303'; sleep 0.05; printf '\\251\\377b'; printf err >&2").await;
    let stdout: String = done
        .said
        .iter()
        .filter_map(|up| match up {
            Up::Output { stream: OutputStream::Stdout, text } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(stdout, "aé\u{fffd}b");
}

#[tokio::test]
async fn agent_that_ignores_sigterm_is_killed_on_cancel_with_all_its_children() {
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    // The child leaves session, group and parent behind, and ignores the signal as well.
    let script = "trap '' TERM; echo kept > kept.txt; \
                  (setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' &) ; \
                  while :; do sleep 1; done";
    guest.begin_until_started(&world, &world.spec(script)).await;
    let child = told_pid(&mut guest).await;
    assert!(alive(child));
    guest.down.send(&Down::Cancel { reason: "test".to_owned() }).await.unwrap();
    let done = guest.finish().await;
    assert!(done.end.cancelled);
    assert_eq!(done.end.signal, Some(9));
    assert!(!alive(child), "the detached child lives");
    assert!(done.manifest.leftovers_committed, "work of a cancelled run is lost");
}

#[tokio::test]
async fn polite_agent_ends_itself_on_cancel() {
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    let script = "trap 'echo bye; exit 3' TERM; echo $$; while :; do sleep 0.05; done";
    guest.begin_until_started(&world, &world.spec(script)).await;
    told_pid(&mut guest).await;
    guest.down.send(&Down::Cancel { reason: "test".to_owned() }).await.unwrap();
    let done = guest.finish().await;
    assert_eq!((done.end.code, done.end.cancelled), (Some(3), true));
    assert!(done.printed().contains("bye\n"));
}

#[tokio::test]
async fn processes_left_behind_neither_outlive_the_agent_nor_hold_its_output() {
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    let script = "(setsid sh -c 'echo $$; exec sleep 1000' &); sleep 0.2; exit 0";
    guest.begin_until_started(&world, &world.spec(script)).await;
    let child = told_pid(&mut guest).await;
    let done = guest.finish().await;
    assert_eq!((done.end.code, done.end.cancelled), (Some(0), false));
    assert!(!alive(child));
}

#[tokio::test]
async fn closed_link_ends_guest_and_agent_and_commits_leftovers() {
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    let script = "trap '' TERM; echo kept > kept.txt; echo $$; while :; do sleep 1; done";
    guest.begin_until_started(&world, &world.spec(script)).await;
    let agent = told_pid(&mut guest).await;
    guest.link.close();
    assert_eq!(guest.child.wait().await.unwrap().code(), Some(3));
    assert!(!alive(agent));
    let log = crate::support::git(&world.repo(), &["log", "-1", "--format=%s"]);
    assert_eq!(log, "Uncommitted work at the end of the run (cofferdam)");
}

#[tokio::test]
async fn link_closed_before_the_start_ends_the_guest() {
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    guest.link.close();
    assert_eq!(guest.child.wait().await.unwrap().code(), Some(4));
}

#[tokio::test]
async fn garbage_from_the_host_ends_the_guest() {
    let world = World::new();
    let mut child = spawn(&world.guest_root());
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let _ = stdin.write_all(&[0x17; 4096]).await;
    // It may have said its preface by then; it says nothing endless.
    let mut said = Vec::new();
    stdout.read_to_end(&mut said).await.unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(4));
}

#[tokio::test]
async fn message_that_means_nothing_ends_the_run() {
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    guest.begin_until_started(&world, &world.spec("sleep 1000")).await;
    let spec = world.spec("sleep 1000");
    guest.down.send(&Down::Start(Box::new(spec))).await.unwrap();
    assert_eq!(guest.child.wait().await.unwrap().code(), Some(3));
}

#[tokio::test]
async fn doors_carry_bytes_both_ways_with_half_close() {
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    // bash opens a connection by itself; the ports are told in a file of the tree.
    let script = "read -r PROXY MODEL < ../../ports; \
                  exec 3<>/dev/tcp/127.0.0.1/$MODEL; echo ask >&3; read -r ANSWER <&3; \
                  echo \"got $ANSWER\"";
    let mut spec = world.spec("");
    spec.agent = AgentStart::Command { argv: ["bash", "-c", script].map(str::to_owned).into() };
    guest.begin_until_started(&world, &spec).await;
    let (header, mut stream) = guest.incoming.next().await.unwrap();
    let open: cofferdam_wire::StreamOpen = serde_json::from_slice(&header).unwrap();
    assert_eq!(open, cofferdam_wire::StreamOpen::Model);
    let mut ask = [0; 4];
    stream.read_exact(&mut ask).await.unwrap();
    assert_eq!(&ask, b"ask\n");
    stream.write_all(b"answer\n").await.unwrap();
    stream.shutdown().await.unwrap();
    // The agent's process ends, and with it the other half.
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    let done = guest.finish().await;
    assert_eq!(done.printed(), "got answer\n");
}

#[tokio::test]
async fn events_of_the_builtin_agent_are_told_and_anything_else_is_output() {
    // The built-in agent cannot reach a model here: it says so in events and fails.
    let world = World::new();
    let mut guest = Guest::start(&world).await;
    let mut spec = world.spec("");
    spec.agent = AgentStart::Builtin {
        task: "nothing".to_owned(),
        dialect: serde_json::from_str("\"anthropic\"").unwrap(),
        model: "m".to_owned(),
        max_steps: 1,
    };
    guest.begin_until_started(&world, &spec).await;
    guest.down.send(&Down::Cancel { reason: "test".to_owned() }).await.unwrap();
    let done = guest.finish().await;
    assert!(done.end.cancelled || done.end.code.is_some());
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "tests start the real guest")]
async fn version_and_unknown_arguments() {
    let guest = |arg: &str| {
        std::process::Command::new(env!("CARGO_BIN_EXE_cofferdam-guest"))
            .arg(arg)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let version = String::from_utf8(guest("--version").stdout).unwrap();
    assert_eq!(version.trim(), format!("cofferdam-guest {}", env!("CARGO_PKG_VERSION")));
    assert_eq!(guest("--else").status.code(), Some(2));
}

#[tokio::test]
async fn unprivileged_agent_cannot_signal_the_supervisor_and_goes_first_when_memory_runs_out() {
    let world = World::new();
    let mut guest = Guest::start_unprivileged(&world).await;
    let Up::Hello { probe, .. } = &guest.hello else { panic!("no hello") };
    assert_ne!(probe.uid, 0);
    let scoped = probe.landlock_abi.is_some_and(|abi| abi >= 6);
    let script = "exec 2>/dev/null; sleep 0.2; sh -c 'cat /proc/self/oom_score_adj'; \
                  sleep 1000 & kill $! && echo own; kill -0 $PPID || echo refused; \
                  cat /proc/$PPID/environ || echo unreadable; \
                  echo x > x; git add x; git commit -qm X";
    guest.begin_until_started(&world, &world.spec(script)).await;
    let done = guest.finish().await;
    let refused = if scoped { "refused\n" } else { "" };
    assert_eq!(done.printed(), format!("500\nown\n{refused}unreadable\n"));
    assert_eq!(done.manifest.commits, 1);
}

/// True when a process has that among its words.
fn runs(word: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(word))
    })
}

/// A process that is never the same for longer than a moment; it gives up after a while by itself.
const HYDRA: &str = r#"
    printf '#!/bin/sh\n[ $1 -gt 0 ] && setsid "$0" $(($1 - 1)) &\n' > ../hydra
    chmod +x ../hydra
    $(dirname $PWD)/hydra 20000
    echo $$
    sleep 1000"#;

async fn hydra_is_ended(world: &World, mut guest: Guest) {
    guest.begin_until_started(world, &world.spec(HYDRA)).await;
    told_pid(&mut guest).await;
    let hydra = world.guest_root().join("work/hydra");
    assert!((0..1000).any(|_| runs(hydra.to_str().unwrap())), "it never ran");
    guest.down.send(&Down::Cancel { reason: "test".to_owned() }).await.unwrap();
    let done = guest
        .finish_after(|| {
            for _ in 0..20 {
                assert!(!runs(hydra.to_str().unwrap()), "it lives");
            }
        })
        .await;
    assert!(done.end.cancelled && done.exit.success());
}

#[tokio::test]
async fn as_first_process_it_ends_even_what_forks_away() {
    let world = World::new();
    let guest = Guest::start_as_first_process(&world).await;
    let Up::Hello { probe, .. } = &guest.hello else { panic!("no hello") };
    assert_eq!(probe.pid, 1);
    hydra_is_ended(&world, guest).await;
}
