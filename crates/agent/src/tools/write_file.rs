//! `write_file`: writes a whole file.

use std::io::Write;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ToolError, ToolResult, Toolbox, blocking, parse, schema};
use crate::limits::WRITE_BYTES_MAX;
use crate::model::ToolSpec;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "file_path")]
    path: String,
    content: String,
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        name: "write_file",
        description: "Writes a file as a whole, over what is there; missing directories are made. Prefer edit_file for \
                      changes."
            .to_owned(),
        schema: schema(&[
            ("path", "string", true, "Path, relative to the working directory or absolute."),
            ("content", "string", true, "The whole content."),
        ]),
    }
}

pub(super) async fn run(toolbox: &Toolbox, arguments: Map<String, Value>) -> ToolResult {
    let Args { path: name, content } = parse(arguments)?;
    if content.len() > WRITE_BYTES_MAX {
        return Err(ToolError(format!(
            "The content has {} bytes; at most {WRITE_BYTES_MAX} are taken. Nothing was written.",
            content.len()
        )));
    }
    let path = toolbox.roots.resolve(&name)?;
    blocking(move || {
        let existed = path.exists();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|e| {
                ToolError(format!("The directory of `{name}` cannot be made: {e}."))
            })?;
        }
        write(&name, &path, content.as_bytes())?;
        let verb = if existed { "Replaced" } else { "Created" };
        Ok(format!("{verb} `{name}`, {} bytes.", content.len()))
    })
    .await
}

/// Writes content in place, so that mode and hard links of an existing file stay.
pub(super) fn write(name: &str, path: &Path, content: &[u8]) -> Result<(), ToolError> {
    if path.is_dir() {
        return Err(ToolError(format!("`{name}` is a directory.")));
    }
    if path.exists() && !path.is_file() {
        return Err(ToolError(format!("`{name}` is no regular file.")));
    }
    std::fs::File::create(path)
        .and_then(|mut file| file.write_all(content))
        .map_err(|e| ToolError(format!("`{name}` cannot be written: {e}.")))
}
