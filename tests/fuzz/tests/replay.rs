//! The committed corpora, whole, and then a bounded number of mutations of them, by the same bodies
//! as libFuzzer runs. The mutations are the same in every run.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests: a panic is their failure, and the input that failed is to be seen"
)]

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use cofferdam_fuzz_bodies::{TARGETS, run};

/// Mutations tried for each target.
const MUTATIONS: usize = 3_000;
/// Bytes of an input at most, in a corpus and after mutation.
const MAX_INPUT: usize = 4096;
/// Files of a corpus at most.
const MAX_FILES: usize = 200;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora")
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(corpora().join(target))
        .unwrap_or_else(|e| panic!("{target} has no corpus: {e}"))
        .map(|entry| entry.unwrap())
        .map(|e| (e.file_name().to_string_lossy().into_owned(), fs::read(e.path()).unwrap()))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has an empty corpus");
    files
}

/// Runs one input and says which it was when something does not hold.
fn check(target: &str, name: &str, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(target, input))) {
        let shown = String::from_utf8_lossy(input);
        eprintln!("target {target}, input {name}: {shown:?}\nbytes {input:02x?}");
        std::panic::resume_unwind(panic);
    }
}

/// SplitMix64: the same sequence on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    fn byte(&mut self) -> u8 {
        // Bytes that mean something to parsers come more often.
        const TELLING: &[u8] = b"\0\r\n \t:;,.*-/\\\"{}[]%@#?=0fZ\x7f\xff";
        if self.below(2) == 0 {
            TELLING[self.below(TELLING.len())]
        } else {
            u8::try_from(self.next() & 0xff).unwrap()
        }
    }
}

fn mutate(random: &mut Random, corpus: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].1.clone();
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        let to = at + random.below(input.len() - at + 1).min(64);
        match random.below(6) {
            0 => input.insert(at, random.byte()),
            1 => drop(input.drain(at..to)),
            2 => {
                let piece = input[at..to].to_vec();
                let place = random.below(input.len() + 1);
                input.splice(place..place, piece);
            }
            3 => {
                let other = &corpus[random.below(corpus.len())].1;
                let from = random.below(other.len() + 1);
                input.splice(at.., other[from..].iter().copied());
            }
            4 if at < input.len() => input[at] ^= 1 << random.below(8),
            _ if at < input.len() => input[at] = random.byte(),
            _ => input.push(random.byte()),
        }
    }
    input.truncate(MAX_INPUT);
    input
}

fn replay(target: &str) {
    let corpus = corpus(target);
    for (name, input) in &corpus {
        check(target, name, input);
    }
    let mut random = Random(target.bytes().map(u64::from).sum());
    for number in 0..MUTATIONS {
        let input = mutate(&mut random, &corpus);
        check(target, &format!("mutation {number}"), &input);
    }
}

macro_rules! replays {
    ($($target:ident)*) => {
        const REPLAYED: &[&str] = &[$(stringify!($target)),*];
        $(#[test]
        fn $target() {
            replay(stringify!($target));
        })*
    };
}

replays! {
    http_request http_response http_body tls_hello authority egress_rules link_frames link_header
    link_host wire bundle_header config gateway_call sse record
}

#[test]
fn every_target_is_replayed_and_has_a_libfuzzer_program() {
    let targets: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(targets, REPLAYED.iter().copied().collect());
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for target in targets {
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is no program");
        let program = fs::read_to_string(fuzz.join(format!("fuzz_targets/{target}.rs"))).unwrap();
        assert!(program.contains(&format!("run(\"{target}\"")), "{target} runs something else");
    }
}

#[test]
fn corpora_are_small_and_belong_to_a_target() {
    for entry in fs::read_dir(corpora()).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        assert!(REPLAYED.contains(&name.as_str()), "{name} is no target");
        let files = corpus(&name);
        assert!(files.len() <= MAX_FILES, "{name} has {} files", files.len());
        for (file, input) in files {
            assert!(input.len() <= MAX_INPUT, "{name}/{file} has {} bytes", input.len());
        }
    }
}
