//! The main job: a task goes in, commits come back, the checkout is as it was until `apply`.

use cofferdam_testkit::model::{Script, Turn};
use serde_json::json;

use crate::support::{Engine, KEY, World, on_both_engines};

/// What the scripted model asks the built-in agent to do: read, edit, test, commit, finish.
pub(crate) fn fixing() -> Script {
    let shell = |command: &str| Turn::call("run_shell", json!({ "command": command }));
    Script::new([
        Turn::call("plan", json!({ "steps": ["look", "fix", "test", "commit"] })),
        shell("sh test.sh; echo exit $?"),
        Turn::call("read_file", json!({ "path": "greet.sh" })),
        Turn::call("edit_file", json!({ "path": "greet.sh", "old_text": "$2", "new_text": "$1" })),
        shell("sh test.sh && git add greet.sh && git commit -q -m 'Greet the first argument'"),
        Turn::call("finish", json!({ "report": "fixed: greet.sh used the wrong argument" })),
    ])
}

on_both_engines!(
    a_task_comes_back_as_commits_and_applies,
    any_command_can_be_the_agent,
    a_clean_checkout_travels_as_head_itself,
    a_run_without_commits_completes_and_says_so,
    leftovers_come_back_as_a_commit,
    a_command_that_fails_is_a_failed_run,
);

fn a_task_comes_back_as_commits_and_applies(engine: Engine) {
    let world = World::with_model(engine, "anthropic", fixing());
    let before = world.state_of_checkout();
    let ran = world.run(&["--json", "Make the test pass and commit"]).expect(0);
    let result = ran.json();
    assert_eq!(result["outcome"], "completed", "{result:#}");
    assert_eq!(result["collected"]["commits"], 1);
    assert!(result["report_claim"].as_str().unwrap().contains("wrong argument"), "{result:#}");
    assert_eq!(world.state_of_checkout(), before, "the checkout must not change");

    let id = result["run"].as_str().unwrap();
    let changed = world.git(&[
        "diff",
        "--name-only",
        result["base"].as_str().unwrap(),
        &format!("refs/cofferdam/runs/{id}"),
    ]);
    assert_eq!(changed, "greet.sh");
    let carried = world.git(&["show", &format!("refs/cofferdam/runs/{id}:untracked.txt")]);
    assert_eq!(carried, "untracked", "untracked files travel");

    let diff = world.cofferdam(&["diff", id]).expect(0).stdout;
    assert!(diff.contains("greet.sh") && diff.contains("+printf 'Hello, %s\\n' \"$1\""), "{diff}");

    world.cofferdam(&["apply", id]).expect(0);
    assert_eq!(
        world.git(&["log", "-1", "--format=%s %an"]),
        "Greet the first argument Test Person"
    );
    assert!(world.read("greet.sh").contains("$1"));
    assert_eq!(world.read("README.md"), "# Greeter\n\nedited, not committed\n");
    assert_eq!(world.git(&["status", "--porcelain"]), " M README.md\n?? untracked.txt");
    let again = world.cofferdam(&["apply", id]).expect(0).stdout;
    assert!(again.contains("nothing to do"), "{again}");

    // The key went to the provider and nowhere else.
    let server = world.model.as_ref().unwrap();
    let requests = server.requests();
    assert!(requests.iter().all(|r| r.header("x-api-key") == KEY), "the host adds the key");
    let everything = [
        world.cofferdam(&["record", "show", id]).stdout,
        world.cofferdam(&["logs", id, "--json"]).stdout,
        ran.stdout,
        ran.stderr,
    ]
    .concat();
    assert!(!everything.contains(KEY), "the key is in what the run left");
    assert!(result["spend"]["model_calls"].as_u64().unwrap() >= 6, "{result:#}");
    world.assert_nothing_left();
}

#[test]
fn each_dialect_carries_a_whole_task() {
    for dialect in ["openai_chat", "openai_responses", "gemini"] {
        let world = World::with_model(Engine::Native, dialect, fixing());
        let result = world.run(&["--json", "Make the test pass and commit"]).expect(0).json();
        assert_eq!(result["outcome"], "completed", "{dialect}: {result:#}");
        assert_eq!(result["collected"]["commits"], 1, "{dialect}");
        assert!(result["spend"]["input_tokens"].as_u64().unwrap() > 0, "{dialect}: {result:#}");
        assert_eq!(
            result["spend"]["calls_counted_by_size"], 0,
            "{dialect}: usage was not understood"
        );
    }
}

fn any_command_can_be_the_agent(engine: Engine) {
    let world = World::new(engine);
    let script = "echo made > new.txt && git add new.txt && git commit -q -m 'Add new.txt' && echo out && echo err >&2";
    let ran = world.run_shell(script).expect(0);
    assert!(ran.stderr.contains("│ out") && ran.stderr.contains("│ err"), "{}", ran.stderr);
    assert!(ran.stdout.contains("completed"), "{}", ran.stdout);
    let result = world.last();
    assert_eq!(result["collected"]["subjects"][0], "Add new.txt");
    assert!(world.model.is_none() && result["spend"].is_null(), "{result:#}");
    world.assert_nothing_left();
}

fn a_clean_checkout_travels_as_head_itself(engine: Engine) {
    let world = World::new(engine);
    world.git(&["checkout", "-q", "--", "."]);
    world.git(&["clean", "-qfd"]);
    let script =
        "git log --format=%s && git status --porcelain && git commit -q --allow-empty -m empty";
    world.run_shell(script).expect(0);
    assert_eq!(world.last()["base"], world.git(&["rev-parse", "HEAD"]));
}

fn a_run_without_commits_completes_and_says_so(engine: Engine) {
    let world = World::new(engine);
    let ran = world.run_shell("cat greet.sh > /dev/null").expect(0);
    assert!(ran.stdout.contains("completed"), "{}", ran.stdout);
    let result = world.last();
    assert_eq!(result["collected"]["outcome"], "no_commits");
    let id = result["run"].as_str().unwrap();
    let refused = world.cofferdam(&["diff", id]).expect(5).stderr;
    assert!(refused.contains("HOST-006"), "{refused}");
    world.assert_nothing_left();
}

fn leftovers_come_back_as_a_commit(engine: Engine) {
    let world = World::new(engine);
    world.run_shell("echo left > left.txt; rm README.md").expect(0);
    let result = world.last();
    assert_eq!(result["collected"]["commits"], 1, "{result:#}");
    let id = result["run"].as_str().unwrap();
    let shown = world.git(&["show", &format!("refs/cofferdam/runs/{id}:left.txt")]);
    assert_eq!(shown, "left");
}

fn a_command_that_fails_is_a_failed_run(engine: Engine) {
    let world = World::new(engine);
    let ran = world
        .run_shell("echo work > w.txt && git add . && git commit -qm work && exit 7")
        .expect(1);
    assert!(ran.stdout.contains("failed") && ran.stdout.contains("RUN-060"), "{}", ran.stdout);
    let result = world.last();
    assert_eq!(result["verdict"]["cause"]["exit_code"], 7);
    assert_eq!(result["collected"]["commits"], 1, "the work of a failed run comes back too");
    world.assert_nothing_left();
}
