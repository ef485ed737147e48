//! What a benchmark found: rows of samples, each row beside its peer, as a table and as JSON.
//!
//! It never judges: there is no threshold, and no figure makes the program fail.

use serde_json::{Value, json};

/// What a sample counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Milliseconds; less is better.
    Ms,
    /// Microseconds; less is better.
    Us,
    /// Mebibytes per second; more is better.
    MibPerS,
    /// Things per second; more is better.
    PerS,
    /// Kibibytes; less is better.
    KiB,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::Us => "µs",
            Self::MibPerS => "MiB/s",
            Self::PerS => "/s",
            Self::KiB => "KiB",
        }
    }

    fn more_is_better(self) -> bool {
        matches!(self, Self::MibPerS | Self::PerS)
    }
}

/// Which row of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowId(usize);

#[derive(Debug)]
struct Row {
    what: String,
    unit: Unit,
    samples: Vec<f64>,
    peer: Option<RowId>,
    note: String,
}

impl Row {
    /// The value that `share` of the samples are at least as good as.
    fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        if self.unit.more_is_better() {
            sorted.reverse();
        }
        #[expect(clippy::cast_precision_loss, reason = "there are few samples")]
        let rank = (sorted.len() as f64 * share).ceil();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between zero and the number of samples"
        )]
        let index = (rank as usize).saturating_sub(1);
        sorted.get(index).copied()
    }

    fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }
}

/// One benchmark's rows.
#[derive(Debug)]
pub(crate) struct Table {
    name: &'static str,
    about: String,
    rows: Vec<Row>,
}

impl Table {
    /// An empty one; `about` says in a line what was measured.
    pub(crate) fn new(name: &'static str, about: impl Into<String>) -> Self {
        Self { name, about: about.into(), rows: Vec::new() }
    }

    /// A row that others are compared with, or that stands alone.
    pub(crate) fn row(&mut self, what: impl Into<String>, unit: Unit) -> RowId {
        let note = String::new();
        self.rows.push(Row { what: what.into(), unit, samples: Vec::new(), peer: None, note });
        RowId(self.rows.len() - 1)
    }

    /// A row with a ratio to the median of `peer`.
    pub(crate) fn beside(&mut self, peer: RowId, what: impl Into<String>, unit: Unit) -> RowId {
        let id = self.row(what, unit);
        if let Some(row) = self.rows.get_mut(id.0) {
            row.peer = Some(peer);
        }
        id
    }

    /// A row that has no figures, and why.
    pub(crate) fn absent(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let RowId(index) = self.row(what, Unit::Ms);
        if let Some(row) = self.rows.get_mut(index) {
            row.note = why.into();
        }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, id: RowId, sample: f64) {
        if let Some(row) = self.rows.get_mut(id.0) {
            row.samples.push(sample);
        }
    }

    fn ratio(&self, row: &Row) -> Option<f64> {
        let peer = self.rows.get(row.peer?.0)?;
        Some(row.median()? / peer.median().filter(|m| *m > 0.0)?)
    }

    /// The table for people.
    pub(crate) fn text(&self, load: &str) -> String {
        let width = self.rows.iter().map(|r| r.what.chars().count()).max().unwrap_or(0);
        let mut text = format!("\n{}: {}\nload average {load}\n", self.name, self.about);
        text += &format!(
            "   {:width$}  {:>4}  {:>10}  {:>10}  {:<5}  ratio\n",
            "", "n", "median", "p90", "unit"
        );
        for (index, row) in self.rows.iter().enumerate() {
            let number = index + 1;
            let (Some(median), Some(p90)) = (row.median(), row.quantile(0.9)) else {
                text += &format!("{number:>2} {:width$}  {}\n", row.what, row.note);
                continue;
            };
            let ratio = match (self.ratio(row), row.peer) {
                (Some(ratio), Some(RowId(peer))) => format!("{} × row {}", short(ratio), peer + 1),
                _ => String::new(),
            };
            let line = format!(
                "{number:>2} {:width$}  {:>4}  {:>10}  {:>10}  {:<5}  {ratio}",
                row.what,
                row.samples.len(),
                short(median),
                short(p90),
                row.unit.name(),
            );
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// The same with every sample.
    pub(crate) fn json(&self, load: &str) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "what": row.what,
                    "unit": row.unit.name(),
                    "median": row.median(),
                    "p90": row.quantile(0.9),
                    "peer": row.peer.and_then(|p| self.rows.get(p.0)).map(|p| &p.what),
                    "ratio": self.ratio(row),
                    "samples": row.samples,
                    "note": row.note,
                })
            })
            .collect();
        json!({ "name": self.name, "about": self.about, "load_average": load, "rows": rows })
    }
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(unit: Unit) -> Table {
        let mut table = Table::new("name", "about");
        let peer = table.row("peer", unit);
        let ours = table.beside(peer, "ours", unit);
        for n in 1..=10 {
            table.add(peer, f64::from(n));
            table.add(ours, f64::from(n * 2));
        }
        table
    }

    #[test]
    fn p90_is_on_the_bad_side_of_the_median() {
        assert_eq!(table(Unit::Ms).rows[0].quantile(0.9), Some(9.0));
        assert_eq!(table(Unit::PerS).rows[0].quantile(0.9), Some(2.0));
    }

    #[test]
    fn the_ratio_is_of_medians() {
        let table = table(Unit::Ms);
        assert_eq!(table.ratio(&table.rows[1]), Some(2.0));
        assert_eq!(table.ratio(&table.rows[0]), None);
    }

    #[test]
    fn a_row_without_figures_says_why() {
        let mut table = table(Unit::Ms);
        table.absent("bwrap", "not installed");
        assert!(table.text("0").contains("bwrap  not installed\n"), "{}", table.text("0"));
    }
}
