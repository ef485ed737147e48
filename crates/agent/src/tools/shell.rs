//! `run_shell`: one command, to its end.
//!
//! Must never outlive its time, wait for a child that kept the pipe, or answer with unbounded output.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ToolError, ToolResult, Toolbox, number, parse, schema};
use crate::limits::{
    SHELL_COMMAND_BYTES_MAX, SHELL_HEAD_BYTES, SHELL_TAIL_BYTES, SHELL_TIMEOUT_S_DEFAULT,
    SHELL_TIMEOUT_S_MAX,
};
use crate::model::ToolSpec;
use crate::process::{Ended, Flow, Invocation, run as run_process};
use crate::text::HeadTail;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    command: String,
    #[serde(default, deserialize_with = "number", alias = "timeout")]
    timeout_seconds: Option<u64>,
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "run_shell",
        description: format!(
            "Runs a command with bash in the working directory and shows its output, standard error included; of long \
             output the middle is cut. There is no input and no terminal. A command that runs over its time \
             ({SHELL_TIMEOUT_S_DEFAULT} s unless timeout_seconds says otherwise, at most {SHELL_TIMEOUT_S_MAX} s) is \
             ended, and so is whatever it left in the background. Each call is a new shell."
        ),
        schema: schema(&[
            ("command", "string", true, "The command."),
            ("timeout_seconds", "integer", false, "Most seconds it may run."),
        ]),
    }
}

pub(super) async fn run(toolbox: &Toolbox, arguments: Map<String, Value>) -> ToolResult {
    let args: Args = parse(arguments)?;
    if args.command.trim().is_empty() || args.command.contains('\0') {
        return Err(ToolError::new("The command is empty, or holds a NUL character."));
    }
    if args.command.len() > SHELL_COMMAND_BYTES_MAX {
        return Err(ToolError(format!(
            "The command has {} bytes; at most {SHELL_COMMAND_BYTES_MAX} are taken. Write a script with write_file.",
            args.command.len()
        )));
    }
    let asked = args.timeout_seconds.unwrap_or(SHELL_TIMEOUT_S_DEFAULT);
    let seconds = asked.clamp(1, SHELL_TIMEOUT_S_MAX);
    for shell in ["bash", "sh"] {
        let invocation = Invocation {
            program: shell,
            args: vec![OsStr::new("-c"), OsStr::new(&args.command)],
            cwd: toolbox.roots.cwd(),
            env: &toolbox.env,
            timeout: Duration::from_secs(seconds),
            with_stderr: true,
            host: toolbox.host.as_ref(),
        };
        let mut output = HeadTail::new(SHELL_HEAD_BYTES, SHELL_TAIL_BYTES);
        let finished = run_process(&invocation, &mut |bytes| {
            output.push(bytes);
            Flow::More
        })
        .await;
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && shell == "bash" => {
                continue;
            }
            Err(error) => return Err(ToolError(format!("The shell did not start: {error}."))),
        };
        let mut text = crate::text::plain(&output.finish());
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        if finished.pipe_left_open {
            text.push_str(
                "[something that the command started still holds its output open; it was left]\n",
            );
        }
        return match finished.ended {
            Ended::Exited(status) if status.success() => Ok(format!("{text}[exit code 0]")),
            Ended::Exited(status) => Err(ToolError(format!("{text}[{}]", describe(status)))),
            Ended::TimedOut | Ended::Stopped => {
                let lowered = if asked > SHELL_TIMEOUT_S_MAX { ", the most there is" } else { "" };
                Err(ToolError(format!(
                    "{text}[ended: it ran over its time of {seconds} s{lowered}]"
                )))
            }
        };
    }
    Err(ToolError::new("There is neither bash nor sh here."))
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}
