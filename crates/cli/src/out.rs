//! Everything that the command prints: data on standard output, the rest on standard error.
//!
//! Meaning never depends on colour. A closed pipe ends printing silently.

use std::io::{IsTerminal as _, Write as _};

use crate::env;

/// How to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out {
    /// JSON on standard output.
    pub(crate) json: bool,
    colour_out: bool,
    colour_err: bool,
}

/// A colour that underlines what words say already.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tone {
    Good,
    Bad,
    Warn,
    Dim,
    Strong,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Bad => "31",
            Self::Warn => "33",
            Self::Dim => "2",
            Self::Strong => "1",
        }
    }
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        let wanted = env::raw(env::NO_COLOR).is_none();
        Self {
            json,
            colour_out: wanted && std::io::stdout().is_terminal(),
            colour_err: wanted && std::io::stderr().is_terminal(),
        }
    }

    /// A line of data.
    pub(crate) fn line(self, text: &str) {
        // Who closed the pipe does not want to read on.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }

    /// Text as it is.
    pub(crate) fn raw(self, bytes: &[u8]) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    }

    /// JSON, for people to read and machines to parse.
    pub(crate) fn json(self, value: &serde_json::Value) {
        self.line(&format!("{value:#}"));
    }

    /// A line for the person, beside the data.
    pub(crate) fn note(self, text: &str) {
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }

    /// `text` in a tone, for standard output.
    pub(crate) fn tone(self, tone: Tone, text: &str) -> String {
        paint(self.colour_out, tone, text)
    }

    /// `text` in a tone, for standard error.
    pub(crate) fn note_tone(self, tone: Tone, text: &str) -> String {
        paint(self.colour_err, tone, text)
    }
}

fn paint(on: bool, tone: Tone, text: &str) -> String {
    if on { format!("\u{1b}[{}m{text}\u{1b}[0m", tone.code()) } else { text.to_owned() }
}

/// A table with aligned columns; the last one runs free.
pub(crate) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(
                    |(i, (cell, width))| {
                        if i + 1 == row.len() { cell.clone() } else { format!("{cell:width$}") }
                    },
                )
                .collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect()
}

/// Bytes for people.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{} KiB", n / 1024),
        1_048_576..1_073_741_824 => format!("{} MiB", n / 1_048_576),
        _ => format!("{} GiB", n / 1_073_741_824),
    }
}

/// Micro-dollars for people.
pub(crate) fn money(micro_usd: u64) -> String {
    format!("${}.{:02}", micro_usd / 1_000_000, micro_usd % 1_000_000 / 10_000)
}

/// How long ago, for people.
pub(crate) fn ago(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// `n commits`, `1 commit`.
pub(crate) fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}
