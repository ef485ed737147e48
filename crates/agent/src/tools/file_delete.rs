//! `file_delete`: removes one file or link.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ToolError, ToolResult, Toolbox, blocking, parse, schema};
use crate::model::ToolSpec;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "file_path")]
    path: String,
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "file_delete",
        description: "Deletes one file, or one link itself. Directories are left to run_shell."
            .to_owned(),
        schema: schema(&[(
            "path",
            "string",
            true,
            "Path, relative to the working directory or absolute.",
        )]),
    }
}

pub(super) async fn run(toolbox: &Toolbox, arguments: Map<String, Value>) -> ToolResult {
    let Args { path: name } = parse(arguments)?;
    let path = toolbox.roots.resolve_entry(&name)?;
    blocking(move || {
        let meta = path
            .symlink_metadata()
            .map_err(|e| ToolError(format!("`{name}` cannot be deleted: {e}.")))?;
        if meta.is_dir() {
            return Err(ToolError(format!("`{name}` is a directory; use run_shell with rm -r.")));
        }
        std::fs::remove_file(&path)
            .map_err(|e| ToolError(format!("`{name}` cannot be deleted: {e}.")))?;
        Ok(format!("Deleted `{name}`."))
    })
    .await
}
