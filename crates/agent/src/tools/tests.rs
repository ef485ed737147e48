//! Tools on a real file system, with real processes.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{HOSTED, Outcome, Toolbox};
use crate::limits;
use crate::model::{Arguments, Call};
use crate::shell_host::{self, ShellHost};

struct Fixture {
    dir: TempDir,
    toolbox: Toolbox,
}

/// One in this process, at the other end of a channel.
fn shell_host() -> ShellHost {
    let (near, far) = shell_host::fds::pair().unwrap();
    tokio::spawn(async move { shell_host::serve(far).await.unwrap() });
    ShellHost::new(near).unwrap()
}

/// Not in `/tmp`, since all of that is open to the tools.
fn fixture() -> Fixture {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let cwd = dir.path().join("repo");
    std::fs::create_dir(&cwd).unwrap();
    let mut toolbox = Toolbox::new(cwd, BTreeMap::new()).unwrap();
    toolbox.host = HOSTED.then(shell_host);
    Fixture { dir, toolbox }
}

impl Fixture {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.toolbox.roots.cwd().join(name)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn get(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    async fn call(&self, name: &str, arguments: Value) -> Result<String, String> {
        let call =
            Call { id: "c".into(), name: name.into(), arguments: Arguments::from_value(arguments) };
        match self.toolbox.call(&call).await {
            Outcome::Answer(text) => Ok(text),
            Outcome::Error(text) => Err(text),
            other => panic!("{other:?}"),
        }
    }

    async fn ok(&self, name: &str, arguments: Value) -> String {
        self.call(name, arguments).await.unwrap()
    }

    async fn fails(&self, name: &str, arguments: Value, part: &str) {
        let error = self.call(name, arguments).await.unwrap_err();
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }

    async fn shell(&self, command: &str) -> Result<String, String> {
        self.call("run_shell", json!({"command": command})).await
    }
}

#[tokio::test]
async fn a_file_is_written_read_edited_and_deleted() {
    let f = fixture();
    let answer = f.ok("write_file", json!({"path": "a/b.txt", "content": "one\ntwo\n"})).await;
    assert_eq!(answer, "Created `a/b.txt`, 8 bytes.");
    assert_eq!(f.ok("read_file", json!({"path": "a/b.txt"})).await, "     1\tone\n     2\ttwo\n");
    let edit = json!({"path": "a/b.txt", "old_text": "two", "new_text": "zwei"});
    assert_eq!(f.ok("edit_file", edit).await, "Edited `a/b.txt`: one place replaced, at line 2.");
    assert_eq!(f.get("a/b.txt"), "one\nzwei\n");
    let answer = f.ok("write_file", json!({"path": "a/b.txt", "content": ""})).await;
    assert_eq!(answer, "Replaced `a/b.txt`, 0 bytes.");
    assert_eq!(f.ok("read_file", json!({"path": "a/b.txt"})).await, "`a/b.txt` is empty.");
    f.ok("file_delete", json!({"path": "a/b.txt"})).await;
    assert!(!f.path("a/b.txt").exists());
    f.fails("file_delete", json!({"path": "a"}), "is a directory").await;
    f.fails("read_file", json!({"path": "a/b.txt"}), "does not exist").await;
    f.fails("read_file", json!({"path": "a"}), "is a directory").await;
    f.fails("write_file", json!({"path": "a", "content": ""}), "is a directory").await;
}

#[tokio::test]
async fn names_from_other_agents_are_understood() {
    let f = fixture();
    for (old, new) in [("old", "new"), ("old_string", "new_string"), ("old_str", "new_str")] {
        f.put("f", "a");
        f.ok("edit_file", json!({"file_path": "f", old: "a", new: "b"})).await;
        assert_eq!(f.get("f"), "b");
    }
    let both = json!({"path": "f", "old": "b", "old_text": "b", "new": "c"});
    f.fails("edit_file", both, "duplicate field").await;
    f.ok("run_shell", json!({"command": "true", "timeout": 5})).await;
}

#[tokio::test]
async fn a_window_of_a_file_says_where_to_go_on() {
    let f = fixture();
    let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
    f.put("f", text.trim_end());
    let answer = f.ok("read_file", json!({"path": "f", "offset": 10, "limit": 2.0})).await;
    assert_eq!(
        answer,
        "    10\tline 10\n    11\tline 11\n[lines 10 to 11 of 30 shown; go on with offset 12]\n"
    );
    let answer = f.ok("read_file", json!({"path": "f", "offset": "30"})).await;
    assert_eq!(answer, "    30\tline 30\n");
    let answer = f.ok("read_file", json!({"path": "f", "offset": 31})).await;
    assert_eq!(answer, "`f` has 30 lines; there is no line 31.\n");
    f.fails("read_file", json!({"path": "f", "offset": -1}), "a whole number").await;
}

#[tokio::test]
async fn a_huge_file_and_an_endless_line_are_shown_in_part() {
    let f = fixture();
    f.put("lines", "0123456789\n".repeat(1 << 20));
    let answer = f.ok("read_file", json!({"path": "lines", "limit": 1_000_000})).await;
    assert!(answer.len() < limits::READ_BYTES_MAX + 200);
    assert!(
        answer.contains("of 1048576 shown; go on with offset"),
        "{}",
        &answer[answer.len() - 90..]
    );
    f.put("line", "é".repeat(5 << 20));
    let answer = f.ok("read_file", json!({"path": "line"})).await;
    assert!(answer.len() < limits::LINE_BYTES_MAX + 100);
    assert!(
        answer.contains("[10483760 bytes of this line cut]"),
        "{}",
        &answer[answer.len() - 90..]
    );
    assert!(!answer.contains('\u{fffd}'), "no character is torn");
    let last = f.ok("read_file", json!({"path": "lines", "offset": 1_048_576})).await;
    assert_eq!(last, "1048576\t0123456789\n");
}

#[tokio::test]
async fn binary_files_and_pipes_are_not_shown() {
    let f = fixture();
    f.put("b", b"\x7fELF\0\0");
    f.fails("read_file", json!({"path": "b"}), "is a binary file of 6 bytes").await;
    f.shell("mkfifo p").await.unwrap();
    f.fails("read_file", json!({"path": "p"}), "is no regular file").await;
    f.fails("write_file", json!({"path": "p", "content": "x"}), "is no regular file").await;
    let edit = json!({"path": "p", "old_text": "x", "new_text": "y"});
    f.fails("edit_file", edit, "is no regular file").await;
}

#[tokio::test]
async fn paths_stay_in_the_working_directory_and_tmp() {
    let f = fixture();
    let outside = f.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "s").unwrap();
    symlink(&outside, f.path("link")).unwrap();
    symlink(outside.join("new"), f.path("dangling")).unwrap();
    symlink(outside.join("secret"), f.path("file")).unwrap();
    symlink("real", f.path("inner")).unwrap();
    f.put("real", "r");

    let absolute = outside.join("x").display().to_string();
    for path in ["../outside/x", "a/../../outside/x", "/etc/x", &absolute, "/../../etc/x"] {
        f.fails(
            "write_file",
            json!({"path": path, "content": "x"}),
            "outside the working directory",
        )
        .await;
    }
    for path in ["link/x", "link/a/b", "file"] {
        f.fails("write_file", json!({"path": path, "content": "x"}), "is a link to").await;
    }
    f.fails("write_file", json!({"path": "dangling", "content": "x"}), "does not exist").await;
    f.fails("read_file", json!({"path": "link/secret"}), "is a link to").await;
    f.fails("file_delete", json!({"path": "link/secret"}), "is a link to").await;
    f.fails("read_file", json!({"path": ""}), "empty").await;
    f.fails("read_file", json!({"path": "a\0b"}), "NUL").await;
    let left: Vec<_> =
        std::fs::read_dir(&outside).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["secret"]);
    assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "s");

    // The legal neighbours work.
    f.ok("write_file", json!({"path": "inner", "content": "w"})).await;
    assert_eq!(f.get("real"), "w", "a link inside is followed");
    f.ok("file_delete", json!({"path": "file"})).await;
    assert!(outside.join("secret").exists(), "only the link itself goes");
    let inside = f.path("x/y").display().to_string();
    f.ok("write_file", json!({"path": inside, "content": "w"})).await;
    let scratch = tempfile::tempdir_in("/tmp").unwrap();
    let scratch = scratch.path().join("s").display().to_string();
    f.ok("write_file", json!({"path": scratch, "content": "w"})).await;
}

#[tokio::test]
async fn wrong_arguments_are_answered_not_fatal() {
    let f = fixture();
    f.fails("read_file", json!({}), "missing field `path`").await;
    f.fails("read_file", json!({"path": "a", "lines": 3}), "unknown field `lines`").await;
    f.fails("read_file", json!([1]), "not a JSON object").await;
    f.fails("rm_rf", json!({}), "There is no tool `rm_rf`").await;
    f.fails("plan", json!({"steps": []}), "1 to 50 steps").await;
    f.fails("plan", json!({"steps": "do it"}), "The arguments do not fit").await;
    f.fails("finish", json!({"report": " "}), "The report is empty").await;
    f.fails("run_shell", json!({"command": " "}), "is empty").await;
    f.fails("search", json!({"pattern": ""}), "not empty").await;
    let long = "x".repeat(limits::WRITE_BYTES_MAX + 1);
    f.fails("write_file", json!({"path": "a", "content": long}), "Nothing was written").await;
    for arguments in [json!({"path": long}), json!({long.as_str(): 1}), json!({"path": [long]})] {
        let error = f.call("read_file", arguments).await.unwrap_err();
        assert!(error.len() < 1_000, "{} bytes", error.len());
    }
}

#[tokio::test]
async fn the_listing_follows_git_where_there_is_a_repository() {
    let f = fixture();
    f.put("src/a.rs", "");
    f.put("src/gone.rs", "");
    f.put(".gitignore", "out/\n");
    f.put("out/x", "");
    let all = f.ok("list_files", json!({})).await;
    assert_eq!(all, ".gitignore\nout/x\nsrc/a.rs\nsrc/gone.rs\n");
    f.shell("git init -q . && git add . && rm src/gone.rs && touch 'new ü'").await.unwrap();
    let all = f.ok("list_files", json!({"path": "."})).await;
    assert_eq!(all, ".gitignore\nnew ü\nsrc/a.rs\n");
    assert_eq!(f.ok("list_files", json!({"path": "src"})).await, "src/a.rs\n");
    f.fails("list_files", json!({"path": "nope"}), "does not exist").await;
    f.fails("list_files", json!({"path": "src/a.rs"}), "is no directory").await;
}

#[tokio::test]
async fn a_long_listing_is_counted() {
    let f = fixture();
    f.shell(&format!("for i in $(seq {}); do : > f$i; done", limits::LIST_ENTRIES_MAX + 7))
        .await
        .unwrap();
    let all = f.ok("list_files", json!({})).await;
    assert!(all.ends_with("[7 more files; list a directory below to see them]\n"));
    let long = "d".repeat(200);
    f.shell(&format!("mkdir -p {long}/{long} && cd {long}/{long} && touch $(seq 600)"))
        .await
        .unwrap();
    let all = f.ok("list_files", json!({"path": long})).await;
    assert!(all.len() < limits::ANSWER_BYTES_MAX + 100 && all.contains("bytes of this answer cut"));
}

#[tokio::test]
async fn search_finds_lines_and_says_when_there_are_none() {
    let f = fixture();
    f.put("a.rs", "fn one() {}\nfn two(x: u8) {}\n");
    f.put("b/c.txt", "fn one()\nFN ONE\n");
    f.put("bin", b"fn one\0");
    let mut lines: Vec<String> = f
        .ok("search", json!({"pattern": "fn (one|zwei)"}))
        .await
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    assert_eq!(lines, ["a.rs:1:fn one() {}", "b/c.txt:1:fn one()"]);
    let one = f.ok("search", json!({"pattern": "one()", "literal": true, "glob": "*.rs"})).await;
    assert_eq!(one, "a.rs:1:fn one() {}\n");
    let two = f.ok("search", json!({"pattern": "fn one", "path": "b", "ignore_case": true})).await;
    assert_eq!(two, "b/c.txt:1:fn one()\nb/c.txt:2:FN ONE\n");
    assert_eq!(f.ok("search", json!({"pattern": "-e nothing"})).await, "No line matches.");
    f.fails("search", json!({"pattern": "("}), "The search").await;
    f.fails("search", json!({"pattern": "x", "path": "/etc"}), "outside the working directory")
        .await;
}

#[tokio::test]
async fn search_prefers_rg_where_there_is_one() {
    let mut f = fixture();
    f.put("bin/rg", "#!/bin/sh\nprintf '%s\\n' \"$@\"\n");
    f.shell("chmod +x bin/rg; mkdir src").await.unwrap();
    f.toolbox.env.insert("PATH".into(), format!("{}:/usr/bin:/bin", f.path("bin").display()));
    let arguments = json!({"pattern": "-x", "literal": true, "glob": "*.rs", "path": "src"});
    let told = f.ok("search", arguments).await;
    let given: Vec<&str> = told.lines().collect();
    assert!(given.starts_with(&["--line-number", "--with-filename", "--no-heading"]), "{told}");
    assert!(
        given.ends_with(&["--fixed-strings", "--glob=*.rs", "-e", "-x", "--", "src"]),
        "{told}"
    );
}

#[tokio::test]
async fn nothing_waits_for_an_editor() {
    let f = fixture();
    f.shell("git init -q . && echo x > x && git add x").await.unwrap();
    let answer = f.shell("git -c user.name=a -c user.email=a@b commit").await.unwrap_err();
    assert!(answer.contains("empty commit message"), "{answer}");
    assert_eq!(f.shell("echo $TERM $PAGER").await.unwrap(), "dumb cat\n[exit code 0]");
}

#[tokio::test]
async fn a_search_that_finds_too_much_ends_early() {
    let f = fixture();
    f.put("many", "match\n".repeat(100_000));
    let answer = f.ok("search", json!({"pattern": "match"})).await;
    assert!(answer.ends_with("[only the first 200 lines; narrow the search]\n"));
    assert_eq!(answer.lines().count(), limits::SEARCH_LINES_MAX + 1);
    f.put("many", format!("match{}\n", "x".repeat(3 << 20)));
    let answer = f.ok("search", json!({"pattern": "match"})).await;
    assert!(answer.len() < 500 && answer.contains("bytes of this line cut]"), "{answer}");
}

#[tokio::test]
async fn a_command_shows_both_outputs_and_how_it_ended() {
    let f = fixture();
    let answer = f.shell("echo one; echo two >&2; echo three").await.unwrap();
    assert_eq!(answer, "one\ntwo\nthree\n[exit code 0]");
    assert_eq!(f.shell("printf x; exit 3").await.unwrap_err(), "x\n[exit code 3]");
    assert_eq!(f.shell("kill -9 $$").await.unwrap_err(), "[killed by signal 9]");
    let cwd = format!("{}\n[exit code 0]", f.path("").display());
    assert_eq!(f.shell("pwd -P").await.unwrap(), cwd.replace("/\n", "\n"));
    assert_eq!(
        f.shell("cat; echo $PATH").await.unwrap(),
        "/usr/local/bin:/usr/bin:/bin\n[exit code 0]"
    );
    let foreign = f.shell("env | grep -c CARGO").await.unwrap_err();
    assert_eq!(foreign, "0\n[exit code 1]", "nothing of the agent's own environment gets in");
}

#[tokio::test]
async fn ten_megabytes_and_an_endless_line_keep_head_and_tail() {
    let f = fixture();
    let answer = f
        .shell("echo first; head -c 10485760 /dev/zero | tr '\\0' x; echo; echo last")
        .await
        .unwrap();
    assert!(answer.len() < limits::SHELL_HEAD_BYTES + limits::SHELL_TAIL_BYTES + 200);
    assert!(answer.starts_with("first\nxxx") && answer.ends_with("xxx\nlast\n[exit code 0]"));
    let cut = 10_485_760 + 6 + 6 - limits::SHELL_HEAD_BYTES - limits::SHELL_TAIL_BYTES;
    assert!(answer.contains(&format!("[… {cut} bytes of output cut here …]")));
}

#[tokio::test]
async fn characters_split_between_writes_stay_whole() {
    let f = fixture();
    let split =
        r"printf '\303'; sleep 0.05; printf '\274\360\237'; sleep 0.05; printf '\230\200\n'";
    assert_eq!(f.shell(split).await.unwrap(), "ü😀\n[exit code 0]");
    assert_eq!(
        f.shell(r"printf '\033[31mred\033[0m\377\n'").await.unwrap(),
        "red\u{fffd}\n[exit code 0]"
    );
}

fn alive(pid: &str) -> bool {
    // A killed process whose parent has not looked yet is a zombie; it runs no more.
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'))
}

async fn gone(pid: &str) {
    tokio::time::timeout(std::time::Duration::from_secs(20), async {
        while alive(pid) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the process goes away");
}

#[tokio::test]
async fn a_command_without_end_is_ended_with_its_children() {
    let f = fixture();
    let command =
        "echo $$ > pid; sleep 1000 & echo $! > child; trap '' TERM; while :; do sleep 0.1; done";
    let answer =
        f.call("run_shell", json!({"command": command, "timeout_seconds": 1})).await.unwrap_err();
    assert_eq!(answer, "[ended: it ran over its time of 1 s]");
    gone(&f.get("pid")).await;
    gone(&f.get("child")).await;
}

#[tokio::test]
async fn an_endless_flood_is_ended_too() {
    let f = fixture();
    let answer =
        f.call("run_shell", json!({"command": "yes", "timeout_seconds": 1})).await.unwrap_err();
    assert!(answer.ends_with("[ended: it ran over its time of 1 s]"));
    assert!(answer.contains("bytes of output cut here"));
}

#[tokio::test]
async fn a_child_that_keeps_the_pipe_does_not_hold_up_the_answer() {
    let f = fixture();
    let answer = f.shell("sleep 1000 & echo $! > child; echo done").await.unwrap();
    assert_eq!(answer, "done\n[exit code 0]");
    gone(&f.get("child")).await;
    // One that left the group cannot be reached that way; the answer comes all the same, and says so.
    let answer = f.shell("setsid bash -c 'echo $$ > child2; exec sleep 1000' & while [ ! -s child2 ]; do sleep 0.02; done; echo done");
    let answer = answer.await.unwrap();
    let pid = f.get("child2");
    f.shell(&format!("kill -9 {}", pid.trim())).await.unwrap();
    assert!(
        answer.starts_with("done\n[something that the command started still holds"),
        "{answer}"
    );
    gone(&pid).await;
}

#[tokio::test]
async fn dropping_a_call_ends_its_processes() {
    let f = fixture();
    let command = json!({"command": "echo $$ > pid; sleep 1000 & echo $! > child; wait"});
    let pid = {
        let call = f.call("run_shell", command);
        tokio::pin!(call);
        loop {
            tokio::select! {
                _ = &mut call => panic!("it has no end"),
                () = tokio::time::sleep(std::time::Duration::from_millis(10)) => {}
            }
            if std::fs::read_to_string(f.path("child")).is_ok_and(|t| t.ends_with('\n')) {
                break f.get("pid");
            }
        }
    };
    gone(&pid).await;
    gone(&f.get("child")).await;
}

#[test]
fn every_tool_has_a_schema_that_all_dialects_take() {
    for spec in crate::tools::specs() {
        assert_eq!(spec.schema["type"], "object", "{}", spec.name);
        let keys: Vec<_> = spec.schema.as_object().unwrap().keys().collect();
        assert!(keys.iter().all(|k| ["type", "properties", "required"].contains(&k.as_str())));
        assert!(!spec.description.contains("  "), "{}: {}", spec.name, spec.description);
    }
    assert!(Path::new("/tmp").is_dir());
}
