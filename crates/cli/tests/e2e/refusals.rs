//! Everything that is refused before it starts, or fails on the way: a code, a way out, nothing left.

use cofferdam_testkit::model::{Fault, Script, Turn};
use serde_json::json;

use crate::support::{Engine, World};

#[track_caller]
fn refused(world: &World, args: &[&str], exit: i32, code: &str, words: &str) {
    let ran = world.cofferdam(args).expect(exit);
    assert!(ran.stderr.contains(code) && ran.stderr.contains(words), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("hint:") || code.starts_with("CONFIG"),
        "no way out: {}",
        ran.stderr
    );
    let runs = world.cofferdam(&["ps", "--json"]).expect(0).json();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 0, "a refused run must not exist");
}

#[test]
fn what_is_no_repository_is_refused() {
    let world = World::new(Engine::Native);
    let plain = world.dir.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    let plain = plain.display().to_string();
    refused(&world, &["run", "-C", &plain, "--", "true"], 3, "WORK-", "not in a git repository");
    refused(&world, &["run", "-C", "/does/not/exist", "--", "true"], 3, "WORK-", "exist");
}

#[test]
fn remote_projects_are_refused_before_any_engine_is_touched() {
    let world = World::new(Engine::Native);
    for place in ["ssh://host/repo", "git@example.com:me/repo.git", "https://example.com/repo.git"]
    {
        // An engine that cannot exist: it would be the error if it were looked at first.
        let args = ["run", "--engine", "docker", "-C", place, "--", "true"];
        refused(&world, &args, 3, "WORK-001", "another machine");
    }
}

#[test]
fn an_unborn_branch_is_refused() {
    let world = World::new(Engine::Native);
    let empty = world.dir.path().join("empty");
    let place = empty.display().to_string();
    world.git(&["init", "-q", &place]);
    refused(&world, &["run", "-C", &place, "--", "true"], 3, "WORK-", "no commit");
}

#[test]
fn a_missing_key_is_named() {
    let world = World::new(Engine::Native);
    std::fs::write(
        world.dir.path().join("config.toml"),
        "[providers.other]\ndialect = \"anthropic\"\nbase_url = \"https://api.example.com\"\nkey_env = \"OTHER_KEY\"\n",
    )
    .unwrap();
    refused(&world, &["run", "--model", "other/m", "task"], 3, "HOST-001", "OTHER_KEY");
    refused(&world, &["run", "task"], 2, "CONFIG-002", "ANTHROPIC_API_KEY");
    refused(&world, &["run", "--model", "anthropc/m", "task"], 2, "CONFIG-002", "\"anthropic\"");
}

#[test]
fn an_absent_engine_is_named_with_the_way_out() {
    let world = World::new(Engine::Native);
    let mut command = world.command(&["run", "--engine", "docker", "--", "true"]);
    command.env("DOCKER_HOST", "unix:///does/not/exist.sock");
    let ran = crate::support::finish(command.spawn().unwrap()).expect(3);
    assert!(
        ran.stderr.contains("/does/not/exist.sock") && ran.stderr.contains("hint:"),
        "{}",
        ran.stderr
    );
}

#[test]
fn wrong_rules_and_unknown_keys_are_refused_by_name() {
    let world = World::new(Engine::Native);
    refused(&world, &["run", "--allow", "*.com:443", "--", "true"], 2, "CONFIG-003", "*.com:443");
    refused(
        &world,
        &["run", "--accept-degraded", "landlok", "--", "true"],
        2,
        "CONFIG-002",
        "landlock",
    );
    std::fs::write(world.dir.path().join("config.toml"), "[run]\nengin = \"native\"\n").unwrap();
    let ran = world.cofferdam(&["run", "--", "true"]).expect(2);
    assert!(ran.stderr.contains("CONFIG-001"), "{}", ran.stderr);
    assert!(ran.stderr.contains("did you mean \"engine\""), "{}", ran.stderr);
    let checked = world.cofferdam(&["config", "check"]);
    assert_eq!(checked.code, Some(2));
}

#[test]
fn an_empty_task_is_refused() {
    let world = World::with_model(Engine::Native, "anthropic", Script::new([]));
    refused(&world, &["run", ""], 2, "HOST-002", "empty");
}

#[test]
fn an_unreachable_provider_fails_the_run_with_its_code() {
    let world = World::new(Engine::Native);
    // Bound and dropped: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    world.provider("anthropic", &format!("http://127.0.0.1:{port}"));
    let ran = world.run(&["do something"]).expect(1);
    assert!(ran.stdout.contains("failed"), "{}", ran.stdout);
    let call = world.fact("model_call");
    assert_eq!(call["status"], 502, "{call:#}");
    assert!(call["refusal"].as_str().unwrap().starts_with("MODEL-"), "{call:#}");
    assert!(ran.stderr.contains("MODEL-"), "the person sees why: {}", ran.stderr);
    world.assert_nothing_left();
}

#[test]
fn a_provider_that_refuses_the_key_is_reported() {
    let world = World::with_model(Engine::Native, "openai_chat", Script::new([]));
    world.model.as_ref().unwrap().require_key("another key");
    let ran = world.run(&["do something"]).expect(1);
    assert_eq!(world.fact("model_call")["refusal"], "MODEL-014");
    assert!(ran.stderr.contains("MODEL-014"), "{}", ran.stderr);
    world.assert_nothing_left();
}

#[test]
fn a_program_that_does_not_exist_is_a_failed_run() {
    let world = World::new(Engine::Native);
    let ran = world.run(&["--", "no-such-program"]).expect(1);
    assert!(ran.stdout.contains("no-such-program"), "{ran:#?}");
    world.assert_nothing_left();
}

#[test]
fn transient_faults_of_the_provider_are_retried() {
    let busy = Fault { status: Some(529), times: Some(1), ..Fault::default() };
    let script = Script::new([Turn::call("finish", json!({ "report": "done" })).with_fault(busy)]);
    let world = World::with_model(Engine::Native, "anthropic", script);
    world.run(&["do something"]).expect(0);
    let statuses: Vec<u16> =
        world.model.as_ref().unwrap().requests().iter().map(|r| r.status).collect();
    assert_eq!(statuses, [529, 200]);
}

#[test]
fn unknown_and_ambiguous_runs_are_not_found() {
    let world = World::new(Engine::Native);
    for args in
        [["show", "zzzzzzzz"], ["diff", "zzzzzzzz"], ["logs", "zzzzzzzz"], ["cancel", "zzzzzzzz"]]
    {
        let ran = world.cofferdam(&args).expect(5);
        assert!(ran.stderr.contains("LEDGER-006"), "{}", ran.stderr);
    }
    world.cofferdam(&["show", "last"]).expect(5);
}

#[test]
fn a_configuration_file_that_was_named_must_exist() {
    let world = World::new(Engine::Native);
    let ran = world.cofferdam(&["--config", "typo.toml", "run", "--", "true"]).expect(2);
    assert!(ran.stderr.contains("typo.toml"), "{}", ran.stderr);
}

#[test]
fn a_data_directory_inside_the_checkout_is_refused() {
    let world = World::new(Engine::Native);
    refused(
        &world,
        &["--data-dir", "inside", "run", "--", "true"],
        3,
        "HOST-009",
        "lies in the checkout",
    );
}

#[test]
fn what_the_file_check_passes_a_run_does_not_refuse() {
    let world = World::new(Engine::Native);
    let file = world.dir.path().join("config.toml");
    for wrong in [
        "[egress]\nallow = [\"crates.io\"]\n",
        "[services]\n\"m\" = \"169.254.169.254\"\n",
        "[run]\nmodel = \"local/q\"\n",
        "[run]\nmax_steps = 0\n",
    ] {
        std::fs::write(&file, wrong).unwrap();
        let ran = world.cofferdam(&["config", "check"]).expect(2);
        assert!(ran.stderr.contains("CONFIG-00"), "{wrong}: {}", ran.stderr);
    }
    std::fs::write(&file, "").unwrap();
    world.cofferdam(&["config", "check"]).expect(0);
}

#[test]
fn wrong_use_is_told_in_json_where_json_was_asked_for() {
    let world = World::new(Engine::Native);
    let ran = world.cofferdam(&["--json", "rnu"]).expect(2);
    let told: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert!(told["error"]["message"].as_str().unwrap().contains("rnu"), "{told}");
}

#[test]
fn variables_that_are_passed_in_are_named_and_not_called_no_credential() {
    let world = World::new(Engine::Native);
    let ran = world.run(&["--env", "TEST_MODEL_KEY", "--", "sh", "-c", "echo ${#TEST_MODEL_KEY}"]);
    let ran = ran.expect(0);
    assert!(ran.stderr.contains("readable inside: TEST_MODEL_KEY"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("no credential inside"), "{}", ran.stderr);
}
