//! Making text of the guest's fit for people: bounded, and without anything that steers a terminal.

/// At most `limit` characters of `text`, with a mark where it was cut.
#[must_use]
pub fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// True for characters that steer a terminal or reorder text.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// One line, bounded, steering characters escaped.
#[must_use]
pub fn line(text: &str, limit: usize) -> String {
    let mut out = String::new();
    for c in cut(text.trim_end(), limit).chars() {
        match c {
            '\n' => out.push_str(" ⏎ "),
            '\t' => out.push(' '),
            '\r' => {}
            c if steers(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// Several lines: line breaks and tabs stay, every other steering character is escaped.
#[must_use]
pub fn block(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            '\r' => {}
            c if steers(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_reordering_are_shown_and_not_obeyed() {
        assert_eq!(line("a\u{1b}[2Jb", 100), "a\\u{1b}[2Jb");
        assert_eq!(line("a\u{202e}b\nc\td", 100), "a\\u{202e}b ⏎ c d");
        assert_eq!(block("a\r\nb\u{7}"), "a\nb\\u{7}");
    }

    #[test]
    fn long_text_is_cut_with_a_mark_on_a_character_border() {
        assert_eq!(cut("äöü", 2), "äö…");
        assert_eq!(cut("äö", 2), "äö");
    }
}
