//! Any command as an agent: its argument vector as it is, no shell around it.

use std::collections::BTreeMap;

use super::{Driver, DriverError, EventsFormat, Launch, LaunchInput, check_env};

/// Starts a command.
#[derive(Debug, Clone)]
pub struct CommandDriver {
    argv: Vec<String>,
}

impl CommandDriver {
    /// For this program and its arguments.
    #[must_use]
    pub fn new(argv: Vec<String>) -> Self {
        Self { argv }
    }
}

impl Driver for CommandDriver {
    fn name(&self) -> &'static str {
        "command"
    }

    fn launch(&self, env: &BTreeMap<String, String>, cwd: &str) -> Result<Launch, DriverError> {
        check_env(env)?;
        let Some((program, argv)) =
            self.argv.split_first().filter(|(program, _)| !program.is_empty())
        else {
            return Err(DriverError::EmptyCommand);
        };
        if let Some(word) = self.argv.iter().find(|word| word.contains('\0')) {
            return Err(DriverError::Unusable {
                what: format!("the word `{}`", word.escape_debug()),
            });
        }
        Ok(Launch {
            program: program.clone(),
            argv: argv.to_vec(),
            env: env.clone(),
            cwd: cwd.to_owned(),
            stdin: LaunchInput::Null,
            events: EventsFormat::None,
        })
    }
}
