//! Agent and shell: what the commands of the built-in agent reach, whose it was in the record, and
//! what happens where the two cannot be kept apart.

use cofferdam_testkit::model::{Script, Turn};
use serde_json::{Value, json};

use crate::support::{Engine, Ran, World, command_line, descendants, finish, is_root, until};

/// Looks around from a command of the agent's. Waits for `stolen` where the test plants a token there.
const LOOK: &str = r#"python3 - <<'END'
import base64, glob, os, socket, time
def port(number):
    try:
        socket.create_connection(('127.0.0.1', number), 3).close()
        return 'open'
    except OSError:
        return 'closed'
def ask(token, host):
    try:
        s = socket.create_connection(('127.0.0.1', 3128), 10)
    except OSError:
        return 'closed'
    auth = base64.b64encode(b'run:' + token.encode()).decode()
    s.sendall(f'GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: Basic {auth}\r\nConnection: close\r\n\r\n'.encode())
    answer = b''
    while chunk := s.recv(4096):
        answer += chunk
    return answer.split(b' ')[1].decode()
proxy = os.environ.get('HTTPS_PROXY', '')
own = proxy.split(':')[2].split('@')[0] if proxy else ''
print('SEEN proxy', port(3128), 'model', port(3129))
print('SEEN variables', bool(proxy), any('ANTHROPIC' in name for name in os.environ))
for host in ['web.service.internal', 'other.example']:
    print('SEEN own', host, ask(own, host))
if os.environ.get('PLANTED') == 'yes':
    while not os.path.exists('stolen'):
        time.sleep(0.02)
    stolen = open('stolen').read()
    print('SEEN stolen', ask(stolen, 'web.service.internal'))
    readable = 0
    for place in glob.glob('/proc/[0-9]*/environ'):
        try:
            readable += stolen.encode() in open(place, 'rb').read()
        except OSError:
            pass
    print('SEEN readable', readable)
sockets = [l for l in open('/proc/net/unix').read().splitlines()[1:] if len(l.split()) > 7]
print('SEEN sockets', len(sockets))
END"#;

fn looking() -> Script {
    Script::new([
        Turn::call("run_shell", json!({ "command": LOOK })),
        Turn::call("finish", json!({ "report": "looked" })),
    ])
}

/// A world with a scripted agent and one admissible service, which says 200.
fn world(engine: Engine, script: Script) -> World {
    let world = World::with_model(engine, "anthropic", script);
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    // Ends with the process of the test.
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let config = world.dir.path().join("config.toml");
    let mut text = std::fs::read_to_string(&config).unwrap();
    text.push_str(&format!("[services]\n\"web.service.internal\" = \"127.0.0.1:{port}\"\n"));
    std::fs::write(&config, text).unwrap();
    world
}

const ALLOW: [&str; 2] = ["--allow", "web.service.internal:80"];

/// What each tool call came to, as the model was told it.
fn results(world: &World) -> Vec<String> {
    let requests = world.model.as_ref().unwrap().requests();
    let last = requests.last().unwrap().json();
    let messages = last["messages"].as_array().unwrap().iter();
    let blocks = messages.filter_map(|message| message["content"].as_array()).flatten();
    blocks
        .filter(|block| block["type"] == "tool_result")
        .map(|block| match &block["content"] {
            Value::String(text) => text.clone(),
            parts => parts[0]["text"].as_str().unwrap().to_owned(),
        })
        .collect()
}

/// What the first command saw.
fn seen(world: &World) -> Vec<String> {
    let results = results(world);
    results[0].lines().filter_map(|line| line.strip_prefix("SEEN ")).map(str::to_owned).collect()
}

fn egress(world: &World) -> Vec<(String, bool, Value)> {
    let facts = world.facts().into_iter().filter(|fact| fact["type"] == "egress");
    facts
        .map(|f| {
            let target = f["target"].as_str().unwrap().to_owned();
            (target, f["admitted"].as_bool().unwrap(), f["principal"].clone())
        })
        .collect()
}

fn shell_line(world: &World) -> String {
    let shown = world.cofferdam(&["show", "last"]).expect(0).stdout;
    let line = shown.lines().find_map(|line| line.trim().strip_prefix("shell"));
    line.unwrap_or_else(|| panic!("{shown}")).trim().to_owned()
}

/// Takes the agent's token from outside, as nothing inside can, and lays it where the shell looks.
fn plant(world: &World, host: u32) {
    let agent = until("the agent runs", || {
        descendants(host)
            .into_iter()
            .find(|pid| command_line(*pid).trim() == "/cofferdam/guest agent")
    });
    let environment = std::fs::read(format!("/proc/{agent}/environ")).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    let proxy = environment.split('\0').find_map(|v| v.strip_prefix("HTTPS_PROXY=")).unwrap();
    let token = proxy.rsplit(':').nth(1).unwrap().split('@').next().unwrap();
    let runs = std::fs::read_dir(world.data().join("runs")).unwrap();
    let run =
        runs.map(|entry| entry.unwrap().path()).find(|p| p.join("work/repo").is_dir()).unwrap();
    std::fs::write(run.join("work/repo/stolen.part"), token).unwrap();
    std::fs::rename(run.join("work/repo/stolen.part"), run.join("work/repo/stolen")).unwrap();
}

fn run_with_planted_token(world: &World, args: &[&str]) -> Ran {
    let args = [&["--env", "PLANTED"], args, &["look around"]].concat();
    let mut command = world.command(&world.run_args(&args));
    // Another user than root cannot read it from outside either.
    command.env("PLANTED", if is_root() { "yes" } else { "no" });
    let child = command.spawn().unwrap();
    if is_root() {
        plant(world, child.id());
    }
    finish(child).expect(0)
}

#[test]
fn shell_has_its_own_door_and_token_and_nothing_of_the_agents() {
    let world = world(Engine::Native, looking());
    run_with_planted_token(&world, &ALLOW);
    let mut expected = vec![
        "proxy open model closed",
        "variables True False",
        "own web.service.internal 200",
        "own other.example 403",
    ];
    if is_root() {
        expected.extend(["stolen 407", "readable 0"]);
    }
    expected.push("sockets 0");
    assert_eq!(seen(&world), expected);

    let mut expected = vec![
        ("web.service.internal:80".to_owned(), true, json!("shell")),
        ("other.example:80".to_owned(), false, json!("shell")),
    ];
    if is_root() {
        expected.push(("web.service.internal:80".to_owned(), false, json!("agent")));
    }
    assert_eq!(egress(&world), expected);
    let armed = world.fact("armed");
    assert_eq!(armed["spec"]["shell"], json!({ "network": "rules", "separation": "enforced" }));
    assert_eq!(shell_line(&world), "rules, enforced");
    world.assert_nothing_left();
}

#[test]
fn shell_without_a_network_reaches_nothing_at_all() {
    let world = world(Engine::Native, looking());
    let args = [&ALLOW[..], &["--shell-network", "off"]].concat();
    run_with_planted_token(&world, &args);
    let mut expected = vec![
        "proxy closed model closed",
        "variables False False",
        "own web.service.internal closed",
        "own other.example closed",
    ];
    if is_root() {
        expected.extend(["stolen closed", "readable 0"]);
    }
    expected.push("sockets 0");
    assert_eq!(seen(&world), expected);
    assert_eq!(egress(&world), []);
    assert_eq!(shell_line(&world), "off, enforced");
}

/// Also the negative control: the same commands see the ports where there is one network namespace.
#[test]
fn where_both_share_a_network_it_is_advisory_and_recorded_as_such() {
    let world = world(Engine::Docker, looking());
    world.run(&[&ALLOW[..], &["look around"]].concat()).expect(0);
    let seen = seen(&world);
    assert_eq!(seen[0], "proxy open model open");
    assert_eq!(seen[1], "variables True False");
    let expected = [
        ("web.service.internal:80".to_owned(), true, json!("shell")),
        ("other.example:80".to_owned(), false, json!("shell")),
    ];
    assert_eq!(egress(&world), expected);
    let armed = world.fact("armed");
    assert_eq!(armed["spec"]["shell"], json!({ "network": "rules", "separation": "advisory" }));
    assert_eq!(shell_line(&world), "rules, advisory");
}

#[test]
fn a_run_that_requires_separation_is_refused_where_there_is_none() {
    for (engine, args) in
        [(Engine::Docker, &["look around"][..]), (Engine::Native, &["--", "true"])]
    {
        let world = world(engine, looking());
        let args = [&["--require-shell-separation"], args].concat();
        let ran = world.run(&args).expect(3);
        assert!(ran.stderr.contains("HOST-011"), "{}", ran.stderr);
        world.cofferdam(&["show", "last"]).expect(5);
        world.assert_nothing_left();
    }
    // The same as configuration, and the permitted twin.
    let world = world(Engine::Docker, looking());
    let config = world.dir.path().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replacen("[run]\n", "[run]\nshell_separation = \"required\"\n", 1);
    std::fs::write(&config, text).unwrap();
    let ran = world.run(&["look around"]).expect(3);
    assert!(ran.stderr.contains("HOST-011"), "{}", ran.stderr);
    world
        .cofferdam(&{
            let mut args = vec!["run", "--engine", "native"];
            if !is_root() {
                args.extend(["--accept-degraded", "memory_limit,pids_limit,cpu_limit"]);
            }
            args.push("look around");
            args
        })
        .expect(0);
    assert_eq!(shell_line(&world), "rules, enforced");
}

#[test]
fn a_command_is_one_principal_with_all_that_it_starts() {
    let world = world(Engine::Native, Script::new([]));
    let fetch = "curl -sS -o /dev/null -w '%{http_code}' http://web.service.internal/";
    let args = [&ALLOW[..], &["--", "sh", "-c", fetch]].concat();
    let ran = world.run(&args).expect(0);
    assert!(ran.stderr.contains("200"), "{}", ran.stderr);
    let expected = [("web.service.internal:80".to_owned(), true, json!("agent"))];
    assert_eq!(egress(&world), expected);
    assert_eq!(shell_line(&world), "one with the agent, which is a command");
}

/// The tools that people have for it, at the first process (natively the supervisor) and at themselves.
const TOUCH: &str = r#"try() { if "$@" > said 2>&1; then echo "SEEN works: $*"; else echo "SEEN refused: $*"; fi; }
for pid in 1 "$$"; do
  echo "SEEN at $([ "$pid" = 1 ] && echo first || echo own)"
  try renice -n 19 -p "$pid" | sed "s/$pid\$/PID/"
  try taskset -c -p 0 "$pid" | sed "s/$pid\$/PID/"
  try ionice -c 2 -n 5 -p "$pid" | sed "s/$pid\$/PID/"
  try chrt -b -p 0 "$pid" | sed "s/$pid\$/PID/"
done
try prlimit --pid 1 --cpu=10000
try prlimit --cpu=10000 true
try nice -n 2 true
rm said"#;

/// On other engines an image need not have the tools; the attempts `supervisor.*` of tests/security make
/// the calls themselves, there too.
#[test]
fn commands_leave_the_supervisor_its_limits_and_have_their_own() {
    let script = Script::new([
        Turn::call("run_shell", json!({ "command": TOUCH })),
        Turn::call("finish", json!({ "report": "tried" })),
    ]);
    let world = world(Engine::Native, script);
    world.run(&["try"]).expect(0);
    let expected = [
        "at first",
        "refused: renice -n 19 -p PID",
        "refused: taskset -c -p 0 PID",
        "refused: ionice -c 2 -n 5 -p PID",
        "refused: chrt -b -p 0 PID",
        "at own",
        "works: renice -n 19 -p PID",
        "works: taskset -c -p 0 PID",
        "works: ionice -c 2 -n 5 -p PID",
        "works: chrt -b -p 0 PID",
        "refused: prlimit --pid 1 --cpu=10000",
        "works: prlimit --cpu=10000 true",
        "works: nice -n 2 true",
    ];
    assert_eq!(seen(&world), expected);
    world.assert_nothing_left();
}

#[test]
fn what_a_command_leaves_in_the_background_ends_with_the_run() {
    let marker = format!("left-behind-{}", std::process::id());
    let leave = format!(
        "setsid sh -c 'echo $$ > up; sleep 1000; : {marker}' & while [ ! -s up ]; do sleep 0.02; done"
    );
    let script = Script::new([
        Turn::call("run_shell", json!({ "command": leave })),
        Turn::call("run_shell", json!({ "command": "kill -0 $(cat up) && echo it lives" })),
        Turn::call("finish", json!({ "report": "left" })),
    ]);
    let world = world(Engine::Native, script);
    world.run(&["leave something"]).expect(0);
    assert!(results(&world)[1].starts_with("it lives"), "{:?}", results(&world));
    let alive = std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.parse().is_ok_and(|pid| command_line(pid).contains(&marker))
    });
    assert!(!alive);
    world.assert_nothing_left();
}

#[test]
fn a_shell_that_kills_its_host_loses_its_commands_and_not_the_run() {
    let script = Script::new([
        Turn::call("run_shell", json!({ "command": "kill -9 -1" })),
        Turn::call("run_shell", json!({ "command": "echo never" })),
        Turn::call("write_file", json!({ "path": "note.txt", "content": "still here\n" })),
        Turn::call("finish", json!({ "report": "done" })),
    ]);
    let world = world(Engine::Native, script);
    world.run(&["kill everything"]).expect(0);
    let results = results(&world);
    assert!(results[0].contains("has ended") && results[1].contains("has ended"), "{results:?}");
    assert_eq!(results.len(), 3);
    let id = world.last()["run"].as_str().unwrap().to_owned();
    assert_eq!(world.git(&["show", &format!("refs/cofferdam/runs/{id}:note.txt")]), "still here");
    world.assert_nothing_left();
}
