//! The launcher: a small program with one thread that becomes the sandbox's parent.
//!
//! Namespaces and credentials belong to threads, which the host process has many of; so this is
//! a process of its own. Its parent half stays outside the sandbox and only waits. It must never
//! start a thread, and never execute anything but the guest's program, inside.

mod child;
mod parent;
pub(super) mod privileges;
mod root;
mod second_net;
mod sys;
mod userland;

use std::fmt::Display;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::handoff::{EXIT_SETUP, LaunchReport, LaunchSpec};
use crate::spec;

/// A step of the launch that failed.
#[derive(Debug)]
struct Failure {
    stage: String,
    detail: String,
}

/// Names the step of a result.
trait Stage<T> {
    fn stage(self, stage: impl Into<String>) -> Result<T, Failure>;
}

impl<T, E: Display> Stage<T> for Result<T, E> {
    fn stage(self, stage: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|error| Failure { stage: stage.into(), detail: error.to_string() })
    }
}

/// The launcher's whole life. `arguments` are the program's own, without its name.
#[must_use]
pub fn main(arguments: &[std::ffi::OsString]) -> ExitCode {
    // Whatever the host left open is not for this process, which lives as long as the run.
    let closed = sys::close_all_but_standard().stage("close descriptors");
    let outcome = closed.and_then(|()| match arguments {
        [path] => load(Path::new(path)).and_then(|spec| parent::run(&spec)),
        _ => Err(Failure {
            stage: "arguments".to_owned(),
            detail: "started by the native engine, with the path of a launch file".to_owned(),
        }),
    });
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            report(&LaunchReport::Failed { stage: failure.stage, detail: failure.detail });
            ExitCode::from(EXIT_SETUP)
        }
    }
}

fn load(path: &Path) -> Result<LaunchSpec, Failure> {
    let bytes = std::fs::read(path).stage(format!("read {}", path.display()))?;
    let spec: LaunchSpec = serde_json::from_slice(&bytes).stage("parse the launch file")?;
    // A field that this build does not know would be left out, and the digest would be another.
    if spec.hardening.version != spec::VERSION || spec.hardening.digest() != spec.digest {
        return Err(Failure {
            stage: "compare hardening".to_owned(),
            detail: "engine and launcher are of different builds: install both from one".to_owned(),
        });
    }
    Ok(spec)
}

/// Writes the report line. Nothing can be done when nobody reads it: the exit code says the rest.
fn report(report: &LaunchReport) {
    if let Ok(mut line) = serde_json::to_vec(report) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        let _unread = out.write_all(&line).and_then(|()| out.flush());
    }
}
