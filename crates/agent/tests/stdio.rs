//! The agent as a process. This program is its own test harness, since it has to be started again as
//! the agent: with `--as-agent` it is one, otherwise it is the tests.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and this one is its own harness"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use cofferdam_agent::{BuiltinConfig, Event, EventKind};
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{ModelServer, Script, Turn};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;

type Test = fn(&tokio::runtime::Runtime);

const TESTS: [(&str, Test); 4] = [
    ("a_run_is_told_in_lines_and_an_exit_code", a_run_is_told_in_lines_and_an_exit_code),
    ("a_configuration_that_is_none_is_told", a_configuration_that_is_none_is_told),
    ("a_signal_ends_the_command_in_flight", a_signal_ends_the_command_in_flight),
    ("an_agent_whose_pipe_is_closed_ends", an_agent_whose_pipe_is_closed_ends),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|a| a == word);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if has("--as-agent") {
        let code = runtime.block_on(cofferdam_agent::run_stdio());
        runtime.shutdown_background();
        return ExitCode::from(u8::try_from(code).unwrap());
    }
    if has("--list") {
        if !has("--ignored") {
            TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        }
        return ExitCode::SUCCESS;
    }
    let named: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    for (name, test) in TESTS {
        if named.is_empty() || named.iter().any(|n| name.contains(n.as_str())) {
            test(&runtime);
            println!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}

#[expect(clippy::disallowed_methods, reason = "the test starts itself as the agent")]
fn agent(config: &[u8]) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("--as-agent")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // An agent that refuses a configuration need not have read all of it.
    let _ = child.stdin.take().unwrap().write_all(config);
    child
}

fn config(server: &ModelServer, cwd: &Path) -> Vec<u8> {
    let mut config = BuiltinConfig::new("Do it.".into(), Dialect::Anthropic, "m".into(), 9);
    config.base_url = server.base_url();
    config.cwd = cwd.to_str().unwrap().to_owned();
    serde_json::to_vec(&config).unwrap()
}

/// All events and the exit code. Standard error holds the error event's text and nothing else.
fn outcome(mut child: Child) -> (Vec<Event>, Option<i32>) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let events: Vec<Event> = lines.map(|l| serde_json::from_str(&l.unwrap()).unwrap()).collect();
    let errors = events.iter().filter(|e| e.kind == EventKind::Error);
    let expected: String = errors.map(|e| format!("{}\n", e.text)).collect();
    let told = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!(told, expected);
    (events, child.wait().unwrap().code())
}

fn server(runtime: &tokio::runtime::Runtime, turns: Vec<Turn>) -> ModelServer {
    let _guard = runtime.enter();
    ModelServer::start(Script::new(turns)).unwrap()
}

fn a_run_is_told_in_lines_and_an_exit_code(runtime: &tokio::runtime::Runtime) {
    let dir = tempfile::tempdir().unwrap();
    let plan = Turn::call("plan", json!({"steps": ["a\nb", "c"]}));
    let server = server(runtime, vec![plan, Turn::call("finish", json!({"report": "one\ntwo"}))]);
    let (events, code) = outcome(agent(&config(&server, dir.path())));
    let told: Vec<(EventKind, &str)> = events.iter().map(|e| (e.kind, e.text.as_str())).collect();
    assert_eq!(
        told,
        [
            (EventKind::Tool, "plan"),
            (EventKind::Plan, "1. a b; 2. c"),
            (EventKind::ToolResult, "plan: The plan is noted. Go on with its next step."),
            (EventKind::Tool, "finish"),
            (EventKind::Finish, "one\ntwo"),
        ]
    );
    assert_eq!(code, Some(0));
}

fn a_configuration_that_is_none_is_told(_: &tokio::runtime::Runtime) {
    let too_long = vec![b' '; cofferdam_agent::limits::CONFIG_BYTES_MAX + 1];
    for text in [&b""[..], b"{", b"{\"task\": \"x\", \"key\": \"y\"}", &too_long] {
        let (events, code) = outcome(agent(text));
        assert_eq!(code, Some(1));
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].kind, EventKind::Error);
        assert!(events[0].text.starts_with("AGENT-001: "), "{}", events[0].text);
    }
}

fn forever() -> Vec<Turn> {
    let command = "sleep 1000 & echo $$ $! > pids.new; mv pids.new pids; wait";
    vec![Turn::call("run_shell", json!({"command": command}))]
}

fn eventually<T>(what: impl Fn() -> Option<T>) -> T {
    for _ in 0..2_000 {
        if let Some(found) = what() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not happen in 20 s");
}

fn pid(number: &str) -> Pid {
    Pid::from_raw(number.trim().parse().unwrap()).unwrap()
}

/// Gone, or dead and only not yet looked at by its parent.
fn is_gone(pid: Pid) -> Option<()> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let dead = stat.is_ok_and(|s| s.rsplit(") ").next().unwrap_or_default().starts_with('Z'));
    (dead || test_kill_process(pid).is_err()).then_some(())
}

fn a_signal_ends_the_command_in_flight(runtime: &tokio::runtime::Runtime) {
    let dir = tempfile::tempdir().unwrap();
    let server = server(runtime, forever());
    let child = agent(&config(&server, dir.path()));
    let pids = eventually(|| std::fs::read_to_string(dir.path().join("pids")).ok());
    let agent_pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(agent_pid, Signal::TERM).unwrap();
    assert_eq!(outcome(child).1, Some(143));
    pids.split_whitespace().for_each(|number| eventually(|| is_gone(pid(number))));
}

fn an_agent_whose_pipe_is_closed_ends(runtime: &tokio::runtime::Runtime) {
    let dir = tempfile::tempdir().unwrap();
    let turns =
        (0..9).map(|n| Turn::call("run_shell", json!({"command": format!("echo {n} >> ran")})));
    let server = server(runtime, turns.collect());
    let mut child = agent(&config(&server, dir.path()));
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!dir.path().join("ran").exists());
}
