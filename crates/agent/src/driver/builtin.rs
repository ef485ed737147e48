//! The built-in agent as a child: the guest binary in its agent mode.

use std::collections::BTreeMap;

use cofferdam_run::spec::Dialect;
use cofferdam_wire::{ShellStart, layout};

use super::{Driver, DriverError, EventsFormat, Launch, LaunchInput, check_env};
use crate::builtin::BuiltinConfig;

/// Starts the built-in agent.
#[derive(Debug, Clone)]
pub struct BuiltinDriver {
    task: String,
    dialect: Dialect,
    model: String,
    max_steps: u32,
    shell: Option<ShellStart>,
}

impl BuiltinDriver {
    /// For this task and model.
    #[must_use]
    pub fn new(task: String, dialect: Dialect, model: String, max_steps: u32) -> Self {
        Self { task, dialect, model, max_steps, shell: None }
    }

    /// With its commands started like that, instead of in its own environment.
    #[must_use]
    pub fn with_shell(mut self, shell: Option<ShellStart>) -> Self {
        self.shell = shell;
        self
    }
}

impl Driver for BuiltinDriver {
    fn name(&self) -> &'static str {
        "builtin"
    }

    fn launch(&self, env: &BTreeMap<String, String>, cwd: &str) -> Result<Launch, DriverError> {
        check_env(env)?;
        let mut config =
            BuiltinConfig::new(self.task.clone(), self.dialect, self.model.clone(), self.max_steps);
        cwd.clone_into(&mut config.cwd);
        let shell = self.shell.as_ref();
        config.env = shell.map_or(env, |shell| &shell.env).clone();
        check_env(&config.env)?;
        config.shell_host = shell.is_some_and(|shell| shell.separate);
        let bytes = serde_json::to_vec(&config).map_err(|e| DriverError::Config(e.to_string()))?;
        Ok(Launch {
            program: layout::GUEST_BIN.to_owned(),
            argv: vec!["agent".to_owned()],
            env: env.clone(),
            cwd: cwd.to_owned(),
            stdin: LaunchInput::Bytes(bytes),
            events: EventsFormat::Builtin,
        })
    }
}
