//! Bytes through the three streams.

use cofferdam_conformance::bed::ended;
use cofferdam_conformance::{Bed, PATIENCE, small};
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_sandbox::Running;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Bytes in which a lost, doubled or reordered piece shows.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)).to_le_bytes()[0]).collect()
}

#[tokio::test]
async fn ten_megabytes_come_back_byte_for_byte_and_the_end_of_the_input_ends_the_program() {
    let bed = Bed::new();
    let engine = bed.engine(&["/bin/cat"]).await;
    let running = engine.prepare(&bed.spec(&small())).await.unwrap().start().await.unwrap();
    let Running { mut stdin, mut stdout, stderr, mut control, .. } = running;
    let sent = pattern(10 << 20);
    let mut got = Vec::new();
    let send = async {
        stdin.write_all(&sent).await.unwrap();
        stdin.flush().await.unwrap();
        // Closed by being dropped: not every engine's input knows a half close.
        drop(stdin);
    };
    let both = async { tokio::join!(send, stdout.read_to_end(&mut got)) };
    tokio::time::timeout(PATIENCE, both).await.unwrap().1.unwrap();
    assert!(got == sent, "{} of {} bytes came, or other ones", got.len(), sent.len());
    assert_eq!(ended(&mut *control).await.code, Some(0));
    drop(stderr);
    assert_eq!(control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_small_message_is_answered_before_the_next_is_sent() {
    let bed = Bed::new();
    let engine = bed.engine(&["/bin/cat"]).await;
    let mut running = engine.prepare(&bed.spec(&small())).await.unwrap().start().await.unwrap();
    for n in 0u8..50 {
        running.stdin.write_all(&[n; 3]).await.unwrap();
        running.stdin.flush().await.unwrap();
        let mut answer = [0; 3];
        let read = running.stdout.read_exact(&mut answer);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        assert_eq!(answer, [n; 3]);
    }
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn output_and_error_text_arrive_apart_and_whole() {
    let script = "echo out; echo err >&2; head -c 3000000 /dev/zero >&2; echo out2; exit 3";
    let ran = Bed::new().run(script, &small()).await;
    assert_eq!(ran.stdout, "out\nout2\n");
    assert_eq!(ran.stderr.len(), 4 + 3_000_000);
    assert_eq!(ran.exit.code, Some(3));
}

#[tokio::test]
async fn error_text_that_nobody_wants_does_not_hold_up_the_output() {
    let bed = Bed::new();
    let running = bed.start("head -c 4000000 /dev/zero >&2; echo done").await;
    let Running { stdin: _stdin, mut stdout, stderr, control, .. } = running;
    drop(stderr);
    let mut out = String::new();
    tokio::time::timeout(PATIENCE, stdout.read_to_string(&mut out)).await.unwrap().unwrap();
    assert_eq!(out, "done\n");
    assert_eq!(control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn not_one_byte_of_a_program_that_ends_at_once_is_missed() {
    let bed = Bed::new();
    let mut running = bed.start("echo first").await;
    ended(&mut *running.control).await;
    let mut out = String::new();
    let read = running.stdout.read_to_string(&mut out);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert_eq!(out, "first\n");
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
}

#[tokio::test]
async fn a_host_that_drops_the_input_ends_the_guests_input() {
    let bed = Bed::new();
    let Running { stdin, mut stdout, stderr: _stderr, control, .. } =
        bed.start("cat >/dev/null; echo over").await;
    drop(stdin);
    let mut out = String::new();
    tokio::time::timeout(PATIENCE, stdout.read_to_string(&mut out)).await.unwrap().unwrap();
    assert_eq!(out, "over\n");
    assert_eq!(control.teardown().await, TeardownOutcome::Removed);
}
