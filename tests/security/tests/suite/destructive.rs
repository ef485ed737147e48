//! Agents that break their own box: everything killed, everything filled, the work volume made a trap.
//! Whatever they do, the run ends with a verdict, the machine is as it was, and nothing is left.

use cofferdam_security::Promise;

use crate::machine::Machine;
use crate::report::Report;
use crate::world::{EngineName, World, on_both_engines};

on_both_engines!(
    killing_everything_in_reach_loses_no_commit,
    a_repository_that_is_a_link_is_not_followed,
    links_fifos_and_sockets_among_the_work_hang_nothing,
    deep_directories_and_sparse_files_are_removed,
    children_that_outlive_the_agent_are_ended,
    an_endless_line_is_bounded,
    a_storm_of_refused_connections_is_bounded,
    a_full_tmp_ends_nothing_but_the_writer,
);

/// One way to break the box, with the promise that is at stake.
fn breaks(engine: EngineName, promise: Promise, script: &str) -> (World, i32) {
    let (world, before) = (World::new(engine), Machine::look());
    let ran = world.shell(script);
    let code = ran.code.unwrap_or_else(|| panic!("promise {}: no end: {ran:?}", promise.number()));
    assert_eq!(before, Machine::look(), "the machine is not as it was");
    assert!(world.last()["outcome"].is_string(), "the run has a verdict: {}", ran.stdout);
    (world, code)
}

fn killing_everything_in_reach_loses_no_commit(engine: EngineName) {
    let script = "echo kept > kept && git add kept && git commit -qm kept; kill -9 -1; sleep 2";
    let (world, _) = breaks(engine, Promise::P8, script);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    assert_eq!(world.git(&["show", &format!("refs/cofferdam/runs/{run}:kept")]), "kept");
    world.assert_nothing_left();
}

fn a_repository_that_is_a_link_is_not_followed(engine: EngineName) {
    let script = "cd / && rm -rf /work/repo && ln -s /etc /work/repo; true";
    let (world, code) = breaks(engine, Promise::P6, script);
    assert_ne!(code, 0, "what cannot be collected is no success");
    let found = std::process::Command::new("grep")
        .args(["-rl", "root:x:0:0"])
        .arg(world.dir.path().join("data"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "a file of a link's target came out");
}

fn links_fifos_and_sockets_among_the_work_hang_nothing(engine: EngineName) {
    let script = "mkfifo pipe; ln -s /dev/zero zero; ln -s /proc/self/mem memory; ln -s . loop; \
         ln -s ../../../../etc/passwd up; ln -s /work/repo/self self; \
         python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"; \
         echo x > real && git add real && git commit -qm real; true";
    let (world, _) = breaks(engine, Promise::P6, script);
    let run = world.last()["run"].as_str().unwrap().to_owned();
    assert_eq!(world.git(&["show", &format!("refs/cofferdam/runs/{run}:real")]), "x");
}

fn deep_directories_and_sparse_files_are_removed(engine: EngineName) {
    let script = "python3 -c \"import os\nos.chdir('/work')\nfor i in range(2000): os.mkdir('d'); os.chdir('d')\"; \
         truncate -s 1T /work/sparse; truncate -s 1T /work/home/sparse; true";
    let (world, code) = breaks(engine, Promise::P11, script);
    assert_eq!(code, 0);
    world.assert_nothing_left();
}

fn children_that_outlive_the_agent_are_ended(engine: EngineName) {
    let script = "for i in $(seq 100); do setsid sleep 300 >/dev/null 2>&1 & done; \
         (trap '' TERM HUP INT; while :; do sleep 300; done) >/dev/null 2>&1 & true";
    let (world, code) = breaks(engine, Promise::P12, script);
    assert_eq!(code, 0);
    world.assert_nothing_left();
}

fn an_endless_line_is_bounded(engine: EngineName) {
    let script = "head -c 40000000 /dev/zero | tr '\\0' x; true";
    let (world, code) = breaks(engine, Promise::P5, script);
    assert_eq!(code, 0);
    world.assert_nothing_left();
}

/// Many times as many refused connections as there are slots, none of them closed by the agent, half
/// without the token and half with it; then, while they are held, a forbidden one and its permitted twin,
/// which has ten seconds.
const STORM: &str = r#"
import base64, os, socket, subprocess, urllib.parse
proxy = urllib.parse.urlsplit(os.environ.get('http_proxy') or os.environ['HTTP_PROXY'])
word = base64.b64encode(f'{proxy.username}:{proxy.password}'.encode()).decode()
held = []
for i in range(1500):
    s = socket.create_connection(('127.0.0.1', 3128), 60)
    token = f'Proxy-Authorization: Basic {word}\r\n' if i % 2 else ''
    s.sendall(f'CONNECT a{i}.example.com:443 HTTP/1.1\r\nHost: a{i}.example.com:443\r\n{token}\r\n'.encode())
    answer = s.recv(12).decode()
    assert answer == ('HTTP/1.1 403' if i % 2 else 'HTTP/1.1 407'), (i, answer)
    held.append(s)
subprocess.run(['./attacker', 'broker.unlisted_name'], check=True)
"#;

fn a_storm_of_refused_connections_is_bounded(engine: EngineName) {
    let script = &format!("python3 - <<'END'\n{STORM}\nEND\n");
    let (world, before) = (World::new(engine), Machine::look());
    let ran = world.shell(script).expect(0);
    assert_eq!(before, Machine::look(), "the machine is not as it was");
    Report::parse(&ran.stderr).assert_all_refused(["broker.unlisted_name"].into_iter());
    let record = world.cofferdam(&["record", "show", "last"]).expect(0).stdout;
    assert!(record.len() < 4 << 20, "the record has {} bytes", record.len());
    world.assert_nothing_left();
}

fn a_full_tmp_ends_nothing_but_the_writer(engine: EngineName) {
    let world = World::new(engine);
    let config = world.dir.path().join("config.toml");
    std::fs::write(config, "[run]\ntmp = \"8MiB\"\n").unwrap();
    let script = "head -c 64000000 /dev/zero > /tmp/fill && echo FITS; rm -f /tmp/fill; \
         echo kept > kept && git add kept && git commit -qm kept";
    let ran =
        world.cofferdam(&["run", "--engine", engine.text(), "--", "sh", "-c", script]).expect(0);
    assert!(!ran.stderr.contains("FITS"), "{}", ran.stderr);
    world.assert_nothing_left();
}
