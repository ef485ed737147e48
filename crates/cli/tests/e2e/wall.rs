//! The wall as a person meets it: tested before each run, and what to do about what it refused.

use std::io::Write as _;

use serde_json::Value;

use crate::support::{Engine, World, on_both_engines, until};

on_both_engines!(
    the_wall_is_tested_before_the_agent_and_that_is_on_record,
    s29_there_is_no_resolver_inside,
    s35_every_process_of_the_agent_is_behind_the_same_wall,
);

/// Asks for each target by plain HTTP through the proxy and prints the status.
fn ask(targets: &[&str]) -> String {
    format!(
        "python3 - <<'END'\nimport os, urllib.request\nfor target in {targets:?}:\n  try:\n    \
         print(target, urllib.request.urlopen('http://' + target + '/', timeout=20).status)\n  \
         except Exception as e:\n    print(target, e)\nEND\n"
    )
}

fn the_wall_is_tested_before_the_agent_and_that_is_on_record(engine: Engine) {
    let world = World::new(engine);
    world.run_shell("true").expect(0);
    let facts = world.facts();
    let place = |kind: &str| facts.iter().position(|fact| fact["type"] == kind).unwrap();
    let test = &facts[place("egress_test")];
    assert_eq!(test["refused"], true, "{test}");
    assert_eq!(test["status_claim"], 403, "{test}");
    assert_eq!(test["open_claim"].as_array().unwrap().len(), 0, "{test}");
    assert!(place("egress_test") < place("agent_started"));
    assert_eq!(facts[place("armed")]["spec"]["egress_test"], true);
    // It is no connection that the run asked for.
    assert!(!facts.iter().any(|fact| fact["type"] == "egress"), "{facts:#?}");
    let logs = world.cofferdam(&["logs", "last"]).expect(0).stdout;
    assert!(logs.contains("wall test"), "{logs}");
}

fn s29_there_is_no_resolver_inside(engine: Engine) {
    let world = World::new(engine);
    let script = "python3 - <<'END'\nimport socket\nfor name in ['example.com', 'a.b.example.com']:\n  \
                  try:\n    print('RESOLVED', socket.getaddrinfo(name, 443))\n  except Exception as e:\n    \
                  print('no', name, e)\nfor server in ['1.1.1.1', '8.8.8.8', '169.254.169.254', \
                  '127.0.0.1', '127.0.0.11', '127.0.0.53']:\n  s = socket.socket(socket.AF_INET, \
                  socket.SOCK_DGRAM)\n  s.settimeout(2)\n  try:\n    s.connect((server, 53))\n    \
                  s.send(b'\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7example\\3com\\0\\0\\1\\0\\1')\n    \
                  print('ANSWERED', server, s.recv(99))\n  except Exception as e:\n    print('no', server, e)\n\
                  print('DONE')\nEND\n";
    let ran = world.run_shell(script).expect(0);
    assert!(ran.stderr.contains("DONE"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("RESOLVED") && !ran.stderr.contains("ANSWERED"), "{}", ran.stderr);
}

fn s35_every_process_of_the_agent_is_behind_the_same_wall(engine: Engine) {
    let world = World::new(engine);
    let look = "echo NET $(readlink /proc/self/ns/net)";
    let script = format!(
        "{look}; setsid sh -c '{look}'; env -i /bin/sh -c '{look}'; (nohup sh -c '{look}' 2>&1 &); \
         sh -c 'sh -c \"{look}\" & wait'; sleep 1; echo PID1 $(readlink /proc/1/ns/net)"
    );
    let ran = world.run_shell(&script).expect(0);
    let mut seen: Vec<&str> =
        ran.stderr.lines().filter_map(|line| line.split("NET ").nth(1)).map(str::trim).collect();
    assert_eq!(seen.len(), 5, "{}", ran.stderr);
    seen.dedup();
    assert_eq!(seen.len(), 1, "{}", ran.stderr);
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    assert_ne!(seen[0], own.to_string_lossy(), "the host's own namespace");
}

/// Files of a checkout that other tools take for configuration change nothing here.
#[test]
fn s20_a_repository_cannot_widen_what_is_reachable() {
    let world = World::new(Engine::Native);
    let config =
        "[egress]\nallow = [\"open.example:80\"]\n[services]\n\"open.example\" = \"127.0.0.1:9\"\n";
    for place in [
        "cofferdam.toml",
        ".cofferdam.toml",
        "config.toml",
        ".cofferdam/config.toml",
        ".config/cofferdam/config.toml",
    ] {
        let path = world.repo().join(place);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, config).unwrap();
    }
    world.write(".env", "COFFERDAM_CONFIG=cofferdam.toml\n");
    let ran = world.run_shell(&ask(&["open.example"])).expect(0);
    assert!(ran.stderr.contains("open.example HTTP Error 403"), "{}", ran.stderr);
    let armed = &world.facts()[0]["spec"];
    assert_eq!(armed["egress_allow"].as_array().unwrap().len(), 0, "{armed}");
    assert_eq!(armed["services"].as_array().unwrap().len(), 0, "{armed}");
}

#[test]
fn what_was_refused_becomes_rules_that_admit_it() {
    let world = World::new(Engine::Native);
    let targets = ["a.cdn.example", "b.cdn.example", "c.cdn.example", "one.example:8080"];
    let asked = [&targets[..], &["10.0.0.1", "one.example:8080", "no.cdn.example"]].concat();
    let script = ask(&asked);
    world.run(&["--deny", "no.cdn.example:80", "--", "sh", "-c", &script]).expect(0);

    let shown = world.cofferdam(&["egress", "suggest", "last"]).expect(0);
    assert!(shown.stdout.contains("--allow '*.cdn.example:80'"), "{}", shown.stdout);
    assert!(shown.stdout.contains("instead of 3 names"), "{}", shown.stdout);
    assert!(shown.stdout.contains("[services]") && shown.stdout.contains("deny beats allow"));
    let found = world.cofferdam(&["egress", "suggest", "last", "--json"]).expect(0).json();
    let rules: Vec<(&str, u64)> = found["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["rule"].as_str().unwrap(), one["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(rules, [("*.cdn.example:80", 3), ("one.example:8080", 2)], "{found:#}");
    assert_eq!(found["no_rule_for"].as_array().unwrap().len(), 2, "{found:#}");
    let exact = world.cofferdam(&["egress", "suggest", "last", "--exact", "--json"]).expect(0);
    assert_eq!(exact.json()["rules"].as_array().unwrap().len(), 4);

    // What it prints for the configuration is a policy, and admits just that.
    let policy = world.dir.path().join("policy.toml");
    std::fs::write(&policy, found["config"].as_str().unwrap()).unwrap();
    let policy = policy.to_str().unwrap();
    let replay = ["egress", "replay", "last", "--policy", policy];
    let replayed: Value = world.cofferdam(&[&replay[..], &["--json"]].concat()).expect(0).json();
    assert_eq!(replayed["newly_admitted"], 6, "the deny rule is not in the file: {replayed:#}");
    assert_eq!((&replayed["newly_refused"], &replayed["still_refused"]), (&0.into(), &1.into()));
    let told = world.cofferdam(&[&replay[..], &["--fail-on-change"]].concat()).expect(1);
    assert!(told.stdout.contains("newly admitted"), "{}", told.stdout);

    std::fs::write(policy, "").unwrap();
    let same = world.cofferdam(&[&replay[..], &["--fail-on-change"]].concat()).expect(0);
    assert!(same.stdout.contains("nothing would have been decided otherwise"), "{}", same.stdout);
    let mut file = std::fs::File::create(policy).unwrap();
    file.write_all(b"[egress]\nallow = [\"*.com:443\"]\n").unwrap();
    let wrong = world.cofferdam(&replay).expect(2);
    assert!(wrong.stderr.contains("*.com:443"), "{}", wrong.stderr);
}

#[test]
fn a_live_run_can_be_asked_too() {
    let world = World::new(Engine::Native);
    let script = format!("{}; sleep 100", ask(&["early.example"]));
    let run = world.command(&world.run_args(&["--", "sh", "-c", &script])).spawn().unwrap();
    let found = until("a suggestion", || {
        let ran = world.cofferdam(&["egress", "suggest", "last", "--json"]);
        (ran.code == Some(0))
            .then(|| ran.json())
            .filter(|found| !found["rules"].as_array().unwrap().is_empty())
    });
    assert_eq!(found["rules"][0]["rule"], "early.example:80");
    assert_eq!(found["over"], false);
    let told = world.cofferdam(&["egress", "suggest", "last"]).expect(0);
    assert!(told.stderr.contains("not over"), "{}", told.stderr);
    world.cofferdam(&["cancel", "last"]).expect(0);
    crate::support::finish(run).expect(130);
}
