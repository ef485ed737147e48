//! The record: sealing, verifying, and every way of tampering that the chain must show.

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::{
    EntryFault, RECORD_SCHEMA, VerifyError, canonical, entry_digest, record_schema, seal, verify,
};
use crate::fact::Fact;
use crate::fixtures::{good_facts, run_id};
use crate::ids::TimestampMs;
use crate::spec::Mode;
use crate::verdict::Outcome;

fn sealed() -> Value {
    let facts = good_facts(Mode::Unattended).into_iter().zip(1_000u64..);
    let record = seal(&run_id(), facts.map(|(fact, at)| (TimestampMs(at), fact)));
    serde_json::from_str(&record.to_json()).unwrap()
}

fn check(document: &Value) -> Result<super::Verified, VerifyError> {
    verify(&document.to_string())
}

/// Seals the chain anew from entry `from` on, as somebody who rewrites the document would.
fn reseal(document: &mut Value, from: usize) {
    let entries = document["entries"].as_array_mut().unwrap();
    for i in from..entries.len() {
        if i > 0 {
            entries[i]["prev"] = entries[i - 1]["digest"].clone();
        }
        entries[i]["digest"] = entry_digest(entries[i].clone()).as_str().into();
    }
    document["head"] = entries.last().unwrap()["digest"].clone();
}

#[test]
fn a_sealed_record_holds() {
    let verified = check(&sealed()).unwrap();
    assert_eq!(verified.record.verdict.outcome, Outcome::Completed);
    assert_eq!(verified.record.entries.len(), 13);
    // The same whatever white space and key order the file has.
    verify(&serde_json::to_string_pretty(&sealed()).unwrap()).unwrap();
}

#[test]
fn an_empty_record_holds_and_is_no_success() {
    let record = seal(&run_id(), []);
    assert_eq!(verify(&record.to_json()).unwrap().record, record);
    assert_eq!(record.verdict.outcome, Outcome::Failed);
}

#[test]
fn every_changed_value_in_every_entry_is_found() {
    let original = sealed();
    for place in 0..original["entries"].as_array().unwrap().len() {
        let keys: Vec<String> =
            original["entries"][place].as_object().unwrap().keys().cloned().collect();
        for key in keys {
            let mut changed = original.clone();
            changed["entries"][place][&key] = json!("something else");
            let error = check(&changed).unwrap_err();
            assert!(
                matches!(error, VerifyError::Entry { place: p, .. } if p == place + 1),
                "{key} of {place}: {error}"
            );
            let mut removed = original.clone();
            removed["entries"][place].as_object_mut().unwrap().remove(&key);
            check(&removed).unwrap_err();
        }
        let mut added = original.clone();
        added["entries"][place]["more"] = json!(1);
        check(&added).unwrap_err();
    }
}

#[test]
fn missing_added_and_swapped_entries_are_found() {
    let original = sealed();
    let count = original["entries"].as_array().unwrap().len();
    for place in 0..count {
        let mut shorter = original.clone();
        shorter["entries"].as_array_mut().unwrap().remove(place);
        let error = check(&shorter).unwrap_err();
        if place == count - 1 {
            assert_eq!(error.code(), "RECORD-006");
        } else {
            assert_eq!(error.code(), "RECORD-004");
        }
    }
    let mut swapped = original.clone();
    swapped["entries"].as_array_mut().unwrap().swap(4, 5);
    assert_eq!(check(&swapped).unwrap_err().code(), "RECORD-004");
}

#[test]
fn a_wrong_number_is_found_even_when_the_chain_is_sealed_anew() {
    for number in [json!(1), json!(4), json!(-3), json!("3"), json!(null)] {
        let mut document = sealed();
        document["entries"][2]["seq"] = number;
        reseal(&mut document, 2);
        let error = check(&document).unwrap_err();
        assert!(
            matches!(error, VerifyError::Entry { place: 3, fault: EntryFault::Sequence { .. } }),
            "{error}"
        );
    }
}

#[test]
fn a_record_cannot_be_given_to_another_run() {
    let mut document = sealed();
    document["run"] = json!("00000000");
    let error = check(&document).unwrap_err();
    assert!(matches!(error, VerifyError::Entry { place: 1, fault: EntryFault::Previous { .. } }));
}

#[test]
fn a_verdict_that_does_not_follow_is_found_even_when_the_chain_is_sealed_anew() {
    let mut document = sealed();
    // The sandbox was not removed, says the rewritten chain; the verdict stays.
    document["entries"][10]["outcome"] = json!({ "outcome": "failed", "detail": "busy" });
    reseal(&mut document, 10);
    let error = check(&document).unwrap_err();
    assert_eq!(error.code(), "RECORD-007");
    assert!(error.to_string().contains("RUN-030"), "{error}");

    for (field, value) in [
        ("outcome", json!("failed")),
        ("summary", json!("completed: 3 commits")),
        ("cause", json!({ "code": "RUN-050" })),
        ("warnings", json!([{ "code": "RUN-100", "text": "x" }])),
        ("more", json!(1)),
    ] {
        let mut document = sealed();
        document["verdict"][field] = value;
        assert_eq!(check(&document).unwrap_err().code(), "RECORD-007", "{field}");
    }
}

#[test]
fn unknown_fields_of_an_entry_are_covered_by_the_chain() {
    let mut document = sealed();
    document["entries"][3]["later_version"] = json!({ "b": [1, 2], "a": null });
    reseal(&mut document, 3);
    check(&document).unwrap();
    document["entries"][3]["later_version"]["b"] = json!([2, 1]);
    assert_eq!(check(&document).unwrap_err().code(), "RECORD-004");
}

#[test]
fn an_intact_entry_of_an_unknown_kind_is_named() {
    let mut document = sealed();
    document["entries"][11]["type"] = json!("telepathy");
    reseal(&mut document, 11);
    let error = check(&document).unwrap_err();
    assert_eq!(error.code(), "RECORD-005");
    assert!(error.to_string().starts_with("entry 12: it is intact"), "{error}");
}

#[test]
fn what_no_digest_covers_may_not_be_there() {
    let mut document = sealed();
    document["comment"] = json!("trust me");
    let error = check(&document).unwrap_err();
    assert_eq!(error, VerifyError::Field { field: "comment".into(), fault: "unknown" });
    for field in ["schema", "run", "entries", "head", "verdict"] {
        let mut document = sealed();
        document.as_object_mut().unwrap().remove(field);
        let expected = VerifyError::Field { field: field.into(), fault: "missing" };
        assert_eq!(check(&document).unwrap_err(), expected);
    }
    let mut document = sealed();
    document["schema"] = json!("cofferdam.record/2");
    assert_eq!(check(&document).unwrap_err().code(), "RECORD-003");
}

#[test]
fn json_that_two_readers_could_understand_differently_is_refused() {
    let text = sealed().to_string();
    let twice = text.replacen("\"seq\":1,", "\"seq\":1,\"seq\":1,", 1);
    assert_ne!(twice, text);
    assert!(verify(&twice).unwrap_err().to_string().contains("appears twice"));
    for (from, to) in [
        ("\"seq\":1,", "\"seq\":1.0,"),
        ("\"seq\":1,", "\"seq\":1e0,"),
        ("\"seq\":1,", "\"seq\":-0,"),
        ("\"seq\":1,", "\"seq\":18446744073709551616,"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        assert_eq!(verify(&changed).unwrap_err().code(), "RECORD-002", "{to}");
    }
    for text in ["", "[]", "null", "{}", "{} {}", &"[".repeat(10_000), "\u{feff}{}"] {
        assert_eq!(verify(text).unwrap_err().code(), "RECORD-002", "{text:.10}");
    }
}

#[test]
fn canonical_json_sorts_at_every_depth() {
    let value = json!({ "b": [{ "z": 1, "a": "é\n\"" }], "a": null, "Z": -5 });
    assert_eq!(canonical::to_string(&value), r#"{"Z":-5,"a":null,"b":[{"a":"é\n\"","z":1}]}"#);
}

/// Another implementation must be able to compute this from the description in `record.rs` alone.
#[test]
fn the_digest_of_a_known_entry_does_not_change() {
    let fact = Fact::Note { text: "hello".into() };
    let record = seal(&run_id(), [(TimestampMs(7), fact)]);
    assert_eq!(record.entries[0].prev, crate::ids::Digest::of(b"cofferdam.record/1\n7k2m9qxc"));
    let by_hand = format!(
        r#"{{"at":7,"prev":"{}","seq":1,"text":"hello","type":"note"}}"#,
        record.entries[0].prev
    );
    assert_eq!(record.head, crate::ids::Digest::of(by_hand.as_bytes()));
}

proptest! {
    /// One changed, dropped or added byte anywhere is found, unless it changes nothing that is said.
    #[test]
    fn no_single_byte_can_be_changed(place in any::<Index>(), byte in any::<u8>(), how in 0u8..3) {
        let original = sealed().to_string();
        let mut bytes = original.clone().into_bytes();
        let place = place.index(bytes.len());
        match how {
            0 => bytes[place] = byte,
            1 => { bytes.remove(place); }
            _ => bytes.insert(place, byte),
        }
        let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
        if let Ok(verified) = verify(&text) {
            let same: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(same, sealed());
            prop_assert_eq!(verified.record.to_json(), original);
        }
    }

    #[test]
    fn no_text_makes_the_verifier_panic(text in any::<String>(), entries in any::<Vec<i64>>()) {
        let _ = verify(&text);
        let mut document = sealed();
        document["entries"] = json!(entries);
        check(&document).unwrap_err();
    }
}

#[test]
fn the_published_schema_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/record-v1.json");
    let published: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(
        published == record_schema(),
        "docs/schema/record-v1.json is out of date. Regenerate it with:\n  \
         cargo run -p cofferdam-run --example record-schema > docs/schema/record-v1.json\n\
         and check that old records still fit: {RECORD_SCHEMA} is a promise"
    );
}
