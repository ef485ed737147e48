//! The tools of the built-in agent.
//!
//! Each tool has its own file, its own argument type and bounded answers. A fault of a tool or of its
//! arguments is an answer to the model, never an end of the run. Must never be taken for a boundary:
//! the sandbox is; confinement to the working directory is good manners and clear errors.

mod edit_file;
mod file_delete;
mod list_files;
mod paths;
mod read_file;
mod search;
mod shell;
mod talk;
mod write_file;

/// One suite for both ways in which a tool starts something: as a child of the agent, and through a
/// shell host.
#[cfg(test)]
#[path = "."]
mod here {
    use super::{Outcome, Toolbox};
    const HOSTED: bool = false;
    #[path = "tests.rs"]
    mod tests;
}

#[cfg(test)]
#[path = "."]
mod hosted {
    use super::{Outcome, Toolbox};
    const HOSTED: bool = true;
    #[path = "tests.rs"]
    #[expect(clippy::duplicate_mod, reason = "the same facts must hold both ways")]
    mod tests;
}

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::limits;
use crate::model::{Arguments, Call, ToolSpec};
use crate::shell_host::ShellHost;
use crate::text::{clip, prefix, suffix};

pub(crate) use paths::Roots;

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Text for the model.
    Answer(String),
    /// An error for the model.
    Error(String),
    /// A plan; the model is told that it was noted.
    Plan(Vec<String>),
    /// The work is done.
    Finish(String),
}

/// Where tools work.
#[derive(Debug)]
pub(crate) struct Toolbox {
    pub(crate) roots: Roots,
    pub(crate) env: BTreeMap<String, String>,
    /// Where everything that a tool starts runs; here without one.
    pub(crate) host: Option<ShellHost>,
}

/// What commands find in their environment where the run says nothing else: nobody sits at a terminal,
/// so nothing may wait for one.
const DEFAULTS: [(&str, &str); 6] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "true"),
    ("GIT_TERMINAL_PROMPT", "0"),
];

/// An error that goes to the model as it is.
#[derive(Debug)]
pub(crate) struct ToolError(pub(crate) String);

impl ToolError {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

type ToolResult = Result<String, ToolError>;

impl Toolbox {
    /// # Errors
    /// When `cwd` is no directory.
    pub(crate) fn new(cwd: PathBuf, mut env: BTreeMap<String, String>) -> std::io::Result<Self> {
        for (name, value) in DEFAULTS {
            env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
        Ok(Self { roots: Roots::new(&cwd)?, env, host: None })
    }

    /// Carries out one call.
    pub(crate) async fn call(&self, call: &Call) -> Outcome {
        let arguments = match &call.arguments {
            Arguments::Object(map) => map.clone(),
            Arguments::Malformed { text, why } => {
                return Outcome::Error(format!(
                    "The arguments of `{}` could not be read ({why}); nothing was done. They began: {}\nSend one JSON \
                     object that fits the tool's schema.",
                    prefix(&call.name, 100),
                    prefix(text, limits::BAD_ARGUMENTS_QUOTED_BYTES)
                ));
            }
        };
        let answer = match call.name.as_str() {
            "plan" => return talk::plan(arguments).unwrap_or_else(|e| Outcome::Error(e.0)),
            "finish" => return talk::finish(arguments).unwrap_or_else(|e| Outcome::Error(e.0)),
            "read_file" => read_file::run(self, arguments).await,
            "write_file" => write_file::run(self, arguments).await,
            "edit_file" => edit_file::run(self, arguments).await,
            "list_files" => list_files::run(self, arguments).await,
            "search" => search::run(self, arguments).await,
            "run_shell" => shell::run(self, arguments).await,
            "file_delete" => file_delete::run(self, arguments).await,
            other => {
                let names: Vec<&str> = specs().iter().map(|s| s.name).collect();
                Err(ToolError(format!(
                    "There is no tool `{}`; nothing was done. The tools are: {}.",
                    prefix(other, 100),
                    names.join(", ")
                )))
            }
        };
        match answer {
            Ok(text) => Outcome::Answer(bounded(text)),
            Err(ToolError(text)) => Outcome::Error(bounded(text)),
        }
    }
}

/// The last bound, for what the tools' own bounds add up to.
fn bounded(text: String) -> String {
    if text.len() <= limits::ANSWER_BYTES_MAX {
        return text;
    }
    let (head, tail) =
        (prefix(&text, limits::ANSWER_BYTES_MAX / 2), suffix(&text, limits::ANSWER_BYTES_MAX / 2));
    let cut = text.len() - head.len() - tail.len();
    format!("{head}\n[… {cut} bytes of this answer cut here …]\n{tail}")
}

/// One line about a call, for people.
pub(crate) fn describe(call: &Call) -> String {
    let Arguments::Object(map) = &call.arguments else {
        return format!("{} (malformed arguments)", call.name);
    };
    let main =
        ["command", "path", "file_path", "pattern"].iter().find_map(|key| map.get(*key)?.as_str());
    match main {
        Some(text) => format!("{} {text}", call.name),
        None => call.name.clone(),
    }
}

/// The tools as the model sees them.
pub(crate) fn specs() -> Vec<ToolSpec> {
    vec![
        talk::plan_spec(),
        read_file::spec(),
        write_file::spec(),
        edit_file::spec(),
        list_files::spec(),
        search::spec(),
        shell::spec(),
        file_delete::spec(),
        talk::finish_spec(),
    ]
}

/// Parses arguments; the error names what is wrong, and goes to the model. Names that models know from
/// other agents' tools are taken for ours.
fn parse<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, ToolError> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        let why = clip(&error.to_string(), limits::ARGUMENT_ERROR_CHARS_MAX);
        ToolError(format!("The arguments do not fit: {why}. Nothing was done."))
    })
}

/// A schema of `(name, type, required, description)`.
fn schema(properties: &[(&str, &str, bool, &str)]) -> Value {
    let mut fields = Map::new();
    let mut required = Vec::new();
    for (name, kind, must, description) in properties {
        let mut field = json!({"type": kind, "description": description});
        if *kind == "array" {
            field["items"] = json!({"type": "string"});
        }
        fields.insert((*name).to_owned(), field);
        if *must {
            required.push(*name);
        }
    }
    json!({"type": "object", "properties": fields, "required": required})
}

/// Whole numbers as models send them: `3`, `3.0`, `"3"`, or nothing.
fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    use serde::Deserialize as _;
    let value = Option::<Value>::deserialize(from)?;
    let error = || serde::de::Error::custom("a whole number of zero or more is needed");
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => text.trim().parse().map(Some).map_err(|_| error()),
        Some(Value::Number(n)) => match (n.as_u64(), n.as_f64()) {
            (Some(n), _) => Ok(Some(n)),
            // Exact in a double, and far over any use.
            (None, Some(f)) if f >= 0.0 && f.fract() == 0.0 && f < 9e15 => {
                format!("{f:.0}").parse().map(Some).map_err(|_| error())
            }
            _ => Err(error()),
        },
        Some(_) => Err(error()),
    }
}

/// Runs blocking file work off the runtime's own threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(ToolError::new("The tool itself failed; nothing is known of what it did.")),
    }
}
