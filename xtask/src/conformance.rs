//! `cargo xtask conformance`: one suite for every engine, each started privately, and the table in
//! `docs/engines.md` from what the suite saw.
//!
//! It changes no setting of the machine and leaves no engine running. The table is never written by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{build, engine, podman, sh};

/// The engines, in the order of the table.
const ENGINES: [&str; 5] = ["native", "docker", "podman", "podman-rootless", "gvisor"];
/// First line of the generated part.
pub(crate) const BEGIN: &str =
    "<!-- From here on written by `cargo xtask conformance --all --write-docs`. Do not edit. -->";
/// Last line of it.
pub(crate) const END: &str = "<!-- To here. -->";

/// What to do.
pub(crate) struct Options {
    pub(crate) engine: Option<String>,
    pub(crate) all: bool,
    pub(crate) write_docs: bool,
}

/// Runs the suite and says how each engine did.
pub(crate) fn conformance(options: &Options) -> anyhow::Result<()> {
    let chosen: Vec<&str> = match (&options.engine, options.all) {
        (None, true) => ENGINES.to_vec(),
        (Some(name), false) => {
            vec![*ENGINES.iter().find(|known| *known == name).with_context(|| {
                format!("no engine {name:?}: use one of {}", ENGINES.join(", "))
            })?]
        }
        // Only the table, from what was seen last.
        (None, false) if options.write_docs => return write_docs(),
        _ => bail!("say --engine NAME (one of {}) or --all", ENGINES.join(", ")),
    };
    sh::step("sandbox binaries", build::sandbox_binaries)?;
    run(&chosen)?;
    if options.write_docs {
        write_docs()?;
    }
    Ok(())
}

/// Runs the suite on each of these engines; the binaries for the sandbox are there already.
pub(crate) fn run(engines: &[&str]) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for name in engines {
        let _ = fs::remove_dir_all(notes().join(name));
        let place = Place::new(name)?;
        let result = sh::step(&format!("conformance: {name}"), || {
            let host = place.up(name)?;
            let mut suite = sh::cargo();
            suite
                .args(["nextest", "run", "--locked", "--package", "cofferdam-conformance"])
                .args(["--no-fail-fast", "--status-level", "fail", "--final-status-level", "fail"])
                .env("COFFERDAM_TEST_ENGINE", name)
                .env("COFFERDAM_TEST_STATE", place.dir.join("state"))
                .env("COFFERDAM_CONFORMANCE_NOTES", notes());
            if let Some(host) = host {
                suite.env("COFFERDAM_TEST_ENGINE_HOST", host);
            }
            sh::run(&mut suite)
        });
        place.down(name);
        if let Err(error) = result {
            sh::say(&format!("   {name}: {error:#}"));
            failed.push(*name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("conformance failed on {}", failed.join(", "))
}

fn notes() -> PathBuf {
    let target = sh::target();
    std::path::absolute(&target).unwrap_or(target).join("conformance")
}

/// Directory of one engine. Short, for its socket; readable, for an engine of another user.
struct Place {
    dir: PathBuf,
}

impl Place {
    fn new(name: &str) -> anyhow::Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = std::env::temp_dir().join(format!("cofferdam-cf-{name}-{}", std::process::id()));
        for part in [dir.clone(), dir.join("state")] {
            fs::create_dir_all(&part)?;
            fs::set_permissions(&part, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { dir })
    }

    fn engine(&self) -> PathBuf {
        self.dir.join("e")
    }

    fn up(&self, name: &str) -> anyhow::Result<Option<String>> {
        fs::create_dir_all(self.engine())?;
        match name {
            "docker" => engine::up(&self.engine()).map(Some),
            "gvisor" => {
                engine::install(&self.dir.join("apt.log"), "runsc", &["runsc"])?;
                engine::up(&self.engine()).map(Some)
            }
            "podman" => podman::up(&self.engine(), false).map(Some),
            "podman-rootless" => podman::up(&self.engine(), true).map(Some),
            _ => Ok(None),
        }
    }

    fn down(&self, name: &str) {
        match name {
            "docker" | "gvisor" => engine::down(&self.engine()),
            "podman" | "podman-rootless" => podman::down(&self.engine()),
            _ => {}
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// What the suite noted of one engine, by topic.
type Notes = BTreeMap<String, Value>;

fn read_notes(name: &str) -> anyhow::Result<Notes> {
    let dir = notes().join(name);
    let mut all = Notes::new();
    let entries = fs::read_dir(&dir)
        .with_context(|| format!("{name} has no notes: run `cargo xtask conformance --all`"))?;
    for entry in entries {
        let path = entry?.path();
        let topic = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        all.insert(topic, serde_json::from_str(&fs::read_to_string(&path)?)?);
    }
    Ok(all)
}

fn docs() -> PathBuf {
    sh::root().join("docs/engines.md")
}

fn write_docs() -> anyhow::Result<()> {
    let mut all = Vec::new();
    for name in ENGINES {
        all.push(read_notes(name)?);
    }
    replace(&docs(), &table(&all))
}

/// Puts `text` between the two markers.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let old = fs::read_to_string(path)?;
    let (head, rest) = old.split_once(BEGIN).context("docs/engines.md has no first marker")?;
    let (_, tail) = rest.split_once(END).context("docs/engines.md has no last marker")?;
    fs::write(path, format!("{head}{BEGIN}\n\n{text}\n{END}{tail}"))?;
    Ok(())
}

fn row(title: &str, cells: impl Iterator<Item = String>) -> String {
    format!("| {title} | {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

fn heading(first: &str) -> String {
    let names = row(first, ENGINES.into_iter().map(str::to_owned));
    format!("{names}|{}\n", "---|".repeat(ENGINES.len() + 1))
}

/// A version without what a distribution or a cloud adds to its kernel's.
fn release(version: &str) -> String {
    let Some((before, kernel)) = version.split_once("Linux ") else { return version.to_owned() };
    let number = kernel.split('-').next().unwrap_or(kernel);
    format!("{before}Linux {number}")
}

fn table(all: &[Notes]) -> String {
    let mut text = String::from("## Layer by layer\n\n");
    text.push_str(&heading("Layer"));
    let layers = all.first().and_then(|notes| notes.get("layers")?.as_array().cloned());
    let names = layers.unwrap_or_default();
    for layer in names.iter().filter_map(|report| report["layer"].as_str()) {
        text.push_str(&row(&format!("`{layer}`"), all.iter().map(|notes| status(notes, layer))));
    }
    text.push_str("\nA layer that is not enforced stops a run before its agent starts, unless it was accepted by name.\n");
    text.push_str("\n## What was seen\n\n");
    text.push_str(&heading("Fact"));
    type Fact = (&'static str, fn(&Notes) -> String);
    let facts: [Fact; 9] = [
        ("Version", |n| release(&text_of(n, "/version"))),
        ("Layers that the engine itself shows", |n| count_of(n, "read_back")),
        ("Layers that this host sees", |n| count_of(n, "outside")),
        ("Start and end of `true`, median", |n| {
            number_of(n, "/start_ms/median").map_or_else(dash, |ms| format!("{ms} ms"))
        }),
        ("A memory kill of a child is told", |n| {
            yes(n.get("oom").and_then(|v| v["told"].as_bool()))
        }),
        ("Memory kills are counted", |n| yes(Some(number_of(n, "/oom/kills").is_some()))),
        ("Most processes, limit 300", |n| {
            number_of(n, "/pids/peak").map_or_else(dash, |peak| peak.to_string())
        }),
        ("Refused processes are counted", |n| yes(Some(number_of(n, "/pids/refused").is_some()))),
        ("Work volume counted while it runs", |n| yes(Some(number_of(n, "/work/files").is_some()))),
    ];
    for (title, fact) in facts {
        text.push_str(&row(title, all.iter().map(fact)));
    }
    text.push_str("\nTimes were taken on a small machine beside the rest of the suite: they compare, and promise nothing.\n");
    text
}

fn dash() -> String {
    "–".to_owned()
}

fn yes(value: Option<bool>) -> String {
    value.map_or_else(dash, |value| if value { "yes" } else { "no" }.to_owned())
}

fn status(notes: &Notes, layer: &str) -> String {
    let reports = notes.get("layers").and_then(Value::as_array);
    reports
        .and_then(|all| all.iter().find(|report| report["layer"] == layer))
        .and_then(|report| report["status"].as_str())
        .map_or_else(dash, |status| {
            if status == "enforced" { status.to_owned() } else { format!("**{status}**") }
        })
}

/// By JSON pointer, the topic being its first part.
fn at<'a>(notes: &'a Notes, pointer: &str) -> Option<&'a Value> {
    let (topic, rest) = pointer.trim_start_matches('/').split_once('/').map_or_else(
        || (pointer.trim_start_matches('/'), String::new()),
        |(topic, rest)| (topic, format!("/{rest}")),
    );
    notes.get(topic)?.pointer(&rest)
}

fn text_of(notes: &Notes, pointer: &str) -> String {
    at(notes, pointer).and_then(Value::as_str).map_or_else(dash, |text| text.replace('|', "/"))
}

fn number_of(notes: &Notes, pointer: &str) -> Option<u64> {
    at(notes, pointer)?.as_u64()
}

fn count_of(notes: &Notes, topic: &str) -> String {
    notes
        .get(topic)
        .and_then(Value::as_array)
        .map_or_else(dash, |list| format!("{} of 12", list.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_column_for_each_engine_and_marks_what_is_missing() {
        let full = Notes::from([
            (
                "layers".to_owned(),
                serde_json::json!([{ "layer": "seccomp", "status": "enforced" }]),
            ),
            ("oom".to_owned(), serde_json::json!({ "told": true, "kills": 1 })),
            ("version".to_owned(), Value::from("one | two")),
        ]);
        let mut lacking = full.clone();
        lacking.insert(
            "layers".to_owned(),
            serde_json::json!([{ "layer": "seccomp", "status": "absent", "reason": "x" }]),
        );
        let all = vec![full.clone(), full.clone(), full.clone(), lacking, full];
        let text = table(&all);
        assert!(
            text.contains("| `seccomp` | enforced | enforced | enforced | **absent** | enforced |")
        );
        assert!(
            text.contains("one / two")
                && text.contains("| A memory kill of a child is told | yes |")
        );
        assert!(text.lines().filter(|l| l.starts_with('|')).all(|l| l.matches('|').count() == 7));
    }

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let dir = std::env::temp_dir().join(format!("cofferdam-xtask-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("engines.md");
        fs::write(&file, format!("head\n{BEGIN}\nold\n{END}\ntail\n")).unwrap();
        replace(&file, "new").unwrap();
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(text, format!("head\n{BEGIN}\n\nnew\n{END}\ntail\n"));
    }
}
