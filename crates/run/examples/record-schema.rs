//! Prints the JSON Schema of the record: `cargo run -p cofferdam-run --example record-schema`.
//!
//! It does nothing else.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &cofferdam_run::record_schema())?;
    out.write_all(b"\n")
}
