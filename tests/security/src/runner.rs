//! Runs attempts one after the other, each in a child of its own with a bound in time, and prints one
//! line for each.
//!
//! A child that hangs is killed and reported; it never takes the rest with it.

use std::io::{Read as _, Write as _};
use std::os::fd::FromRawFd as _;
use std::sync::OnceLock;

use crate::outcome::Outcome;
use crate::table::{Attempt, Place, all};

/// Longest time of one attempt or twin, milliseconds. Past it the child is killed and the result is
/// `hung`, which no expectation allows.
pub const ATTEMPT_MS: i32 = 10_000;
/// What a line of results begins with.
pub const MARK: &str = "@attack ";

static PARAMETERS: OnceLock<Vec<(String, String)>> = OnceLock::new();
/// Descriptors above 2 that the program was born with.
pub(crate) static INHERITED: OnceLock<Vec<String>> = OnceLock::new();

/// A parameter that the test gave as `name=value`; empty when it did not.
#[must_use]
pub fn parameter(name: &str) -> String {
    PARAMETERS
        .get()
        .into_iter()
        .flatten()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.clone())
        .unwrap_or_default()
}

/// The program's whole life: `name=value` words are parameters, the others select attempts by place
/// or name.
pub fn main(words: impl Iterator<Item = String>) {
    let _born = INHERITED.set(inherited());
    let (mut parameters, mut selected) = (Vec::new(), Vec::new());
    for word in words {
        match word.split_once('=') {
            Some((key, value)) => parameters.push((key.to_owned(), value.to_owned())),
            None => selected.push(word),
        }
    }
    if selected.first().is_some_and(|word| word == "whoami") {
        // SAFETY: takes no arguments.
        println!("euid {}", unsafe { libc::geteuid() });
        return;
    }
    let _first = PARAMETERS.set(parameters);
    for attempt in all().filter(|a| selected.iter().any(|word| matches(a, word))) {
        let (attack, detail) = in_child(|| match (attempt.attack)() {
            Outcome::Refused(detail) => ("refused", detail),
            Outcome::Through(detail) => ("through", detail),
        });
        let (twin, why) = in_child(|| match (attempt.twin)() {
            Ok(()) => ("ok", String::new()),
            Err(why) => ("failed", why),
        });
        println!(
            "{MARK}{{\"name\":\"{}\",\"attack\":\"{attack}\",\"detail\":\"{}\",\"twin\":\"{twin}\",\"why\":\"{}\"}}",
            attempt.name,
            plain(&detail),
            plain(&why)
        );
        let _unread = std::io::stdout().flush();
    }
    println!("{MARK}{{\"end\":true}}");
}

fn matches(attempt: &Attempt, word: &str) -> bool {
    match word {
        "anywhere" => attempt.place == Place::Anywhere,
        "product" => matches!(attempt.place, Place::Anywhere | Place::Product),
        "tight" => attempt.place == Place::Tight,
        "planted" => attempt.place == Place::Planted,
        name => attempt.name == name || attempt.layer == name,
    }
}

/// Text that needs no escape in JSON, at most 200 characters.
fn plain(text: &str) -> String {
    text.chars()
        .take(200)
        .map(|c| if c.is_ascii_graphic() && c != '"' && c != '\\' || c == ' ' { c } else { '.' })
        .collect()
}

fn inherited() -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        // The descriptor of this very look is one too.
        let own = target.to_string_lossy().ends_with("/fd");
        if name.parse::<u32>().is_ok_and(|number| number > 2) && !own {
            found.push(format!("{name} {}", target.display()));
        }
    }
    found
}

/// Runs `work` in a forked child and brings its word back.
fn in_child(work: impl FnOnce() -> (&'static str, String)) -> (String, String) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return ("crashed".to_owned(), "no pipe".to_owned());
    }
    let _flushed = std::io::stdout().flush();
    // SAFETY: the attacker has one thread, so the child may go on as any process does.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return ("crashed".to_owned(), "no fork".to_owned());
    }
    if child == 0 {
        let (word, detail) = work();
        let line = format!("{word} {detail}");
        // SAFETY: the descriptor is this process's own; `_exit` does not return.
        unsafe {
            libc::write(ends[1], line.as_ptr().cast(), line.len());
            libc::_exit(0);
        }
    }
    // SAFETY: both descriptors are this process's own; the read end goes to the file.
    let mut reader = unsafe {
        libc::close(ends[1]);
        std::fs::File::from_raw_fd(ends[0])
    };
    let mut watched = libc::pollfd { fd: ends[0], events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    let ready = unsafe { libc::poll(&raw mut watched, 1, ATTEMPT_MS) };
    // SAFETY: the child was not waited for yet.
    unsafe { libc::kill(child, libc::SIGKILL * i32::from(ready <= 0)) };
    let mut line = String::new();
    if ready > 0 {
        let _cut = (&mut reader).take(4096).read_to_string(&mut line);
    }
    let mut status = 0;
    // SAFETY: waits for the own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if ready <= 0 {
        return ("hung".to_owned(), String::new());
    }
    match line.split_once(' ') {
        Some((word, detail)) => (word.to_owned(), detail.to_owned()),
        // A filter may answer by ending the process.
        None if libc::WIFSIGNALED(status)
            && matches!(libc::WTERMSIG(status), libc::SIGSYS | libc::SIGSEGV) =>
        {
            ("refused".to_owned(), format!("signal {}", libc::WTERMSIG(status)))
        }
        None => ("crashed".to_owned(), format!("status {status}")),
    }
}
