//! Makes hostile text safe to show: commit subjects, paths, file contents, git's own messages.
//!
//! It must never let a control character, a terminal escape or a character that reorders or hides
//! text through. The result is meant for people; nothing parses it back.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Characters that reorder, hide or join text on a screen. A reviewer must see them
/// (<https://trojansource.codes>).
fn is_deceptive(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn push(out: &mut String, c: char, keep_layout: bool) {
    if keep_layout && (c == '\n' || c == '\t') {
        out.push(c);
    } else if c.is_control() || is_deceptive(c) {
        out.extend(c.escape_unicode());
    } else {
        out.push(c);
    }
}

fn escaped(bytes: &[u8], keep_layout: bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push(&mut out, c, keep_layout);
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// One line: line breaks and tabs are escaped too; cut at `max_chars` characters with an ellipsis.
#[must_use]
pub fn line(bytes: impl AsRef<[u8]>, max_chars: usize) -> String {
    // A character is at most four bytes: what lies behind that cannot be shown anyway.
    let bytes = bytes.as_ref();
    let window = &bytes[..bytes.len().min(max_chars.saturating_mul(4).saturating_add(4))];
    cut(escaped(window, false), max_chars)
}

/// Text of several lines: line feeds and tabs stay, everything else is as in [`line`].
#[must_use]
pub fn text(bytes: impl AsRef<[u8]>) -> String {
    escaped(bytes.as_ref(), true)
}

/// A path, whole, on one line.
#[must_use]
pub fn path(path: impl AsRef<OsStr>) -> String {
    escaped(path.as_ref().as_bytes(), false)
}

fn cut(text: String, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text,
        Some((at, _)) => {
            let mut short: Cow<'_, str> = Cow::from(&text[..at]);
            short.to_mut().push('…');
            short.into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_and_reordering_become_visible() {
        assert_eq!(line("a\u{1b}[31mb", 80), "a\\u{1b}[31mb");
        assert_eq!(line("a\u{9b}31mb", 80), "a\\u{9b}31mb");
        assert_eq!(line("x\u{202e}y", 80), "x\\u{202e}y");
        assert_eq!(line("x\ny\tz\r", 80), "x\\u{a}y\\u{9}z\\u{d}");
        assert_eq!(line(b"\xff\xfe ok", 80), "\\xff\\xfe ok");
    }

    #[test]
    fn text_keeps_its_layout_and_letters() {
        assert_eq!(text("ä\n\tß\r\n"), "ä\n\tß\\u{d}\n");
    }

    #[test]
    fn long_lines_are_cut_with_an_ellipsis() {
        assert_eq!(line("abcdef", 3), "abc…");
        assert_eq!(line("äöü", 3), "äöü");
        assert_eq!(line("ä".repeat(1 << 20), 2), "ää…");
    }
}
