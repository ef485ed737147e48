//! `edit_file`: replaces one exact piece of text.
//!
//! Works on bytes, so that a file in another encoding keeps what was not edited. Must never guess: a
//! text that is missing or not unique is an error that says what there is.

use std::io::Read;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ToolError, ToolResult, Toolbox, blocking, parse, read_file, schema, write_file};
use crate::limits::EDIT_FILE_BYTES_MAX;
use crate::model::ToolSpec;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "file_path")]
    path: String,
    #[serde(alias = "old", alias = "old_string", alias = "old_str")]
    old_text: String,
    #[serde(alias = "new", alias = "new_string", alias = "new_str")]
    new_text: String,
    replace_all: Option<bool>,
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "edit_file",
        description: "Replaces old_text by new_text in a file. old_text must be there exactly once, character for \
                      character, without line numbers; add lines around it to make it unique."
            .to_owned(),
        schema: schema(&[
            ("path", "string", true, "Path, relative to the working directory or absolute."),
            ("old_text", "string", true, "The text to replace, exactly as it is in the file."),
            ("new_text", "string", true, "What to put there."),
            ("replace_all", "boolean", false, "Replace every occurrence instead of exactly one."),
        ]),
    }
}

pub(super) async fn run(toolbox: &Toolbox, arguments: Map<String, Value>) -> ToolResult {
    let args: Args = parse(arguments)?;
    let path = toolbox.roots.resolve(&args.path)?;
    blocking(move || {
        let (file, size) = read_file::open(&args.path, &path)?;
        let too_big = || {
            ToolError(format!(
                "`{}` has {size} bytes; edit_file takes {EDIT_FILE_BYTES_MAX}. Use run_shell.",
                args.path
            ))
        };
        if size > EDIT_FILE_BYTES_MAX {
            return Err(too_big());
        }
        let mut content = Vec::new();
        file.take(EDIT_FILE_BYTES_MAX + 1)
            .read_to_end(&mut content)
            .map_err(|e| ToolError(format!("`{}` cannot be read: {e}.", args.path)))?;
        if content.len() as u64 > EDIT_FILE_BYTES_MAX {
            return Err(too_big());
        }
        let edited =
            edit(&content, &args.old_text, &args.new_text, args.replace_all.unwrap_or(false))
                .map_err(|why| ToolError(format!("`{}` was not changed: {why}", args.path)))?;
        write_file::write(&args.path, &path, &edited.content)?;
        let lines: Vec<String> = edited.lines.iter().take(10).map(ToString::to_string).collect();
        let note = if edited.line_ends { " (its CRLF line ends were kept)" } else { "" };
        Ok(format!(
            "Edited `{}`: {} replaced, at line {}{note}.",
            args.path,
            if edited.lines.len() == 1 {
                "one place".to_owned()
            } else {
                format!("{} places", edited.lines.len())
            },
            lines.join(", ")
        ))
    })
    .await
}

struct Edited {
    content: Vec<u8>,
    lines: Vec<usize>,
    line_ends: bool,
}

fn edit(content: &[u8], old: &str, new: &str, all: bool) -> Result<Edited, String> {
    if old.is_empty() {
        return Err("old_text is empty. Use write_file for a new file.".to_owned());
    }
    if old == new {
        return Err("old_text and new_text are the same.".to_owned());
    }
    let mut places = find(content, old.as_bytes());
    let (mut old, mut new, mut line_ends) = (old.to_owned(), new.to_owned(), false);
    if places.is_empty()
        && old.contains('\n')
        && !old.contains('\r')
        && content.windows(2).any(|w| w == b"\r\n")
    {
        old = old.replace('\n', "\r\n");
        new = new.replace("\r\n", "\n").replace('\n', "\r\n");
        places = find(content, old.as_bytes());
        line_ends = true;
    }
    let lines: Vec<usize> = line_numbers(content, &places);
    match places.len() {
        0 => return Err(missing(content, &old)),
        1 => {}
        _ if all => {}
        n => {
            let shown: Vec<String> = lines.iter().take(10).map(ToString::to_string).collect();
            return Err(format!(
                "old_text is there {n} times, at line {}{}. Add lines around it, or set replace_all.",
                shown.join(", "),
                if n > 10 { " and more" } else { "" }
            ));
        }
    }
    let mut out = Vec::with_capacity(content.len() + new.len());
    let mut from = 0;
    for at in places {
        out.extend_from_slice(&content[from..at]);
        out.extend_from_slice(new.as_bytes());
        from = at + old.len();
    }
    out.extend_from_slice(&content[from..]);
    Ok(Edited { content: out, lines, line_ends })
}

/// Starts of all occurrences that do not overlap.
fn find(content: &[u8], needle: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = 0;
    // Jumping to the first byte keeps a long file of other bytes cheap.
    while let Some(step) = content[at..].iter().position(|b| *b == needle[0]) {
        at += step;
        if content[at..].starts_with(needle) {
            found.push(at);
            at += needle.len();
        } else {
            at += 1;
        }
    }
    found
}

fn line_numbers(content: &[u8], places: &[usize]) -> Vec<usize> {
    let (mut line, mut from) = (1, 0);
    places
        .iter()
        .map(|at| {
            line += content[from..*at].iter().filter(|b| **b == b'\n').count();
            from = *at;
            line
        })
        .collect()
}

/// Why `old` is not there, as far as it can be told.
fn missing(content: &[u8], old: &str) -> String {
    let text = String::from_utf8_lossy(content);
    let squeeze = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted: Vec<String> = old.lines().map(squeeze).filter(|l| !l.is_empty()).collect();
    let Some(first) = wanted.first() else {
        return "old_text is white space that is not there.".to_owned();
    };
    let lines: Vec<(usize, String)> =
        text.lines().map(squeeze).enumerate().filter(|(_, l)| !l.is_empty()).collect();
    let near = lines
        .windows(wanted.len())
        .find(|window| window.iter().zip(&wanted).all(|((_, line), want)| line == want));
    if let Some([(at, _), ..]) = near {
        return format!(
            "old_text differs from line {} on in white space only. Read the file there and copy it exactly.",
            at + 1
        );
    }
    match lines.iter().find(|(_, line)| line.contains(first.as_str())) {
        Some((at, _)) => format!(
            "old_text is not there; its first line is like line {}, but what follows differs. Read the file again.",
            at + 1
        ),
        None => "old_text is not there, nor is its first line. Read the file again.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content: &str, old: &str, new: &str, all: bool, expect: Result<&str, &str>) {
        match (edit(content.as_bytes(), old, new, all), expect) {
            (Ok(edited), Ok(text)) => assert_eq!(String::from_utf8(edited.content).unwrap(), text),
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (Ok(_), Err(part)) => panic!("expected an error with `{part}`"),
            (Err(why), Ok(_)) => panic!("{why}"),
        }
    }

    #[test]
    fn exactly_one_place_is_replaced() {
        check("a b c", "b", "x", false, Ok("a x c"));
        check("aaa", "aa", "b", false, Ok("ba"));
        check("a\na\n", "a", "b", false, Err("2 times, at line 1, 2"));
        check("a\na\n", "a", "b", true, Ok("b\nb\n"));
        check("é😀", "😀", "", false, Ok("é"));
    }

    #[test]
    fn errors_say_what_is_there() {
        check(
            "fn a() {\n\tx();\n}\n",
            "fn a() {\n    x();",
            "y",
            false,
            Err("from line 1 on in white space only"),
        );
        check("one\ntwo\nthree\n", "two\nfour", "y", false, Err("first line is like line 2"));
        check("one\n", "zwei", "y", false, Err("nor is its first line"));
        check("one\n", "", "y", false, Err("old_text is empty"));
        check("one\n", "one", "one", false, Err("are the same"));
        check("one\n", "\n\n\n", "x", false, Err("white space"));
    }

    #[test]
    fn windows_line_ends_stay() {
        check("a\r\nb\r\nc\r\n", "a\nb", "x\ny", false, Ok("x\r\ny\r\nc\r\n"));
    }

    #[test]
    fn bytes_that_are_no_text_stay() {
        let edited = edit(b"\xff\xfe a \xc3", "a", "b", false).unwrap();
        assert_eq!(edited.content, b"\xff\xfe b \xc3");
    }
}
