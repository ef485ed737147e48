//! A whole task in each dialect: read, edit, a test that fails and then passes, a commit.

use cofferdam_agent::{AgentOutcome, EventKind};
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Fault, Turn};
use serde_json::json;

use crate::fixture::{DIALECTS, Fixture, finish, shell};

fn script() -> Vec<Turn> {
    vec![
        Turn {
            think: "First a plan.".into(),
            ..Turn::call("plan", json!({"steps": ["Read the code", "Fix it", "Test", "Commit"]}))
        },
        Turn {
            say: "Ich lese zuerst 😀.".into(),
            think: "Two at once.".into(),
            ..Turn::call("list_files", json!({})).and_call("read_file", json!({"path": "add.sh"}))
        },
        shell("./test.sh"),
        Turn::call(
            "edit_file",
            json!({"path": "add.sh", "old_text": "$1 - $2", "new_text": "$1 + $2"}),
        ),
        shell("./test.sh").and_call("search", json!({"pattern": "\\$1 \\+", "path": "."})),
        shell("git add -A && git commit -q -m 'Add instead of subtracting'"),
        finish("Fixed add.sh.\nThe test passes."),
    ]
}

fn repository(f: &Fixture) {
    let write = |name: &str, text: &str| std::fs::write(f.dir.path().join(name), text).unwrap();
    write("add.sh", "#!/bin/sh\necho $(($1 - $2))\n");
    write(
        "test.sh",
        "#!/bin/sh\n[ \"$(./add.sh 2 3)\" = 5 ] && echo ok || { echo wrong; exit 1; }\n",
    );
    f.git(&["init", "-q", "-b", "main"]);
    crate::fixture::command("chmod", &["+x", "add.sh", "test.sh"], f.dir.path());
    f.git(&["add", "-A"]);
    f.git(&["commit", "-q", "-m", "Begin"]);
}

#[tokio::test]
async fn a_task_is_done_in_every_dialect() {
    for dialect in DIALECTS {
        let f = Fixture::new(dialect, script());
        repository(&f);
        let ran = f.run().await;
        assert_eq!(ran.report(), "Fixed add.sh.\nThe test passes.", "{dialect:?}");
        assert_eq!(ran.outcome.exit_code(), 0);
        assert_eq!(f.git(&["log", "--format=%s"]), "Add instead of subtracting\nBegin\n");
        assert_eq!(f.git(&["status", "--porcelain"]), "");
        assert!(f.git(&["show", "HEAD:add.sh"]).contains("$1 + $2"));

        assert_eq!(ran.texts(EventKind::Plan), ["1. Read the code; 2. Fix it; 3. Test; 4. Commit"]);
        let results = ran.texts(EventKind::ToolResult);
        assert_eq!(results[3], "failed: run_shell: wrong [exit code 1]");
        assert_eq!(results[4], "edit_file: Edited `add.sh`: one place replaced, at line 2.");
        assert_eq!(results[5], "run_shell: ok [exit code 0]");
        assert_eq!(results[6], "search: add.sh:2:echo $(($1 + $2))");
        assert_eq!(ran.texts(EventKind::Message), ["Ich lese zuerst 😀."]);
        assert_eq!(ran.texts(EventKind::Finish).len(), 1);
        assert!(ran.texts(EventKind::Error).is_empty());

        let requests = f.server.requests();
        assert_eq!(requests.len(), 7, "{dialect:?}: one call per turn");
        assert!(requests.iter().all(|r| r.status == 200));
        let last = f.last_request().to_string();
        for told in
            ["Do it.", "wrong\\n[exit code 1]", "add.sh\\ntest.sh", "Pushing is not possible"]
        {
            assert!(last.contains(told), "{dialect:?}: {told}");
        }
        if dialect == Dialect::Anthropic {
            assert!(last.contains("\"signature\":\"c2NyaXB0ZWQ=\""), "reasoning goes back");
        }
    }
}

#[tokio::test]
async fn streams_split_inside_characters_and_lines_do_the_same() {
    for (dialect, split) in DIALECTS.into_iter().zip([1, 2, 3, 5]) {
        let fault = Fault { split_bytes: Some(split), ..Fault::default() };
        let f = Fixture::new(dialect, script().into_iter().map(|t| t.with_fault(fault.clone())));
        repository(&f);
        let ran = f.run().await;
        assert_eq!(ran.report(), "Fixed add.sh.\nThe test passes.", "{dialect:?} {split}");
        assert_eq!(ran.texts(EventKind::Message), ["Ich lese zuerst 😀."]);
    }
}

#[tokio::test]
async fn an_answer_without_calls_is_the_final_one() {
    let f = Fixture::new(Dialect::OpenaiChat, [Turn::say("Nothing is to be done: it works.")]);
    let ran = f.run().await;
    assert_eq!(ran.report(), "Nothing is to be done: it works.");
}

#[tokio::test]
async fn finish_beside_a_failed_call_does_not_end_the_work() {
    let f = Fixture::new(
        Dialect::Anthropic,
        [shell("exit 1").and_call("finish", json!({"report": "all good"})), finish("It failed.")],
    );
    let ran = f.run().await;
    assert_eq!(ran.report(), "It failed.");
    assert!(f.last_request().to_string().contains("Not finished: an earlier call"));
}

#[tokio::test]
async fn the_steps_are_counted() {
    let turns = (0..10).map(|n| shell(&format!("echo {n}")));
    let mut f = Fixture::new(Dialect::Gemini, turns);
    f.config.max_steps = 7;
    let ran = f.run().await;
    assert_eq!(ran.outcome, AgentOutcome::StepLimit { steps: 7 });
    assert_eq!(ran.outcome.exit_code(), 2);
    assert_eq!(f.server.requests().len(), 7);
    assert!(f.last_request().to_string().contains("5 turns are left"));
    assert!(ran.texts(EventKind::Error)[0].starts_with("AGENT-008"));
}
