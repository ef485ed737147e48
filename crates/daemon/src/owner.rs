//! Who holds a lease: a process, told apart from every other one that has had its number.
//!
//! The text goes into the lease. Another process of the same machine can prove from it that the
//! owner lives or is gone; what cannot be proven (another boot, another process-id namespace, a text
//! of an older version) is unknown, and then the lease's own end decides. It must never take a reused
//! number for the owner, nor a process that it cannot see for a dead one.

use std::fs;

/// What can be said of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// The very process is there.
    Alive,
    /// It ran here, since this machine's last start, and is gone.
    Dead,
    /// It cannot be seen from here.
    Unknown,
}

/// This process, as text for a lease.
pub(crate) fn me() -> String {
    let pid = std::process::id();
    match (start_of(pid), place()) {
        (Some(start), Some(place)) => format!("process {pid} started {start} {place}"),
        // Without a readable `/proc` nothing can be proven later either.
        _ => format!("process {pid}"),
    }
}

/// Whether the owner that `text` names still lives.
pub(crate) fn life_of(text: &str) -> Life {
    let (Some(named), Some(here)) = (parse(text), place()) else { return Life::Unknown };
    if named.place != here {
        return Life::Unknown;
    }
    match start_of(named.pid) {
        Some(start) if start == named.start => Life::Alive,
        // Gone, ended and not yet waited for, or the number is another process's now.
        _ => Life::Dead,
    }
}

struct Named<'a> {
    pid: u32,
    start: u64,
    place: &'a str,
}

fn parse(text: &str) -> Option<Named<'_>> {
    let rest = &text[text.find("process ")? + "process ".len()..];
    let (pid, rest) = rest.split_once(" started ")?;
    let (start, place) = rest.split_once(' ')?;
    Some(Named { pid: pid.parse().ok()?, start: start.parse().ok()?, place })
}

/// The start of this machine and the process-id namespace: numbers mean something only within both.
fn place() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("in {} of boot {}", namespace.display(), boot.trim()))
}

/// When the process that has this number started, clock ticks since boot; `None` when there is none
/// or it has ended already.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, parentheses too.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // State is field 3 of the file, the start time field 22.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_one_with_another_start_is_dead() {
        let me = me();
        assert_eq!(life_of(&me), Life::Alive, "{me}");
        assert_eq!(life_of(&format!("sweep in {me}")), Life::Alive);
        let named = parse(&me).unwrap();
        let reused = format!("process {} started {} {}", named.pid, named.start + 1, named.place);
        assert_eq!(life_of(&reused), Life::Dead, "a reused number is another process");
        let gone = format!("process 4194999 started 7 {}", named.place);
        assert_eq!(life_of(&gone), Life::Dead);
    }

    #[test]
    fn nothing_is_proven_of_another_boot_or_an_older_text() {
        let me = me();
        for text in
            [me.replace("boot ", "boot x"), me.replace("pid:[", "pid:[9"), "process 1".into()]
        {
            assert_eq!(life_of(&text), Life::Unknown, "{text}");
        }
    }
}
