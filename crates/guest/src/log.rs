//! The guest's own few words on standard error.
//!
//! Never writes more than [`LOG_LINES`] lines of [`LOG_CHARS`] characters: the agent could cause
//! them. Never writes to standard output while the link owns it.

use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::limits::{LOG_CHARS, LOG_LINES};

static LINES: AtomicU32 = AtomicU32::new(0);

/// Writes one line.
pub(crate) fn line(text: &str) {
    if LINES.fetch_add(1, Ordering::Relaxed) >= LOG_LINES {
        // Far from wrapping around: the counter is pulled back.
        LINES.store(LOG_LINES, Ordering::Relaxed);
        return;
    }
    let line: String = text.chars().take(LOG_CHARS).flat_map(char::escape_debug).collect();
    // Nobody may be reading; that is no reason to stop.
    let _ = writeln!(std::io::stderr(), "cofferdam-guest: {line}");
}

/// Writes one line to standard output. For `--version`, where there is no link.
pub(crate) fn stdout_line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
