//! `read_file`: a window of lines of a text file.
//!
//! Must never hold more of a file than its window, whatever the length of file or line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ToolError, ToolResult, Toolbox, blocking, number, parse, schema};
use crate::limits::{LINE_BYTES_MAX, READ_BYTES_MAX, READ_LINES_DEFAULT, READ_SCAN_BYTES_MAX};
use crate::model::ToolSpec;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "file_path")]
    path: String,
    #[serde(default, deserialize_with = "number")]
    offset: Option<u64>,
    #[serde(default, deserialize_with = "number")]
    limit: Option<u64>,
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "read_file",
        description: format!(
            "Reads a text file, with line numbers. Shows {READ_LINES_DEFAULT} lines unless limit says otherwise, and \
             at most {READ_BYTES_MAX} bytes."
        ),
        schema: schema(&[
            ("path", "string", true, "Path, relative to the working directory or absolute."),
            ("offset", "integer", false, "First line to show, counted from 1."),
            ("limit", "integer", false, "Most lines to show."),
        ]),
    }
}

pub(super) async fn run(toolbox: &Toolbox, arguments: Map<String, Value>) -> ToolResult {
    let args: Args = parse(arguments)?;
    let path = toolbox.roots.resolve(&args.path)?;
    let first = args.offset.unwrap_or(1).max(1);
    let lines = args.limit.filter(|n| *n > 0).unwrap_or(READ_LINES_DEFAULT as u64);
    blocking(move || read(&args.path, &path, first, lines)).await
}

/// Opens a regular file; anything else has its own words.
pub(super) fn open(name: &str, path: &Path) -> Result<(File, u64), ToolError> {
    let error = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => {
            ToolError(format!("`{name}` does not exist. list_files shows what does."))
        }
        _ => ToolError(format!("`{name}` cannot be read: {e}.")),
    };
    // Looked at before it is opened: opening a named pipe would wait for a writer.
    let meta = path.metadata().map_err(error)?;
    if meta.is_dir() {
        return Err(ToolError(format!("`{name}` is a directory; list_files shows its content.")));
    }
    if !meta.is_file() {
        return Err(ToolError(format!("`{name}` is no regular file.")));
    }
    Ok((File::open(path).map_err(error)?, meta.len()))
}

/// True for content that is no text: a NUL near the start.
pub(super) fn is_binary(start: &[u8]) -> bool {
    start[..start.len().min(8 << 10)].contains(&0)
}

fn read(name: &str, path: &Path, first: u64, lines: u64) -> ToolResult {
    let (file, size) = open(name, path)?;
    let failed = |e: std::io::Error| ToolError(format!("`{name}` cannot be read: {e}."));
    let mut reader = BufReader::with_capacity(64 << 10, file.take(READ_SCAN_BYTES_MAX));
    if is_binary(reader.fill_buf().map_err(failed)?) {
        return Err(ToolError(format!(
            "`{name}` is a binary file of {size} bytes; it is not shown."
        )));
    }
    let last = first.saturating_add(lines - 1);
    let mut window = Window::default();
    let (mut line, mut seen, mut at_start) = (1u64, 0u64, true);
    loop {
        let chunk = reader.fill_buf().map_err(failed)?;
        if chunk.is_empty() {
            break;
        }
        let (piece, ended) = match chunk.iter().position(|b| *b == b'\n') {
            Some(at) => (&chunk[..at], true),
            None => (chunk, false),
        };
        if line >= first && line <= last {
            window.push(line, at_start, piece);
        }
        at_start = ended;
        let used = piece.len() + usize::from(ended);
        if ended {
            line += 1;
        }
        seen += used as u64;
        reader.consume(used);
    }
    let total = if at_start { line - 1 } else { line };
    if size > READ_SCAN_BYTES_MAX && seen >= READ_SCAN_BYTES_MAX {
        window.note = format!(
            "[only the first {READ_SCAN_BYTES_MAX} of {size} bytes were looked through; use run_shell with sed, head or \
             tail for the rest]\n"
        );
    }
    Ok(window.finish(name, size, first, total))
}

/// The lines that are shown.
#[derive(Default)]
struct Window {
    text: String,
    line: Vec<u8>,
    line_number: u64,
    line_bytes: u64,
    shown: u64,
    full_at: Option<u64>,
    note: String,
}

impl Window {
    fn push(&mut self, number: u64, starts: bool, piece: &[u8]) {
        if self.full_at.is_some() {
            return;
        }
        if starts {
            self.flush();
            if self.full_at.is_some() {
                return;
            }
            self.line_number = number;
        }
        self.line_bytes += piece.len() as u64;
        // A few bytes more than shown, so that a character at the cut is whole.
        let room = (LINE_BYTES_MAX + 4).saturating_sub(self.line.len());
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    fn flush(&mut self) {
        use std::fmt::Write as _;
        if self.line_number == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&self.line);
        let text = crate::text::prefix(text.trim_end_matches('\r'), LINE_BYTES_MAX);
        let mut entry = format!("{:>6}\t{text}", self.line_number);
        let cut = self.line_bytes.saturating_sub(LINE_BYTES_MAX as u64);
        if cut > 0 {
            // Writing to a string cannot fail.
            let _ = write!(entry, " [{cut} bytes of this line cut]");
        }
        if self.text.len() + entry.len() + 1 > READ_BYTES_MAX {
            self.full_at = Some(self.line_number);
        } else {
            self.text.push_str(&entry);
            self.text.push('\n');
            self.shown += 1;
        }
        self.line.clear();
        self.line_bytes = 0;
        self.line_number = 0;
    }

    fn finish(mut self, name: &str, size: u64, first: u64, total: u64) -> String {
        if self.full_at.is_none() {
            self.flush();
        }
        if size == 0 {
            return format!("`{name}` is empty.");
        }
        if self.shown == 0 && first > total {
            return format!("`{name}` has {total} lines; there is no line {first}.\n{}", self.note);
        }
        let end = first + self.shown;
        if end <= total {
            return format!(
                "{}[lines {first} to {} of {total} shown; go on with offset {end}]\n{}",
                self.text,
                end.saturating_sub(1),
                self.note
            );
        }
        format!("{}{}", self.text, self.note)
    }
}
