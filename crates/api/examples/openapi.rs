//! Prints the OpenAPI document, for `docs/schema/openapi-v1.json`.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let text = serde_json::to_string_pretty(&cofferdam_api::document())?;
    writeln!(std::io::stdout().lock(), "{text}")
}
