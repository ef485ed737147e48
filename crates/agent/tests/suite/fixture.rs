//! A repository, a configuration, and a run with short waits.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use cofferdam_agent::builtin::{Tuning, run_with};
use cofferdam_agent::{AgentOutcome, BuiltinConfig, Event, EventKind};
use cofferdam_run::spec::Dialect;
use cofferdam_testkit::model::{Fault, ModelServer, Script, Turn};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const DIALECTS: [Dialect; 4] =
    [Dialect::Anthropic, Dialect::OpenaiChat, Dialect::OpenaiResponses, Dialect::Gemini];

pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) server: ModelServer,
    pub(crate) config: BuiltinConfig,
    pub(crate) tuning: Tuning,
}

pub(crate) struct Ran {
    pub(crate) outcome: AgentOutcome,
    pub(crate) events: Vec<Event>,
}

impl Fixture {
    pub(crate) fn new(dialect: Dialect, turns: impl IntoIterator<Item = Turn>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = ModelServer::start(Script::new(turns)).unwrap();
        server.require_key(cofferdam_wire::layout::KEY_PLACEHOLDER);
        let mut config = BuiltinConfig::new("Do it.".into(), dialect, "scripted".into(), 30);
        config.base_url = server.base_url();
        config.cwd = dir.path().to_str().unwrap().to_owned();
        config.env = env(dir.path());
        let minute = Duration::from_secs(60);
        let tuning = Tuning::with_times(Duration::from_millis(1), minute, minute, minute);
        Self { dir, server, config, tuning }
    }

    pub(crate) async fn run(&self) -> Ran {
        let mut events = Vec::new();
        let outcome = run_with(self.config.clone(), self.tuning.clone(), &mut events).await;
        Ran { outcome, events }
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        command("git", args, self.dir.path())
    }

    /// Everything that the model was told in the last request.
    pub(crate) fn last_request(&self) -> Value {
        self.server.requests().last().unwrap().json()
    }
}

impl Ran {
    pub(crate) fn texts(&self, kind: EventKind) -> Vec<&str> {
        self.events.iter().filter(|e| e.kind == kind).map(|e| e.text.as_str()).collect()
    }

    pub(crate) fn report(&self) -> &str {
        match &self.outcome {
            AgentOutcome::Finished { report } => report,
            other => panic!("{other:?}, events: {:#?}", self.events),
        }
    }

    pub(crate) fn failure(&self) -> (&str, &str) {
        match &self.outcome {
            AgentOutcome::Failed(failure) => (&failure.code, &failure.message),
            other => panic!("{other:?}, events: {:#?}", self.events),
        }
    }
}

fn env(home: &Path) -> BTreeMap<String, String> {
    let home = home.join(".git-home").display().to_string();
    [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", home.as_str()),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_AUTHOR_NAME", "Agent"),
        ("GIT_AUTHOR_EMAIL", "agent@example.invalid"),
        ("GIT_COMMITTER_NAME", "Agent"),
        ("GIT_COMMITTER_EMAIL", "agent@example.invalid"),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .collect()
}

#[expect(clippy::disallowed_methods, reason = "a test looks at the repository from outside")]
pub(crate) fn command(program: &str, args: &[&str], cwd: &Path) -> String {
    let output = std::process::Command::new(program)
        .args(args)
        .current_dir(cwd)
        .env_clear()
        .envs(env(cwd))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn shell(command: &str) -> Turn {
    Turn::call("run_shell", json!({"command": command}))
}

pub(crate) fn finish(report: &str) -> Turn {
    Turn::call("finish", json!({"report": report}))
}

/// A turn that is answered with these bytes, whatever the dialect.
pub(crate) fn raw(body: impl Into<String>) -> Turn {
    Turn::default().with_fault(Fault {
        status: Some(200),
        body: Some(body.into()),
        ..Fault::default()
    })
}
