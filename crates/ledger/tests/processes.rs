//! Several real processes on one file, and processes that are killed while they write.
//!
//! Each test starts this test binary again for the same test; the copy finds a directory in its
//! environment and plays the other process.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a step that fails is a test that fails"
)]

#[path = "suite/fixtures.rs"]
mod fixtures;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use cofferdam_ledger::store::approvals::{ApprovalFilter, Approvals as _, NewApproval, Used};
use cofferdam_ledger::store::work::{ClaimLimits, NewTask, Page, TaskFilter, Work as _};
use cofferdam_ledger::{Appended, Applied, EventBody, Ledger, ListFilter, Settlement, Store};
use cofferdam_run::approval::{Decision, Subject};
use cofferdam_run::fact::Fact;
use cofferdam_run::spec::Mode;
use cofferdam_run::trigger::IdempotencyKey;
use cofferdam_run::{Actor, ApprovalId, Decider, RunEvent, RunId, StateName, TaskId, verify};
use fixtures::{TTL_MS, at, good_facts, new_run, run_id, to_executing};

const DIRECTORY: &str = "COFFERDAM_TEST_LEDGER";

/// The directory, when this process is the other one.
fn as_child() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "how a test hands its copy a directory")]
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

/// Starts a copy of this test as another process. It ends with this one: whatever it says then
/// meets a closed pipe, whatever it waits for has ended.
fn start(test: &str, dir: &Path) -> Child {
    #[expect(clippy::disallowed_methods, reason = "the test is about several processes")]
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(DIRECTORY, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Ends the process with SIGKILL, then gives what it had still written.
fn kill(mut child: Child, mut rest: BufReader<std::process::ChildStdout>) -> String {
    child.kill().unwrap();
    child.wait().unwrap();
    let mut bytes = Vec::new();
    rest.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

fn wait_for_word() {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
}

fn tell(stdin: &mut ChildStdin) {
    writeln!(stdin, "go").unwrap();
    stdin.flush().unwrap();
}

/// Lines that the child's own code wrote; the test harness writes others around them.
fn told<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    // The harness may have begun the line with "test … ... ".
    let (_, value) = line.split_once(&format!("<{word} "))?;
    value.strip_suffix('>')
}

async fn executing(ledger: &Ledger, n: u32) -> (RunId, u64) {
    ledger.create_run(new_run(n, Mode::Unattended)).await.unwrap();
    let lease = ledger.claim(&run_id(n), "owner", at(0), TTL_MS).await.unwrap().unwrap();
    for event in to_executing() {
        let applied = ledger.apply(&run_id(n), Some(lease.epoch), event, at(1)).await.unwrap();
        assert!(matches!(applied, Applied::Done { .. }));
    }
    (run_id(n), lease.epoch)
}

/// Writes facts from four tasks until it is killed, and says each sequence number that the ledger
/// confirmed, after that.
async fn write_until_killed(dir: PathBuf) {
    let ledger = Ledger::open(dir).await.unwrap();
    let (id, epoch) =
        (run_id(1), ledger.run(&run_id(1)).await.unwrap().state.lease().unwrap().epoch);
    let mut tasks = Vec::new();
    for task in 0..4u32 {
        let (ledger, id) = (ledger.clone(), id.clone());
        tasks.push(tokio::spawn(async move {
            for n in 0u64.. {
                let text = format!("{task}/{n}");
                // Repeatable, so that no bound ends it early.
                let fact = Fact::AgentClaim { kind: "message".into(), text: text.clone() };
                let Appended::Kept { seq } =
                    ledger.append_fact(&id, epoch, at(2), fact).await.unwrap()
                else {
                    panic!("not kept");
                };
                say(&format!("<kept {seq} {text}>"));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_minus_nine_loses_no_confirmed_event() {
    if let Some(dir) = as_child() {
        return write_until_killed(dir).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let (id, _) = executing(&Ledger::open(dir.path()).await.unwrap(), 1).await;
    let mut confirmed = BTreeSet::new();
    // Several times on the same file, so that each round also recovers the one before.
    for round in 0..5usize {
        let mut child = start("kill_minus_nine_loses_no_confirmed_event", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut heard = 0;
        let mut hear = |line: &str| {
            if let Some(what) = told(line, "kept") {
                let (seq, text) = what.split_once(' ').unwrap();
                assert!(confirmed.insert((seq.parse::<u64>().unwrap(), text.to_owned())));
                heard += 1;
            }
            heard
        };
        // Another place to die in each round.
        let enough = 20 + 37 * round;
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 {
            if hear(line.trim_end()) >= enough {
                break;
            }
            line.clear();
        }
        for line in kill(child, lines).lines() {
            hear(line);
        }
        assert!(heard >= enough, "the writer ended by itself");
    }

    let ledger = Ledger::open(dir.path()).await.unwrap();
    let mut stored = BTreeSet::new();
    let (mut after, mut count) = (0, 0u64);
    loop {
        let page = ledger.events(&id, after, 1_000).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.seq;
        for event in page {
            count += 1;
            assert_eq!(event.seq, count, "no gap");
            if let EventBody::Fact(fact) = event.body
                && let Fact::AgentClaim { text, .. } = *fact
            {
                stored.insert((event.seq, text));
            }
        }
    }
    let lost: Vec<_> = confirmed.difference(&stored).collect();
    assert!(lost.is_empty(), "{lost:?} of {} confirmed", confirmed.len());
    let sound: String = rusqlite::Connection::open(dir.path().join("ledger.db"))
        .unwrap()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(sound, "ok");
}

/// Lives whole runs, one after the other, until it is killed.
async fn live_until_killed(dir: PathBuf) {
    let ledger = Ledger::open(dir).await.unwrap();
    let begun = ledger.list(ListFilter::default(), 10_000).await.unwrap().len();
    for n in u32::try_from(begun).unwrap().. {
        let (id, epoch) = executing(&ledger, n).await;
        for fact in good_facts(Mode::Unattended) {
            let _ = ledger.append_fact(&id, epoch, at(2), fact).await.unwrap();
        }
        let _ = ledger.apply(&id, Some(epoch), RunEvent::AgentEnded, at(3)).await.unwrap();
        let settled = ledger.settle(&id, epoch, at(4)).await.unwrap();
        assert!(matches!(settled, Settlement::Done { .. }));
        say(&format!("<settled {id}>"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_leaves_no_run_half_ended() {
    if let Some(dir) = as_child() {
        return live_until_killed(dir).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut settled = BTreeSet::new();
    for round in 0..4usize {
        let mut child = start("a_killed_process_leaves_no_run_half_ended", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let enough = settled.len() + 2 + round;
        let mut line = String::new();
        while settled.len() < enough && lines.read_line(&mut line).unwrap() > 0 {
            settled.extend(told(line.trim_end(), "settled").map(str::to_owned));
            line.clear();
        }
        let rest = kill(child, lines);
        settled.extend(rest.lines().filter_map(|l| told(l, "settled")).map(str::to_owned));
        assert!(settled.len() >= enough, "the other process ended by itself");
    }
    let ledger = Ledger::open(dir.path()).await.unwrap();
    let rows = ledger.list(ListFilter::default(), 10_000).await.unwrap();
    for row in &rows {
        let run = ledger.run(&row.id).await.unwrap();
        let record = ledger.record(&row.id).await.unwrap();
        assert_eq!(run.state.is_terminal(), record.is_some());
        if let Some(json) = record {
            let verified = verify(&json).unwrap();
            assert_eq!(Some(&verified.record.verdict), run.state.verdict());
        }
        if settled.contains(row.id.as_str()) {
            assert_eq!(run.state.name(), StateName::Completed);
        }
    }
    // Whatever was left behind can be taken over once its lease has expired.
    for run in ledger.expired(at(TTL_MS)).await.unwrap() {
        assert!(ledger.claim(&run.id, "reconciler", at(TTL_MS), TTL_MS).await.unwrap().is_some());
    }
}

/// Makes tasks, takes them, asks, is answered, uses the answer, and ends each well or badly, until it
/// is killed. Says what was confirmed, after that.
async fn work_until_killed(dir: PathBuf) {
    let ledger = Ledger::open(dir).await.unwrap();
    let begun = ledger.tasks(TaskFilter::default(), Page::default()).await.unwrap().items.len();
    let ada = Decider::person("ada").unwrap();
    for n in u32::try_from(begun).unwrap().. {
        let now = at(u64::from(n) * 1_000_000);
        let [a, b, c, d] = n.to_be_bytes();
        let bytes = [a, b, c, d, 3];
        let new = NewTask {
            id: TaskId::from_entropy(bytes),
            title: "t".into(),
            origin: Actor::Person("ada".into()),
            project: None,
            thread: None,
            agent: None,
            priority: 0,
            spec: fixtures::spec(Mode::Supervised),
            retry: Default::default(),
            created_at: now,
        };
        let key = IdempotencyKey::new("test", &n.to_string(), b"").unwrap();
        let _ = ledger.create_task(new, Some(key)).await.unwrap();
        say(&format!("<task {}>", TaskId::from_entropy(bytes)));
        let limits = ClaimLimits { daemon: 1_000, project: 1_000, ..Default::default() };
        let Some(claimed) = ledger.claim_next("child", limits, now, TTL_MS).await.unwrap() else {
            continue;
        };
        let (id, epoch) = (claimed.run.id.clone(), claimed.lease.epoch);
        for event in to_executing() {
            let _ = ledger.apply(&id, Some(epoch), event, now).await.unwrap();
        }
        let subject = Subject::new("file_delete", serde_json::json!({ "n": n }), "delete it?");
        let approval = ApprovalId::from_entropy(bytes);
        let new = NewApproval {
            id: approval.clone(),
            ask: "a".into(),
            subject: subject.clone(),
            expires_at: now.plus_ms(500),
        };
        let _ = ledger.ask(&id, epoch, new, now).await.unwrap();
        let _ = ledger.decide(&approval, &ada, Decision::Approve, "", now).await.unwrap();
        say(&format!("<decided {approval}>"));
        let used = ledger.consume(&approval, &id, epoch, &subject.digest, now).await.unwrap();
        assert!(matches!(used, Used::Granted(_)));
        say(&format!("<used {approval}>"));
        let event = if n % 2 == 0 { RunEvent::AgentEnded } else { RunEvent::HostLost };
        for fact in good_facts(Mode::Supervised) {
            let _ = ledger.append_fact(&id, epoch, now, fact).await.unwrap();
        }
        let _ = ledger.apply(&id, Some(epoch), event, now).await.unwrap();
        let _ = ledger.settle(&id, epoch, now).await.unwrap();
        say(&format!("<over {id}>"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_minus_nine_leaves_tasks_and_approvals_whole() {
    if let Some(dir) = as_child() {
        return work_until_killed(dir).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut told_all: BTreeSet<(String, String)> = BTreeSet::new();
    for round in 0..6usize {
        let mut child = start("kill_minus_nine_leaves_tasks_and_approvals_whole", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut hear = |line: &str| {
            for word in ["task", "decided", "used", "over"] {
                if let Some(id) = told(line, word) {
                    told_all.insert((word.to_owned(), id.to_owned()));
                }
            }
            told_all.len()
        };
        // Another place to die in each round.
        let enough = hear("") + 9 + 7 * round;
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 && hear(line.trim_end()) < enough {
            line.clear();
        }
        for line in kill(child, lines).lines() {
            hear(line);
        }
        assert!(hear("") >= enough, "the other process ended by itself");
        whole(dir.path(), &told_all).await;
    }
}

/// Nothing that was confirmed is missing, and no task or approval is half anything.
async fn whole(dir: &Path, told: &BTreeSet<(String, String)>) {
    let ledger = Ledger::open(dir).await.unwrap();
    let tasks = ledger.tasks(TaskFilter::default(), Page::default()).await.unwrap().items;
    for task in &tasks {
        let attempts = ledger.attempts(&task.id).await.unwrap();
        let live = attempts.iter().filter(|a| !a.state.is_terminal()).count();
        assert_eq!(live, usize::from(task.state.is_open()), "{task:?}");
        assert_eq!(attempts.len(), usize::try_from(task.attempts).unwrap());
        assert_eq!(&attempts.last().unwrap().run, task.state.run());
    }
    let approvals =
        ledger.approvals(ApprovalFilter::default(), Page::default()).await.unwrap().items;
    for approval in &approvals {
        let run = ledger.run(&approval.run).await.unwrap();
        let waits = run.state.name() == StateName::AwaitingApproval;
        assert_eq!(approval.state.name() == "pending", waits, "{approval:?}");
    }
    for (word, id) in told {
        let state = |id: &str| {
            let found = approvals.iter().find(|a| a.id.as_str() == id);
            found.unwrap_or_else(|| panic!("{word} {id} is lost")).state.name()
        };
        match word.as_str() {
            "task" => assert!(tasks.iter().any(|t| t.id.as_str() == id), "{id} is lost"),
            "decided" => assert_ne!(state(id), "pending"),
            "used" => assert_eq!(state(id), "consumed"),
            _ => {
                let run = ledger.run(&id.parse().unwrap()).await.unwrap();
                assert!(run.state.is_terminal() && ledger.record(&run.id).await.unwrap().is_some());
            }
        }
    }
}

async fn claim_once(dir: PathBuf) {
    let ledger = Ledger::open(dir).await.unwrap();
    say("<ready >");
    wait_for_word();
    let lease = ledger.claim(&run_id(1), "child", at(0), TTL_MS).await.unwrap();
    say(&format!("<claimed {}>", lease.map_or(0, |l| l.epoch)));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_processes_one_claims_the_run() {
    if let Some(dir) = as_child() {
        return claim_once(dir).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).await.unwrap();
    ledger.create_run(new_run(1, Mode::Unattended)).await.unwrap();
    let mut children: Vec<_> = (0..4)
        .map(|_| {
            let mut child = start("of_several_processes_one_claims_the_run", dir.path());
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            (child, lines)
        })
        .collect();
    let next = |lines: &mut std::io::Lines<_>, word: &str| loop {
        let line = lines.next().expect("the child goes on").unwrap();
        if let Some(value) = told(&line, word) {
            break value.to_owned();
        }
    };
    for (_, lines) in &mut children {
        next(lines, "ready");
    }
    for (child, _) in &mut children {
        tell(child.stdin.as_mut().unwrap());
    }
    let mut epochs = Vec::new();
    for (mut child, mut lines) in children {
        epochs.push(next(&mut lines, "claimed"));
        lines.for_each(drop);
        assert!(child.wait().unwrap().success());
    }
    epochs.sort();
    assert_eq!(epochs, ["0", "0", "0", "1"]);
}

async fn write_many(dir: PathBuf) {
    let ledger = Ledger::open(dir).await.unwrap();
    say("<ready >");
    wait_for_word();
    let epoch = ledger.run(&run_id(1)).await.unwrap().state.lease().unwrap().epoch;
    for n in 0..100 {
        let fact = Fact::AgentClaim { kind: "message".into(), text: n.to_string() };
        let kept = ledger.append_fact(&run_id(1), epoch, at(2), fact).await.unwrap();
        assert!(matches!(kept, Appended::Kept { .. }));
    }
    say("<wrote 100>");
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_in_several_processes_meet_no_busy_error_and_leave_no_gap() {
    if let Some(dir) = as_child() {
        return write_many(dir).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).await.unwrap();
    let (id, _) = executing(&ledger, 1).await;
    let test = "writers_in_several_processes_meet_no_busy_error_and_leave_no_gap";
    let mut children: Vec<Child> = (0..4).map(|_| start(test, dir.path())).collect();
    for child in &mut children {
        tell(child.stdin.as_mut().unwrap());
    }
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("<wrote 100>"));
    }
    let events = ledger.events(&id, 0, 10_000).await.unwrap();
    assert_eq!(events.len(), 5 + 400);
    assert!((1..).zip(&events).all(|(n, e)| e.seq == n));
}
