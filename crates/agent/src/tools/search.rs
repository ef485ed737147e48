//! `search`: lines that match, by `rg` where there is one, else by `grep`.
//!
//! Must never wait for a search whose answer is already full, nor hold a whole endless line.

use std::ffi::OsStr;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ToolError, ToolResult, Toolbox, parse, schema};
use crate::limits::{HELPER_TIMEOUT_S, SEARCH_LINE_BYTES_MAX, SEARCH_LINES_MAX};
use crate::model::ToolSpec;
use crate::process::{Ended, Flow, Invocation, run as run_process};
use crate::text::prefix;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    literal: Option<bool>,
    ignore_case: Option<bool>,
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "search",
        description: format!(
            "Finds lines that match a regular expression (or a literal text) in text files. Shows at most \
             {SEARCH_LINES_MAX} lines as path:line:text."
        ),
        schema: schema(&[
            (
                "pattern",
                "string",
                true,
                "Extended regular expression, or the text when literal is set.",
            ),
            ("path", "string", false, "File or directory; the working directory when left out."),
            ("glob", "string", false, "Only files whose name matches, for example *.rs."),
            ("literal", "boolean", false, "Take the pattern as plain text."),
            ("ignore_case", "boolean", false, "Ignore upper and lower case."),
        ]),
    }
}

pub(super) async fn run(toolbox: &Toolbox, arguments: Map<String, Value>) -> ToolResult {
    let args: Args = parse(arguments)?;
    if args.pattern.is_empty() || args.pattern.contains(['\n', '\0']) {
        return Err(ToolError::new("The pattern must be one line, and not empty."));
    }
    let name = args.path.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| ".".to_owned());
    let path = toolbox.roots.resolve(&name)?;
    if !path.exists() {
        return Err(ToolError(format!("`{name}` does not exist.")));
    }
    let relative = match path.strip_prefix(toolbox.roots.cwd()) {
        Ok(rest) if rest.as_os_str().is_empty() => ".".into(),
        Ok(rest) => rest.to_owned(),
        Err(_) => path.clone(),
    };
    for (program, options) in [("rg", rg(&args)), ("grep", grep(&args))] {
        let mut all: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        all.extend([
            OsStr::new("-e"),
            OsStr::new(&args.pattern),
            OsStr::new("--"),
            relative.as_os_str(),
        ]);
        let invocation = Invocation {
            program,
            args: all,
            cwd: toolbox.roots.cwd(),
            env: &toolbox.env,
            timeout: Duration::from_secs(HELPER_TIMEOUT_S),
            with_stderr: true,
            host: toolbox.host.as_ref(),
        };
        let mut lines = Lines::default();
        match run_process(&invocation, &mut |bytes| lines.push(bytes)).await {
            Ok(finished) => return answer(lines, finished.ended),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(ToolError(format!("The search did not start: {error}."))),
        }
    }
    Err(ToolError::new("There is neither rg nor grep here."))
}

fn rg(args: &Args) -> Vec<String> {
    let mut out: Vec<String> = [
        "--line-number",
        "--with-filename",
        "--no-heading",
        "--color=never",
        "--hidden",
        "--glob=!.git",
        "--no-config",
    ]
    .map(str::to_owned)
    .to_vec();
    if args.literal == Some(true) {
        out.push("--fixed-strings".to_owned());
    }
    if args.ignore_case == Some(true) {
        out.push("--ignore-case".to_owned());
    }
    if let Some(glob) = args.glob.as_ref().filter(|g| !g.is_empty()) {
        out.push(format!("--glob={glob}"));
    }
    out
}

fn grep(args: &Args) -> Vec<String> {
    let mut out: Vec<String> =
        ["-r", "-n", "-H", "-I", "-D", "skip", "--color=never", "--exclude-dir=.git"]
            .map(str::to_owned)
            .to_vec();
    out.push(if args.literal == Some(true) { "-F" } else { "-E" }.to_owned());
    if args.ignore_case == Some(true) {
        out.push("-i".to_owned());
    }
    if let Some(glob) = args.glob.as_ref().filter(|g| !g.is_empty()) {
        out.push(format!("--include={glob}"));
    }
    out
}

/// Splits output into bounded lines.
#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    line: Vec<u8>,
    cut: u64,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Flow {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            if self.lines.len() == SEARCH_LINES_MAX {
                return Flow::Enough;
            }
            let (text, ends) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            let room = SEARCH_LINE_BYTES_MAX.saturating_sub(self.line.len()).min(text.len());
            self.line.extend_from_slice(&text[..room]);
            self.cut += (text.len() - room) as u64;
            if ends {
                self.end_line();
            }
        }
        Flow::More
    }

    fn end_line(&mut self) {
        let mut text = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        if self.cut > 0 {
            text = format!(
                "{} [{} bytes of this line cut]",
                text.trim_end_matches('\u{fffd}'),
                self.cut
            );
            self.cut = 0;
        }
        self.lines.push(text);
    }
}

fn answer(mut lines: Lines, ended: Ended) -> ToolResult {
    if !lines.line.is_empty() && lines.lines.len() < SEARCH_LINES_MAX {
        lines.end_line();
    }
    let text: String =
        lines.lines.iter().map(|l| format!("{}\n", l.strip_prefix("./").unwrap_or(l))).collect();
    match ended {
        Ended::Stopped => {
            Ok(format!("{text}[only the first {SEARCH_LINES_MAX} lines; narrow the search]\n"))
        }
        Ended::TimedOut => Ok(format!(
            "{text}[the search was ended after {HELPER_TIMEOUT_S} s; it is incomplete]\n"
        )),
        Ended::Exited(status) => match status.code() {
            Some(0) => Ok(text),
            Some(1) => Ok("No line matches.".to_owned()),
            // Both programs also say 2 when some file could not be read; the lines say which.
            _ if !text.is_empty() => {
                Err(ToolError(format!("The search had errors:\n{}", prefix(&text, 8 << 10))))
            }
            _ => Err(ToolError(format!("The search failed: {status}."))),
        },
    }
}
