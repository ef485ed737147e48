//! Whole lines out of pieces: what a program writes in several calls is one line for a person.

/// Longest line that is kept waiting for its end, bytes; a longer one is shown in pieces.
const MAX_WAITING: usize = 4096;

/// Joins pieces of two streams.
#[derive(Debug, Default)]
pub(crate) struct LineJoiner {
    waiting: [String; 2],
}

impl LineJoiner {
    /// Takes a piece and gives the lines that are complete now.
    pub(crate) fn feed(&mut self, stderr: bool, piece: &str) -> Vec<String> {
        let waiting = &mut self.waiting[usize::from(stderr)];
        waiting.push_str(piece);
        let mut lines = Vec::new();
        while let Some(end) = waiting.find('\n') {
            let rest = waiting.split_off(end + 1);
            waiting.truncate(end);
            lines.push(std::mem::replace(waiting, rest));
        }
        if waiting.len() > MAX_WAITING {
            lines.push(std::mem::take(waiting));
        }
        lines
    }

    /// Gives what is left without an end of line.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        self.waiting.iter_mut().filter(|w| !w.is_empty()).map(std::mem::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_line_come_out_as_one() {
        let mut joiner = LineJoiner::default();
        assert!(joiner.feed(false, "ls: ").is_empty());
        assert!(joiner.feed(true, "other").is_empty());
        assert_eq!(joiner.feed(false, "cannot access\n\nnext"), ["ls: cannot access", ""]);
        assert_eq!(joiner.rest(), ["next", "other"]);
        assert!(joiner.rest().is_empty());
    }

    #[test]
    fn an_endless_line_does_not_wait_for_ever() {
        let mut joiner = LineJoiner::default();
        assert_eq!(joiner.feed(false, &"x".repeat(MAX_WAITING + 1)).len(), 1);
    }
}
