//! What this room's tests share: a clock of their own, a plain specification, a process that is gone.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_run::spec::{AgentSpec, Mode};
use cofferdam_run::{RunSpec, TimestampMs};

use crate::clock::Clock;
use crate::owner;

/// A clock that a test sets.
#[derive(Debug, Default)]
pub(crate) struct Hand {
    pub(crate) now_ms: AtomicU64,
    pub(crate) slept_ms: AtomicU64,
}

impl Clock for Hand {
    fn now(&self) -> TimestampMs {
        TimestampMs(self.now_ms.load(Ordering::SeqCst))
    }

    fn slept(&self) -> Duration {
        Duration::from_millis(self.slept_ms.load(Ordering::SeqCst))
    }
}

/// A run of `true` on a checkout that is not there.
pub(crate) fn spec() -> RunSpec {
    serde_json::from_value(serde_json::json!({
        "task": "", "mode": Mode::Unattended,
        "agent": AgentSpec::Command { argv: vec!["true".into()] },
        "model": null, "engine": "native",
        "resources": cofferdam_run::spec::Resources::default(),
        "budgets": cofferdam_run::limits::Budgets::default(),
        "egress_allow": [], "egress_deny": [], "accept_degraded": [], "credentials": [],
        "env_names": [], "checkout": "/no/such/checkout",
    }))
    .unwrap()
}

/// The owner text of a process of ours that has ended and been waited for.
#[expect(clippy::disallowed_methods, reason = "the test needs a process that has ended")]
pub(crate) fn dead() -> String {
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let mut fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
    let start = fields.nth(19).unwrap().to_owned();
    let me = owner::me();
    let place = &me[me.find(" in ").unwrap()..];
    let text = format!("process {} started {start}{place}", child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    text
}
