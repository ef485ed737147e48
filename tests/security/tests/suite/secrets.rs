//! The search for credentials in all that a run could have touched: what it finds, in which carrier,
//! and what it cannot find. The agent has the key in two halves, as if it had come by it somehow.

use crate::world::{EngineName, KEY, World, on_both_engines};

on_both_engines!(
    a_key_in_any_plain_carrier_fails_the_run,
    a_key_that_is_compressed_or_cut_is_not_found,
    without_the_needle_the_same_run_completes,
);

/// Name of the carrier, and a script that puts `$K` there.
const FOUND: [(&str, &str); 10] = [
    ("output", "echo \"got $K\""),
    ("error output without a line end", "printf 'x%sx' \"$K\" >&2"),
    ("committed file", "echo \"$K\" > f && git add f && git commit -qm f"),
    ("file left uncommitted", "echo \"$K\" > f"),
    ("binary file", "printf '\\0\\1%s\\0\\377' \"$K\" > f && git add f && git commit -qm f"),
    ("commit message", "git commit -q --allow-empty -m \"about $K\""),
    ("author", "git commit -q --allow-empty --author=\"$K <a@example.com>\" -m f"),
    ("file name", "echo x > \"$K\" && git add . && git commit -qm f"),
    (
        "removed again in a later commit",
        "echo \"$K\" > f && git add f && git commit -qm f && git rm -q f && git commit -qm g",
    ),
    ("base64", "printf %s \"$K\" | base64 -w0 > f && git add f && git commit -qm f"),
];

/// Those whose way out is the engine's own. What commits hold is searched on the host, from the same
/// objects whatever the engine.
const BY_ENGINE: [&str; 3] = ["output", "committed file", "file left uncommitted"];

fn carriers(engine: EngineName) -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = engine == EngineName::Native;
    FOUND.into_iter().filter(move |(carrier, _)| all || BY_ENGINE.contains(carrier))
}

/// All of these in one run.
fn together(scripts: &[(&str, &str)]) -> String {
    let scripts: Vec<&str> = scripts.iter().map(|(_, script)| *script).collect();
    with_key(&scripts.join("; "))
}

/// Not found, by construction: the search is a detector and no wall.
const MISSED: [(&str, &str); 2] = [
    ("compressed", "printf %s \"$K\" | gzip > f.gz && git add f.gz && git commit -qm f"),
    ("reversed", "printf %s \"$K\" | rev > r && git add r && git commit -qm r"),
];

fn with_key(script: &str) -> String {
    let (one, two) = KEY.split_at(9);
    format!("K={one}; K=\"$K\"{two}; {script}; true")
}

fn a_key_in_any_plain_carrier_fails_the_run(engine: EngineName) {
    let world = World::new(engine);
    let mut wrong = Vec::new();
    for (carrier, script) in carriers(engine) {
        let ran = world.shell(&with_key(script));
        if ran.code != Some(1) || !ran.stdout.contains("RUN-001") {
            wrong.push(format!("{carrier}: code {:?}\n{}", ran.code, ran.stdout));
        }
        if world.cofferdam(&["record", "show", "last"]).stdout.contains(KEY) {
            wrong.push(format!("{carrier}: the record holds the key"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    world.assert_nothing_left();
}

fn a_key_that_is_compressed_or_cut_is_not_found(engine: EngineName) {
    let world = World::new(engine);
    let ran = world.shell(&together(&MISSED));
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
}

/// Negative control: a run without a model has no key to look for, and then nothing is found.
fn without_the_needle_the_same_run_completes(engine: EngineName) {
    let world = World::new(engine);
    let config = world.dir.path().join("config.toml");
    std::fs::write(config, "").unwrap();
    let script = together(&FOUND);
    let ran = world.cofferdam(&["run", "--engine", engine.text(), "--", "sh", "-c", &script]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
}
