//! House rules that no lint knows: arrows between rooms, `//!` headers, file sizes, licences of
//! dependencies, banned crates, an error page for each code, stray paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{conformance, sh};

/// The rooms, each with the rooms that it may depend on. `testkit` may be a dev-dependency of any.
const ARROWS: &[(&str, &[&str])] = &[
    ("run", &[]),
    ("policy", &["run"]),
    ("wire", &["run"]),
    ("link", &[]),
    ("git", &[]),
    ("ledger", &["run", "wire"]),
    ("workspace", &["run", "git"]),
    ("sandbox", &["run", "wire"]),
    ("broker", &["run", "policy", "wire", "link"]),
    ("agent", &["run", "wire", "policy"]),
    ("guest", &["run", "wire", "link", "agent", "policy", "git"]),
    (
        "daemon",
        &["run", "policy", "wire", "link", "git", "ledger", "workspace", "sandbox", "broker"],
    ),
    (
        "cli",
        &[
            "run",
            "policy",
            "wire",
            "link",
            "ledger",
            "workspace",
            "sandbox",
            "broker",
            "daemon",
            "api",
        ],
    ),
    ("api", &["run", "ledger", "sandbox", "workspace", "daemon"]),
    ("testkit", &["run", "wire", "ledger"]),
];

/// Rooms that must stay pure: none of these crates may appear among their dependencies.
const IMPURE: &[&str] =
    &["tokio", "rustix", "libc", "getrandom", "hyper", "rusqlite", "bollard", "tempfile"];

/// Lines past which a source file must say in its header why it is one thing.
const LONG_FILE: usize = 800;

/// Checks everything and reports all problems at once.
pub(crate) fn tidy() -> anyhow::Result<()> {
    let mut problems = Vec::new();
    arrows(&mut problems)?;
    sources(&mut problems)?;
    dependencies(&mut problems)?;
    error_pages(&mut problems)?;
    engine_table(&mut problems)?;
    if let Err(error) = crate::security_table::security_table(true) {
        problems.push(error.to_string());
    }
    failure_cases(&mut problems)?;
    if problems.is_empty() {
        return Ok(());
    }
    for problem in &problems {
        sh::say(&format!("tidy: {problem}"));
    }
    bail!("{} problems", problems.len());
}

fn manifest(room: &str) -> anyhow::Result<toml::Table> {
    let path = sh::root().join("crates").join(room).join("Cargo.toml");
    fs::read_to_string(&path)
        .with_context(|| format!("read {}", path.display()))?
        .parse()
        .with_context(|| format!("parse {}", path.display()))
}

fn arrows(problems: &mut Vec<String>) -> anyhow::Result<()> {
    let known: BTreeSet<&str> = ARROWS.iter().map(|(room, _)| *room).collect();
    for entry in fs::read_dir(sh::root().join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !known.contains(name.as_str()) {
            problems.push(format!("crates/{name} is no known room: add its arrows to xtask tidy"));
        }
    }
    for (room, allowed) in ARROWS {
        let table = manifest(room)?;
        let zone = table
            .get("package")
            .and_then(|p| p.get("metadata"))
            .and_then(|m| m.get("zone"))
            .and_then(toml::Value::as_str);
        if !matches!(zone, Some("pure" | "trusted" | "hostile-facing" | "test")) {
            problems.push(format!("crates/{room}: package.metadata.zone is missing or unknown"));
        }
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(deps) = table.get(kind).and_then(toml::Value::as_table) else { continue };
            for (dep, value) in deps {
                let versioned = value.get("version").is_some() || value.is_str();
                if versioned {
                    problems.push(format!(
                        "crates/{room}: {dep} has a version outside [workspace.dependencies]"
                    ));
                }
                if zone == Some("pure") && kind == "dependencies" && IMPURE.contains(&dep.as_str())
                {
                    problems.push(format!("crates/{room} is pure and must not depend on {dep}"));
                }
                let Some(target) = dep.strip_prefix("cofferdam-") else { continue };
                let dev_only =
                    kind == "dev-dependencies" && matches!(target, "testkit" | "sandbox" | "guest");
                if !allowed.contains(&target) && !dev_only {
                    problems.push(format!("crates/{room} must not depend on {target} ({kind})"));
                }
            }
        }
    }
    Ok(())
}

fn rust_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for top in ["bench", "crates", "fuzz/fuzz_targets", "tests", "xtask"] {
        for entry in walkdir::WalkDir::new(sh::root().join(top)).sort_by_file_name() {
            let Ok(entry) = entry else { continue };
            if entry.path().extension().is_some_and(|e| e == "rs") {
                files.push(entry.into_path());
            }
        }
    }
    files
}

fn shown(path: &Path) -> String {
    path.strip_prefix(sh::root()).unwrap_or(path).display().to_string()
}

fn sources(problems: &mut Vec<String>) -> anyhow::Result<()> {
    // Assembled, so that this file does not find itself.
    let ignored = ["#[", "ignore"].concat();
    let unfinished = ["todo", "!("].concat();
    for path in rust_files() {
        let text = fs::read_to_string(&path)?;
        let header: Vec<&str> = text.lines().take_while(|l| l.starts_with("//!")).collect();
        if header.is_empty() {
            problems.push(format!("{} does not open with a //! header", shown(&path)));
        }
        let lines = text.lines().count();
        if lines > LONG_FILE && !header.iter().any(|l| l.contains("one thing")) {
            problems.push(format!(
                "{} has {lines} lines and no word on why it is one thing",
                shown(&path)
            ));
        }
        for word in [&ignored, &unfinished] {
            if text.contains(word.as_str()) {
                problems.push(format!("{} contains {word}", shown(&path)));
            }
        }
    }
    Ok(())
}

/// Words of a licence expression that stand between licences.
fn licences(expression: &str) -> Vec<Vec<String>> {
    // "A OR B" needs one side allowed, "A AND B" both; parentheses only group within one alternative.
    let flat = expression.replace(['(', ')'], " ").replace('/', " OR ");
    flat.split(" OR ")
        .map(|side| side.split(" AND ").map(|l| l.trim().to_owned()).collect())
        .collect()
}

fn dependencies(problems: &mut Vec<String>) -> anyhow::Result<()> {
    let deny: toml::Table = fs::read_to_string(sh::root().join("deny.toml"))?.parse()?;
    let list = |section: &str, key: &str| -> Vec<toml::Value> {
        deny.get(section)
            .and_then(|s| s.get(key))
            .and_then(toml::Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let allowed: BTreeSet<String> =
        list("licenses", "allow").iter().filter_map(|v| v.as_str().map(str::to_owned)).collect();
    let banned: BTreeSet<String> = list("bans", "deny")
        .iter()
        .filter_map(|v| v.get("crate").and_then(toml::Value::as_str).map(str::to_owned))
        .collect();
    if allowed.is_empty() || banned.is_empty() {
        bail!("deny.toml lists no allowed licences or no bans");
    }
    let text = sh::output(sh::cargo().args([
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    // `cargo metadata` lists optional dependencies that weak features mention; the tree has only what
    // is really built.
    let tree = sh::output(sh::cargo().args([
        "tree",
        "--locked",
        "--workspace",
        "--prefix",
        "none",
        "--format",
        "{p}",
        "--edges",
        "normal,build,dev",
    ]))?;
    let built: BTreeSet<&str> = tree.lines().filter_map(|l| l.split(' ').next()).collect();
    let mut seen = BTreeMap::new();
    for package in metadata["packages"].as_array().context("metadata without packages")? {
        let Some(name) = package["name"].as_str().filter(|name| built.contains(name)) else {
            continue;
        };
        seen.insert(name, ());
        if banned.contains(name) {
            problems.push(format!("dependency {name} is banned by deny.toml"));
        }
        if let Some(source) = package["source"].as_str()
            && !source.starts_with("registry+")
            && !source.starts_with("sparse+")
        {
            problems.push(format!("dependency {name} comes from {source}"));
        }
        let licence = package["license"].as_str().unwrap_or("");
        let fine = licences(licence).iter().any(|side| side.iter().all(|l| allowed.contains(l)));
        if !fine {
            problems.push(format!(
                "dependency {name} has licence {licence:?}, which deny.toml does not allow"
            ));
        }
    }
    if seen.len() < 50 {
        bail!("only {} dependencies seen: the check is broken", seen.len());
    }
    Ok(())
}

/// The table of engines is what the suite wrote, between its two markers.
fn engine_table(problems: &mut Vec<String>) -> anyhow::Result<()> {
    let text = fs::read_to_string(sh::root().join("docs/engines.md"))?;
    let generated =
        text.split_once(conformance::BEGIN).and_then(|(_, rest)| rest.split_once(conformance::END));
    let layers = generated
        .map_or(0, |(table, _)| table.lines().filter(|line| line.starts_with("| `")).count());
    if layers < 12 {
        problems.push(
            "docs/engines.md lacks its generated table: `cargo xtask conformance --all --write-docs`"
                .to_owned(),
        );
    }
    Ok(())
}

/// Prefixes of codes that a person can meet; each code has a page in docs/errors.
const CODE_PREFIXES: &[&str] = &[
    "EGRESS", "MODEL", "GIT", "WORK", "SANDBOX", "DOCKER", "NATIVE", "RUN", "LEDGER", "CONFIG",
    "GUEST", "AGENT", "HOST", "RECORD", "API",
];

fn codes_in(text: &str) -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    for prefix in CODE_PREFIXES {
        for (at, _) in text.match_indices(&format!("{prefix}-")) {
            let before = text[..at].chars().next_back();
            let digits: String =
                text[at + prefix.len() + 1..].chars().take_while(char::is_ascii_digit).collect();
            if digits.len() == 3 && !before.is_some_and(|c| c.is_ascii_alphanumeric()) {
                codes.insert(format!("{prefix}-{digits}"));
            }
        }
    }
    codes
}

fn error_pages(problems: &mut Vec<String>) -> anyhow::Result<()> {
    let mut in_code: BTreeMap<String, String> = BTreeMap::new();
    for path in rust_files() {
        let name = shown(&path);
        if name.contains("/tests/")
            || name.starts_with("tests/")
            || name.ends_with("tests.rs")
            || name.starts_with("xtask")
        {
            continue;
        }
        for code in codes_in(&fs::read_to_string(&path)?) {
            in_code.entry(code).or_insert(name.clone());
        }
    }
    let mut documented = BTreeSet::new();
    for entry in fs::read_dir(sh::root().join("docs/errors"))? {
        let path = entry?.path();
        for line in fs::read_to_string(&path)?.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                documented.extend(codes_in(title));
            }
        }
    }
    for (code, place) in &in_code {
        if !documented.contains(code) {
            problems.push(format!("{code} ({place}) has no section in docs/errors"));
        }
    }
    for code in &documented {
        if !in_code.contains_key(code) {
            problems.push(format!("docs/errors describes {code}, which no code uses"));
        }
    }
    Ok(())
}

/// The table of failures elsewhere: each test that it names must exist, and each row must name one or
/// say why there is none.
const FAILURE_CASES: &str = "docs/failure-cases.md";

/// `path::name` between backquotes, when it looks like a test of this repository.
fn tests_named_in(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split('`').skip(1).step_by(2).filter_map(|code| {
        let (path, name) = code.rsplit_once("::")?;
        Path::new(path).extension().is_some_and(|e| e == "rs").then_some((path, name))
    })
}

/// `| S14 |` or `| R5 |` at the beginning.
fn is_case(line: &str) -> bool {
    let rest = line.strip_prefix("| S").or_else(|| line.strip_prefix("| R"));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn failure_cases(problems: &mut Vec<String>) -> anyhow::Result<()> {
    let text = fs::read_to_string(sh::root().join(FAILURE_CASES))?;
    let mut rows = 0;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| is_case(line)) {
        let place = format!("{FAILURE_CASES}, line {}", number + 1);
        rows += 1;
        let mut named = 0;
        for (path, name) in tests_named_in(line) {
            named += 1;
            let source = fs::read_to_string(sh::root().join(path)).unwrap_or_default();
            if !source.contains(&format!("fn {name}(")) {
                problems.push(format!("{place} names {path}::{name}, which does not exist"));
            }
        }
        let cell = line.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or("").trim();
        if named == 0 && cell.len() < 40 && cell != "open" {
            problems.push(format!("{place} names no test and gives no reason"));
        }
    }
    if rows < 50 {
        bail!("only {rows} rows in {FAILURE_CASES}: the check is broken");
    }
    Ok(())
}
