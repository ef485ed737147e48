//! The attacker's lines, and what is expected of them.

use std::collections::BTreeSet;

use cofferdam_security::runner::MARK;
use cofferdam_security::{Attempt, all};
use serde_json::Value;

use crate::world::EngineName;

/// The attempts that an engine must hold.
pub(crate) fn expected_on(engine: EngineName) -> impl Iterator<Item = &'static Attempt> {
    all().filter(move |a| engine == EngineName::Native || a.native_only.is_empty())
}

/// What came of one attempt.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) attack: String,
    detail: String,
    twin: String,
    why: String,
}

/// Everything that an attacker said.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) lines: Vec<Line>,
    raw: String,
    ended: bool,
}

impl Report {
    pub(crate) fn parse(raw: &str) -> Self {
        let (mut lines, mut ended) = (Vec::new(), false);
        for text in raw.lines().filter_map(|line| line.split_once(MARK)).map(|(_, text)| text) {
            let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            ended |= value["end"] == true;
            if value["name"].is_string() {
                let field = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
                lines.push(Line {
                    name: field("name"),
                    attack: field("attack"),
                    detail: field("detail"),
                    twin: field("twin"),
                    why: field("why"),
                });
            }
        }
        Self { lines, raw: raw.to_owned(), ended }
    }

    /// Without the attempts that this engine is known not to hold, and that the table says so of.
    pub(crate) fn excusing(mut self, engine: EngineName) -> Self {
        self.lines.retain(|line| expected_on(engine).any(|attempt| attempt.name == line.name));
        self
    }

    /// Every expected attempt was made, none got through, every twin works.
    #[track_caller]
    pub(crate) fn assert_all_refused<'a>(&self, expected: impl Iterator<Item = &'a str>) {
        let mut wrong = self.complaints(expected);
        for line in &self.lines {
            if line.attack != "refused" {
                wrong.push(format!("{}: the attack {} ({})", line.name, line.attack, line.detail));
            }
            if line.twin != "ok" {
                wrong.push(format!("{}: its twin {} ({})", line.name, line.twin, line.why));
            }
        }
        assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    }

    /// Every expected attempt was made and refused. Twins are not looked at: with another user even
    /// what is allowed may be out of reach.
    #[track_caller]
    pub(crate) fn assert_all_held<'a>(&self, expected: impl Iterator<Item = &'a str>) {
        let mut wrong = self.complaints(expected);
        for line in self.lines.iter().filter(|line| line.attack != "refused") {
            wrong.push(format!(
                "{}: {} ({}): something else held it before, or its one layer does not",
                line.name, line.attack, line.detail
            ));
        }
        assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    }

    /// Every expected attempt was made and got through.
    #[track_caller]
    pub(crate) fn assert_all_through<'a>(&self, expected: impl Iterator<Item = &'a str>) {
        let mut wrong = self.complaints(expected);
        for line in self.lines.iter().filter(|line| line.attack != "through") {
            wrong.push(format!(
                "{}: still {} ({}) without its layer: the layer is not what holds it",
                line.name, line.attack, line.detail
            ));
        }
        assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
    }

    fn complaints<'a>(&self, expected: impl Iterator<Item = &'a str>) -> Vec<String> {
        let made: BTreeSet<&str> = self.lines.iter().map(|line| line.name.as_str()).collect();
        let expected: BTreeSet<&str> = expected.collect();
        let mut wrong: Vec<String> = expected
            .difference(&made)
            .map(|name| format!("{name}: was not made"))
            .chain(made.difference(&expected).map(|name| format!("{name}: was not asked for")))
            .collect();
        if !self.ended {
            wrong.push(format!("the attacker did not come to its end:\n{}", self.raw));
        }
        wrong
    }
}
