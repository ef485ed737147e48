//! Cutting text to size without breaking it, and making it fit for one line.
//!
//! Must never cut without saying how much, nor split a character.

/// The longest prefix of `text` of at most `bytes` bytes that ends on a character boundary.
pub(crate) fn prefix(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let mut end = bytes;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The longest suffix of `text` of at most `bytes` bytes that starts on a character boundary.
pub(crate) fn suffix(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let mut start = text.len() - bytes;
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// At most `chars` characters of `text`, with a count of what was cut.
pub(crate) fn clip(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some((at, _)) => {
            let cut = text[at..].chars().count();
            format!("{} [{cut} characters cut]", &text[..at])
        }
    }
}

/// `text` on one line: runs of white space and control characters become one space.
pub(crate) fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(4096));
    let mut gap = false;
    for c in text.chars() {
        if c.is_whitespace() || c.is_control() {
            gap = !out.is_empty();
        } else {
            if gap {
                out.push(' ');
                gap = false;
            }
            out.push(c);
        }
    }
    out
}

/// `text` without control characters other than newline and tab, so that it cannot drive a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || *c == '\n' || *c == '\t').collect()
}

/// What a terminal's screen was told, without the telling: escape sequences are taken out, and a
/// carriage return ends a line.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                // Control sequence: parameters, then one final character.
                Some('[') => {
                    while let Some(c) = chars.next_if(|c| matches!(c, ' '..='~')) {
                        if matches!(c, '@'..='~') {
                            break;
                        }
                    }
                }
                // Operating system command (titles, links): up to BEL or ESC \.
                Some(']') => {
                    while let Some(c) = chars.next_if(|c| *c != '\n') {
                        if c == '\u{7}' || c == '\u{1b}' && chars.next_if_eq(&'\\').is_some() {
                            break;
                        }
                    }
                }
                _ => {}
            },
            '\r' => {
                if chars.peek() != Some(&'\n') {
                    out.push('\n');
                }
            }
            '\n' | '\t' => out.push(c),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

/// Keeps the first and the last bytes of a stream of unknown length, and counts what fell between.
#[derive(Debug)]
pub(crate) struct HeadTail {
    head: Vec<u8>,
    head_max: usize,
    tail: std::collections::VecDeque<u8>,
    tail_max: usize,
    cut: u64,
}

impl HeadTail {
    pub(crate) fn new(head_max: usize, tail_max: usize) -> Self {
        Self {
            head: Vec::new(),
            head_max,
            tail: std::collections::VecDeque::new(),
            tail_max,
            cut: 0,
        }
    }

    /// Takes the next bytes of the stream.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        let room = self.head_max - self.head.len();
        let take = room.min(bytes.len());
        self.head.extend_from_slice(&bytes[..take]);
        bytes = &bytes[take..];
        if bytes.len() > self.tail_max {
            let skip = bytes.len() - self.tail_max;
            self.cut += (skip + self.tail.len()) as u64;
            self.tail.clear();
            bytes = &bytes[skip..];
        }
        let over = (self.tail.len() + bytes.len()).saturating_sub(self.tail_max);
        self.tail.drain(..over);
        self.cut += over as u64;
        self.tail.extend(bytes);
    }

    /// Bytes that were cut.
    #[cfg(test)]
    pub(crate) fn cut_bytes(&self) -> u64 {
        self.cut
    }

    /// What was kept, decoded lossily. Head and tail are joined before decoding when nothing was
    /// cut, so that a character across the seam stays whole; at a cut, torn characters are dropped.
    pub(crate) fn finish(self) -> String {
        let tail: Vec<u8> = self.tail.into();
        if self.cut == 0 {
            let mut all = self.head;
            all.extend_from_slice(&tail);
            return String::from_utf8_lossy(&all).into_owned();
        }
        let head = trim_torn_end(&self.head);
        let tail = trim_torn_start(&tail);
        let lost = self.cut + (self.head.len() - head.len()) as u64;
        format!(
            "{}\n[… {lost} bytes of output cut here …]\n{}",
            String::from_utf8_lossy(head),
            String::from_utf8_lossy(tail)
        )
    }
}

/// Drops an incomplete character at the end.
fn trim_torn_end(bytes: &[u8]) -> &[u8] {
    for back in 1..=3.min(bytes.len()) {
        let byte = bytes[bytes.len() - back];
        if byte & 0b1100_0000 == 0b1000_0000 {
            continue;
        }
        let need = match byte {
            0xC0..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF7 => 4,
            _ => 1,
        };
        return if need > back { &bytes[..bytes.len() - back] } else { bytes };
    }
    bytes
}

/// Drops continuation bytes at the start.
fn trim_torn_start(bytes: &[u8]) -> &[u8] {
    let torn = bytes.iter().take(3).take_while(|b| **b & 0b1100_0000 == 0b1000_0000).count();
    &bytes[torn..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_and_suffix_never_split_a_character() {
        let text = "aé😀b";
        for n in 0..=text.len() {
            assert!(text.starts_with(prefix(text, n)) && prefix(text, n).len() <= n);
            assert!(text.ends_with(suffix(text, n)) && suffix(text, n).len() <= n);
        }
    }

    #[test]
    fn clip_says_how_much_was_cut() {
        assert_eq!(clip("ééé", 3), "ééé");
        assert_eq!(clip("éééé", 3), "ééé [1 characters cut]");
    }

    #[test]
    fn one_line_has_no_control_characters() {
        assert_eq!(one_line("  a\r\n\tb\u{1b}[31m c\0 "), "a b [31m c");
    }

    #[test]
    fn what_drives_a_terminal_is_taken_out() {
        assert_eq!(plain("\u{1b}[1;31mred\u{1b}[0m\r\n10%\r20%\n"), "red\n10%\n20%\n");
        assert_eq!(plain("\u{1b}]0;title\u{7}a\u{1b}]8;;x\u{1b}\\b\u{8}\0\tc"), "ab\tc");
        assert_eq!(plain("\u{1b}["), "");
        assert_eq!(plain("\u{1b}]8;;open\nnext"), "\nnext");
    }

    #[test]
    fn head_and_tail_account_for_every_byte() {
        for (head, tail) in [(0, 0), (0, 4), (4, 0), (3, 5)] {
            for total in 0..30usize {
                for chunk in 1..8 {
                    let data: Vec<u8> =
                        (0..total).map(|i| b'a' + u8::try_from(i % 26).unwrap()).collect();
                    let mut kept = HeadTail::new(head, tail);
                    data.chunks(chunk).for_each(|c| kept.push(c));
                    assert_eq!(kept.cut_bytes(), total.saturating_sub(head + tail) as u64);
                    if total <= head + tail {
                        assert_eq!(kept.finish().into_bytes(), data);
                    } else {
                        let text = kept.finish();
                        assert!(text.as_bytes().starts_with(&data[..head]));
                        assert!(text.as_bytes().ends_with(&data[total - tail..]));
                    }
                }
            }
        }
    }

    #[test]
    fn a_character_across_the_seam_stays_whole() {
        let mut kept = HeadTail::new(3, 10);
        "aé😀z".bytes().for_each(|b| kept.push(&[b]));
        assert_eq!(kept.finish(), "aé😀z");
    }

    #[test]
    fn torn_characters_at_a_cut_are_dropped() {
        let mut kept = HeadTail::new(2, 3);
        kept.push("a😀bc😀".as_bytes());
        let text = kept.finish();
        assert!(!text.contains('\u{fffd}'), "{text}");
    }
}
