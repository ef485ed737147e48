//! The layers, as the engine shows them, as this host sees them, and as the guest sees them from inside.

use cofferdam_conformance::note::note;
use cofferdam_conformance::{Bed, PATIENCE, small};
use cofferdam_link::Link;
use cofferdam_link::frames::FrameReader;
use cofferdam_run::fact::TeardownOutcome;
use cofferdam_run::posture::{Layer, LayerReport, Probe};
use cofferdam_sandbox::Running;
use cofferdam_sandbox::posture::judge;
use cofferdam_wire::guest::Up;

/// What the guest says of itself first.
async fn hello(running: &mut Running) -> Probe {
    let (no_input, no_output) = (tokio::io::sink(), tokio::io::empty());
    let stdin = std::mem::replace(&mut running.stdin, Box::new(no_input));
    let stdout = std::mem::replace(&mut running.stdout, Box::new(no_output));
    let talk = async {
        let (link, mut incoming) = Link::host(cofferdam_link::join(stdout, stdin)).await.unwrap();
        let (_control, stream) = incoming.next().await.expect("the guest opened no stream");
        let first = FrameReader::<Up, _>::new(stream).next().await.unwrap();
        link.close();
        first
    };
    match tokio::time::timeout(PATIENCE, talk).await.expect("the guest is silent") {
        Some(Up::Hello { probe, .. }) => *probe,
        other => panic!("{other:?}"),
    }
}

fn not_enforced(reports: &[LayerReport]) -> Vec<Layer> {
    reports.iter().filter(|r| !r.status.is_enforced()).map(|r| r.layer).collect()
}

#[tokio::test]
async fn every_layer_holds_as_far_as_this_engine_is_known_to_give_it() {
    let bed = Bed::new();
    let engine = bed.engine(&[]).await;
    let resources = small();
    let prepared = engine.prepare(&bed.guest_spec(&resources)).await.unwrap();
    let evidence = prepared.evidence().clone();
    let mut running = prepared.start().await.unwrap();
    let probe = hello(&mut running).await;
    let layers = judge(bed.under.kind(), &resources, &probe, &evidence.read_back, &running.outside);
    assert_eq!(not_enforced(&layers), bed.under.lacks(), "{layers:#?}\n{probe:#?}");
    assert_eq!(layers.len(), Layer::ALL.len());
    assert_eq!(running.control.teardown().await, TeardownOutcome::Removed);
    note("layers", &serde_json::to_value(&layers).unwrap());
    note("version", &serde_json::Value::from(evidence.engine_version));
}

#[tokio::test]
async fn what_the_engine_and_this_host_show_agrees_with_what_was_asked_for() {
    let bed = Bed::new();
    let ran = bed.run("sleep 1", &small()).await;
    let shown = not_enforced(&ran.read_back);
    let expected: Vec<Layer> =
        bed.under.lacks().iter().copied().filter(|layer| *layer != Layer::Landlock).collect();
    assert_eq!(shown, expected, "{:#?}", ran.read_back);
    assert_eq!(not_enforced(&ran.outside), Vec::<Layer>::new(), "{:#?}", ran.outside);
    let names = |reports: &[LayerReport]| -> Vec<&str> {
        reports.iter().map(|report| report.layer.as_str()).collect()
    };
    note("read_back", &serde_json::json!(names(&ran.read_back)));
    note("outside", &serde_json::json!(names(&ran.outside)));
}

#[tokio::test]
async fn the_report_of_the_engine_says_the_same_before_any_run() {
    let bed = Bed::new();
    let report = bed.engine(&[]).await.probe().await;
    assert!(report.usable, "{report:?}");
    assert_eq!(report.kind, bed.under.kind());
    for layer in bed.under.lacks() {
        let name = layer.as_str();
        let told = report.problems.iter().any(|p| p.what.starts_with(name) && !p.fix.is_empty());
        assert!(told, "{name}: {report:#?}");
    }
}

#[tokio::test]
async fn the_user_is_an_ordinary_one_and_only_its_places_are_writable() {
    let script = r#"id -u; id -g; id -G
for place in / /etc /usr/bin /cofferdam /dev /sys /run /var /proc/sys/kernel; do
    if ( echo x > $place/x ) 2>/dev/null; then echo "$place writable"; fi
done
for place in /work /tmp /dev/shm; do echo x > $place/x && echo "$place ok"; done
printf '#!/bin/sh\necho runs\n' > /tmp/p; chmod +x /tmp/p; /tmp/p"#;
    let expected = ["10001", "10001", "10001", "/work ok", "/tmp ok", "/dev/shm ok", "runs"];
    assert_eq!(Bed::new().lines(script).await, expected);
}

#[tokio::test]
async fn no_descriptor_leaks_in() {
    let script =
        "python3 -c 'import os; print(sorted(int(n) for n in os.listdir(\"/proc/self/fd\")))'";
    // The last one is the directory itself.
    assert_eq!(Bed::new().lines(script).await, ["[0, 1, 2, 3]"]);
}

#[tokio::test]
async fn calls_that_no_tool_needs_are_refused_and_their_neighbours_work() {
    let script = r#"python3 -c '
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    got = libc.syscall(number, *(list(arguments) + [0] * (6 - len(arguments))))
    return errno.errorcode.get(ctypes.get_errno()) if got == -1 else str(got)
x86 = os.uname().machine == "x86_64"
print(*[call(n, *a) for n, a in [
    (250 if x86 else 219, ()), (425, (8,)), (321 if x86 else 280, (0x7fff,)), (272 if x86 else 97, (0x10000000,))]])
def kind(family, what, protocol):
    try:
        socket.socket(family, what, protocol).close()
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]
# gVisor answers with one error for all.
refused = ("EAFNOSUPPORT", "EPERM")
print(kind(38, 5, 0) in refused, kind(40, 1, 0) in refused, kind(socket.AF_INET, socket.SOCK_STREAM, 0), kind(socket.AF_UNIX, socket.SOCK_STREAM, 0))
if os.fork() == 0: os._exit(0)
print(os.wait()[1])
'"#;
    assert_eq!(Bed::new().lines(script).await, ["EPERM EPERM EPERM EPERM", "True True ok ok", "0"]);
}
