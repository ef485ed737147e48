//! Bytes through the attached streams of a Docker sandbox. needs: docker

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod docker_support;

use cofferdam_run::fact::TeardownOutcome;
use cofferdam_sandbox::{Engine as _, Running};
use docker_support::{Lab, PATIENCE, ended};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const TEN_MB: usize = 10 << 20;

/// Bytes in which a lost, doubled or reordered piece shows.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)).to_le_bytes()[0]).collect()
}

async fn start(lab: &Lab) -> Running {
    lab.engine.prepare(&lab.spec()).await.unwrap().start().await.unwrap()
}

async fn finish(running: Running) {
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn ten_megabytes_come_back_byte_for_byte_and_half_close_ends_the_program() {
    let lab = Lab::with(&["/bin/cat"]).await;
    let Running { mut stdin, mut stdout, stderr, mut control, .. } = start(&lab).await;
    let sent = pattern(TEN_MB);
    let mut got = Vec::new();
    let send = async {
        stdin.write_all(&sent).await.unwrap();
        stdin.shutdown().await.unwrap();
    };
    let both = async { tokio::join!(send, stdout.read_to_end(&mut got)) };
    tokio::time::timeout(PATIENCE, both).await.unwrap().1.unwrap();
    assert_eq!(got.len(), sent.len());
    assert!(got == sent, "the bytes differ");
    assert_eq!(ended(&mut *control).await.code, Some(0));
    drop(stderr);
    assert_eq!(control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_small_message_is_answered_before_the_next_is_sent() {
    let lab = Lab::with(&["/bin/cat"]).await;
    let Running { mut stdin, mut stdout, stderr: _stderr, control, .. } = start(&lab).await;
    for n in 0u8..50 {
        stdin.write_all(&[n; 3]).await.unwrap();
        let mut answer = [0; 3];
        tokio::time::timeout(PATIENCE, stdout.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, [n; 3]);
    }
    assert_eq!(control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn output_and_error_text_arrive_apart() {
    let lab = Lab::shell("echo out; echo err >&2; echo out2; exit 3").await;
    let mut running = start(&lab).await;
    let (mut out, mut err) = (String::new(), String::new());
    let both = async {
        tokio::join!(
            running.stdout.read_to_string(&mut out),
            running.stderr.read_to_string(&mut err)
        )
    };
    tokio::time::timeout(PATIENCE, both).await.unwrap().0.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("out\nout2\n", "err\n"));
    assert_eq!(ended(&mut *running.control).await.code, Some(3));
    finish(running).await;
}

#[tokio::test]
async fn not_one_byte_of_a_program_that_ends_at_once_is_missed() {
    let lab = Lab::shell("echo first").await;
    let mut running = start(&lab).await;
    ended(&mut *running.control).await;
    let mut out = String::new();
    tokio::time::timeout(PATIENCE, running.stdout.read_to_string(&mut out)).await.unwrap().unwrap();
    assert_eq!(out, "first\n");
    finish(running).await;
}

#[tokio::test]
async fn error_text_that_nobody_wants_does_not_hold_up_the_output() {
    let lab = Lab::shell("head -c 4000000 /dev/zero >&2; echo done").await;
    let Running { stdin: _stdin, mut stdout, stderr, control, .. } = start(&lab).await;
    drop(stderr);
    let mut out = String::new();
    tokio::time::timeout(PATIENCE, stdout.read_to_string(&mut out)).await.unwrap().unwrap();
    assert_eq!(out, "done\n");
    assert_eq!(control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn output_that_nobody_reads_stops_the_program_instead_of_filling_memory() {
    // The program counts what it could write into a file that a second look reads: with no reader it
    // must stall far below what it wants to write.
    let lab = Lab::shell("head -c 67108864 /dev/zero; echo end >&2").await;
    let Running { stdin, mut stdout, mut stderr, control, .. } = start(&lab).await;
    let mut first = vec![0; 1000];
    stdout.read_exact(&mut first).await.unwrap();
    let early = tokio::time::timeout(std::time::Duration::from_secs(2), stderr.read_u8()).await;
    assert!(early.is_err(), "64 MB went somewhere without a reader");
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stdout.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert_eq!(first.len() + rest.len(), 64 << 20);
    let mut end = String::new();
    stderr.read_to_string(&mut end).await.unwrap();
    assert_eq!(end, "end\n");
    drop(stdin);
    assert_eq!(control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_host_that_drops_the_input_ends_the_guests_input() {
    let lab = Lab::shell("cat >/dev/null; echo over").await;
    let Running { stdin, mut stdout, stderr: _stderr, control, .. } = start(&lab).await;
    drop(stdin);
    let mut out = String::new();
    tokio::time::timeout(PATIENCE, stdout.read_to_string(&mut out)).await.unwrap().unwrap();
    assert_eq!(out, "over\n");
    assert_eq!(control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_host_that_drops_everything_ends_the_guests_input() {
    let lab = Lab::shell("cat >/dev/null; echo over > /work/over").await;
    let spec = lab.spec();
    let running = lab.engine.prepare(&spec).await.unwrap().start().await.unwrap();
    drop(running);
    let over = async {
        loop {
            let found = lab.engine.list(&lab.instance).await.unwrap();
            if !found[0].running {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    let found =
        tokio::time::timeout(PATIENCE, over).await.expect("the guest went on without its host");
    assert_eq!(lab.engine.remove(&found[0]).await, TeardownOutcome::Removed);
}
