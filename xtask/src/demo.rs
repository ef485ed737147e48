//! `./dev demo`: a sealed run on a small sample repository, from a dirty checkout to applied commits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::{build, sh};

/// What the person asked for.
pub(crate) struct Options {
    /// Use a real provider.
    pub(crate) live: bool,
    /// Engine name.
    pub(crate) engine: String,
    /// Leave everything in place afterwards.
    pub(crate) keep: bool,
}

const TASK: &str = "The test fails. Find out why, fix it, run the test, and commit the fix.";

/// Environment variables whose presence selects a real provider, in order of preference.
const KEYS: [&str; 3] = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"];

/// Ends the scripted model when the demo is over.
struct Model(Child);

impl Drop for Model {
    fn drop(&mut self) {
        // It serves until its standard input closes.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Runs the demo.
pub(crate) fn demo(options: &Options) -> anyhow::Result<()> {
    let command = build::build(false)?;
    let place = std::env::temp_dir().join(format!("cofferdam-demo-{}", std::process::id()));
    fs::create_dir_all(&place)?;
    let result = story(options, &command, &place);
    if options.keep {
        sh::say(&format!("\nkept: {}", place.display()));
    } else {
        fs::remove_dir_all(&place).with_context(|| format!("remove {}", place.display()))?;
    }
    result
}

fn story(options: &Options, command: &Path, place: &Path) -> anyhow::Result<()> {
    let repo = sample_repository(place)?;
    let (config, model) = configuration(options, command, place)?;
    let cofferdam = |args: &[&str]| -> Command {
        let mut c = sh::cmd(command);
        c.current_dir(&repo).args(args);
        c.env("COFFERDAM_CONFIG", &config).env("COFFERDAM_DATA_DIR", place.join("data"));
        c.env("COFFERDAM_BIN_DIR", sh::sandbox_bin());
        if model.is_some() {
            c.env("COFFERDAM_DEMO_KEY", "demo-key-that-stays-on-the-host");
        }
        c
    };

    heading("The checkout before: a failing test, an uncommitted edit, an untracked file");
    sh::run(git(&repo).args(["status", "--short"]))?;
    sh::run(git(&repo).args(["log", "--oneline"]))?;

    heading(&format!("$ cofferdam run --engine {} \"{TASK}\"", options.engine));
    let mut run = cofferdam(&["run", "--engine", &options.engine]);
    if !is_root() {
        sh::say("(not root: limits that need cgroups are accepted as missing, by name)");
        run.args(["--accept-degraded", "memory_limit,pids_limit,cpu_limit"]);
    }
    sh::run(run.arg(TASK))?;

    let id = sh::output(&mut cofferdam(&["ps", "--json"]))?;
    let id: serde_json::Value = serde_json::from_str(&id)?;
    let id = id["runs"][0]["run"].as_str().context("ps shows no run")?.to_owned();

    for (title, args) in [
        ("what came back", vec!["show", &id]),
        ("every connection that was asked for", vec!["egress", "show", &id]),
        ("the change, risky files first", vec!["diff", &id]),
    ] {
        heading(&format!("$ cofferdam {}   # {title}", args.join(" ")));
        sh::run(&mut cofferdam(&args))?;
    }

    heading(
        "$ cofferdam record show > record.json; cofferdam record verify record.json   # offline",
    );
    let record = place.join("record.json");
    fs::write(&record, sh::output(&mut cofferdam(&["record", "show", &id]))?)?;
    sh::run(cofferdam(&["record", "verify"]).arg(&record))?;

    heading(&format!("$ cofferdam apply {id}   # onto the checkout, uncommitted edits untouched"));
    sh::run(&mut cofferdam(&["apply", &id]))?;
    sh::run(git(&repo).args(["log", "--oneline"]))?;
    sh::run(git(&repo).args(["status", "--short"]))?;
    sh::say("$ ./test.sh");
    sh::run(sh::cmd("./test.sh").current_dir(&repo))?;
    Ok(())
}

fn heading(text: &str) {
    sh::say(&format!("\n── {text}"));
}

fn is_root() -> bool {
    sh::output(sh::cmd("id").arg("-u")).is_ok_and(|t| t.trim() == "0")
}

fn git(repo: &Path) -> Command {
    let mut c = sh::cmd("git");
    c.current_dir(repo);
    c
}

fn sample_repository(place: &Path) -> anyhow::Result<PathBuf> {
    let repo = place.join("greeter");
    fs::create_dir_all(&repo)?;
    let write = |name: &str, text: &str| fs::write(repo.join(name), text);
    write(
        "greet.sh",
        "#!/bin/sh\n# Greets the person named in the first argument.\nprintf 'Hello, %s\\n' \"$2\"\n",
    )?;
    write(
        "test.sh",
        "#!/bin/sh\ngot=$(./greet.sh World)\nif [ \"$got\" = \"Hello, World\" ]; then echo \"ok\"; else echo \"FAIL: got '$got'\"; exit 1; fi\n",
    )?;
    write("README.md", "# Greeter\n\nGreets people.\n")?;
    sh::run(git(&repo).args(["init", "--quiet", "--initial-branch", "main"]))?;
    sh::run(sh::cmd("chmod").arg("+x").arg(repo.join("greet.sh")).arg(repo.join("test.sh")))?;
    for (key, value) in [("user.name", "Dana Demo"), ("user.email", "dana@example.com")] {
        sh::run(git(&repo).args(["config", key, value]))?;
    }
    sh::run(git(&repo).args(["add", "."]))?;
    sh::run(git(&repo).args(["commit", "--quiet", "-m", "Start the greeter"]))?;
    write("README.md", "# Greeter\n\nGreets people by name.\n")?;
    write("NOTES.txt", "ask Kim about greetings in other languages\n")?;
    Ok(repo)
}

/// Writes the configuration; starts the scripted model unless a real provider was asked for.
fn configuration(
    options: &Options,
    command: &Path,
    place: &Path,
) -> anyhow::Result<(PathBuf, Option<Model>)> {
    let config = place.join("config.toml");
    if options.live {
        #[expect(clippy::disallowed_methods, reason = "xtask looks which provider's key is there")]
        let present = KEYS.iter().any(|k| std::env::var_os(k).is_some());
        if !present {
            bail!("--live needs one of {} in the environment", KEYS.join(", "));
        }
        fs::write(&config, "")?;
        return Ok((config, None));
    }
    let script = place.join("script.json");
    fs::write(&script, SCRIPT)?;
    let address_file = place.join("model-address");
    let program = command.parent().context("the command has no folder")?.join("scripted-model");
    let child = sh::cmd(program)
        .args(["--require-key-env", "COFFERDAM_DEMO_KEY", "--script"])
        .arg(&script)
        .arg("--address-file")
        .arg(&address_file)
        .env("COFFERDAM_DEMO_KEY", "demo-key-that-stays-on-the-host")
        .stdin(Stdio::piped())
        .spawn()
        .context("start the scripted model")?;
    let model = Model(child);
    let mut address = None;
    for _ in 0..200 {
        if let Ok(text) = fs::read_to_string(&address_file) {
            address = Some(text.trim().to_owned());
            break;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    let address = address.context("the scripted model did not come up within 5 s")?;
    fs::write(
        &config,
        format!(
            "[run]\nmodel = \"scripted/demo-model\"\n\n\
             [providers.scripted]\ndialect = \"anthropic\"\nbase_url = \"http://{address}\"\n\
             key_env = \"COFFERDAM_DEMO_KEY\"\nlocal = true\n"
        ),
    )?;
    Ok((config, Some(model)))
}

const SCRIPT: &str = include_str!("demo-script.json");
