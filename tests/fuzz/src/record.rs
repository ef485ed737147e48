//! Records: what verifies is what sealing would have made, and one changed byte is found.
//!
//! An input is a document to be verified, or a list of facts to be sealed: no mutation finds a digest.

use cofferdam_run::record::{seal, verify};
use cofferdam_run::{Fact, RunId, TimestampMs};

use crate::choice;

pub(crate) fn body(data: &[u8]) {
    let (place, rest) = choice(data);
    let (flip, bytes) = choice(rest);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(facts) = serde_json::from_str::<Vec<Fact>>(text) {
        let run: RunId = "7k2m9qxc".parse().expect("a run's id");
        let record = seal(&run, facts.into_iter().map(|fact| (TimestampMs(7), fact)));
        let canonical = record.to_json();
        // A record that its maker cannot verify would be worth nothing.
        assert_eq!(verify(&canonical).expect("a sealed record verifies").record, record);
        tamper(&canonical, place, flip);
    }
    let Ok(verified) = verify(text) else { return };
    let record = verified.record;
    let facts = record.entries.iter().map(|entry| (entry.at, entry.fact.clone()));
    let sealed = seal(&record.run, facts);
    assert_eq!(sealed.verdict, record.verdict, "the verdict follows from the facts");
    // An entry may carry fields that this version does not know. Its digest covers them, so only
    // the text as it came verifies; without them the canonical form does too.
    if sealed.head == record.head {
        assert_eq!(sealed, record);
        let canonical = record.to_json();
        assert_eq!(verify(&canonical).expect("it means the same").record, record);
        tamper(&canonical, place, flip);
    }
}

/// One byte, changed in any way, is found.
fn tamper(canonical: &str, place: usize, flip: usize) {
    let mut changed = canonical.as_bytes().to_vec();
    let at = (place * changed.len()) / 256;
    changed[at] ^= if flip == 0 { 1 } else { flip as u8 };
    if let Ok(changed) = std::str::from_utf8(&changed) {
        assert!(verify(changed).is_err(), "a changed record verifies");
    }
}
