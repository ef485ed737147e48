//! Drivers: what has to be started for an agent, and how it is listened to.
//!
//! A driver only describes; the guest's supervisor starts, watches and ends the process. Must never
//! start anything itself, nor add to the environment that it was given.

mod builtin;
mod command;

use std::collections::BTreeMap;
use std::fmt;

use cofferdam_wire::{AgentStart, ShellStart};

pub use builtin::BuiltinDriver;
pub use command::CommandDriver;

/// What the supervisor starts.
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    /// Program: an absolute path, or a name that is looked up in the `PATH` of `env`.
    pub program: String,
    /// Arguments after the program.
    pub argv: Vec<String>,
    /// Environment: exactly this, nothing inherited.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub cwd: String,
    /// What its standard input gets.
    pub stdin: LaunchInput,
    /// What its standard output means.
    pub events: EventsFormat,
}

/// Names of variables, never their values: the proxy's token is among them.
impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("program", &self.program)
            .field("argv", &self.argv)
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .field("stdin", &self.stdin)
            .field("events", &self.events)
            .finish()
    }
}

/// Standard input of the process. A driver for a conversation over stdio (ACP) adds a variant that
/// leaves the pipe to it.
#[derive(Clone, PartialEq, Eq)]
pub enum LaunchInput {
    /// `/dev/null`.
    Null,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
}

impl fmt::Debug for LaunchInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
        }
    }
}

/// How standard output is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventsFormat {
    /// One [`Event`](crate::Event) as JSON per line; a line that is none is ordinary output.
    Builtin,
    /// Ordinary output.
    None,
}

/// Why nothing can be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The command has no program.
    #[error("AGENT-012: the command is empty (give a program after `--`)")]
    EmptyCommand,
    /// A word of the command or the environment cannot be handed to a process.
    #[error(
        "AGENT-013: {what} holds a NUL character, or a name of a variable is empty or holds `=`"
    )]
    Unusable {
        /// Which one.
        what: String,
    },
    /// The configuration could not be written as JSON.
    #[error("AGENT-001: the configuration could not be written: {0}")]
    Config(String),
}

/// How one kind of agent is started.
pub trait Driver: Send + Sync + std::fmt::Debug {
    /// Its name in records: `builtin` or `command`.
    fn name(&self) -> &'static str;

    /// What to start, with `env` as the environment and `cwd` as the working directory.
    ///
    /// # Errors
    /// [`DriverError`] when the agent cannot be started as specified.
    fn launch(&self, env: &BTreeMap<String, String>, cwd: &str) -> Result<Launch, DriverError>;
}

/// The driver for what the host asked to start; `shell` says how the built-in agent starts commands.
#[must_use]
pub fn driver_for(start: &AgentStart, shell: Option<&ShellStart>) -> Box<dyn Driver> {
    match start {
        AgentStart::Builtin { task, dialect, model, max_steps } => {
            let driver = BuiltinDriver::new(task.clone(), *dialect, model.clone(), *max_steps);
            Box::new(driver.with_shell(shell.cloned()))
        }
        AgentStart::Command { argv } => Box::new(CommandDriver::new(argv.clone())),
    }
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), DriverError> {
    match env.iter().find(|(k, v)| k.is_empty() || k.contains(['=', '\0']) || v.contains('\0')) {
        Some((name, _)) => {
            Err(DriverError::Unusable { what: format!("the variable `{}`", name.escape_debug()) })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_run::spec::Dialect;

    use super::*;
    use crate::BuiltinConfig;

    fn env() -> BTreeMap<String, String> {
        BTreeMap::from([
            ("PATH".to_owned(), "/usr/bin".to_owned()),
            ("HOME".to_owned(), "/work/home".to_owned()),
        ])
    }

    #[test]
    fn the_builtin_agent_is_the_guest_binary_with_its_configuration_on_stdin() {
        let start = AgentStart::Builtin {
            task: "fix it".into(),
            dialect: Dialect::Gemini,
            model: "gemini-x".into(),
            max_steps: 7,
        };
        let launch = driver_for(&start, None).launch(&env(), "/work/repo").unwrap();
        assert_eq!(
            (launch.program.as_str(), launch.argv.as_slice()),
            ("/cofferdam/guest", ["agent".to_owned()].as_slice())
        );
        assert_eq!((launch.env, launch.events), (env(), EventsFormat::Builtin));
        let LaunchInput::Bytes(bytes) = launch.stdin else { panic!() };
        let config: BuiltinConfig = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(config.base_url, "http://127.0.0.1:3129");
        assert_eq!((config.max_steps, config.env, config.cwd.as_str()), (7, env(), "/work/repo"));
    }

    #[test]
    fn commands_of_the_builtin_agent_have_an_environment_of_their_own() {
        let start = AgentStart::Builtin {
            task: "t".into(),
            dialect: Dialect::Gemini,
            model: "m".into(),
            max_steps: 1,
        };
        let own = BTreeMap::from([("ONLY".to_owned(), "shell".to_owned())]);
        let shell = ShellStart { env: own.clone(), separate: true, proxy: false };
        let launch = driver_for(&start, Some(&shell)).launch(&env(), "/work/repo").unwrap();
        let LaunchInput::Bytes(bytes) = launch.stdin else { panic!() };
        let config: BuiltinConfig = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((launch.env, config.env, config.shell_host), (env(), own, true));
    }

    #[test]
    fn a_command_is_started_as_it_is() {
        let start = AgentStart::Command { argv: vec!["make".into(), "a b".into(), "$X".into()] };
        let launch = driver_for(&start, None).launch(&env(), "/work/repo").unwrap();
        assert_eq!(launch.program, "make");
        assert_eq!(launch.argv, ["a b", "$X"]);
        assert_eq!((launch.stdin, launch.events), (LaunchInput::Null, EventsFormat::None));
    }

    #[test]
    fn what_cannot_be_started_is_refused() {
        let launch = |argv: &[&str], env: &[(&str, &str)]| {
            let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            CommandDriver::new(argv.iter().map(|s| (*s).to_owned()).collect()).launch(&env, "/")
        };
        assert_eq!(launch(&[], &[]), Err(DriverError::EmptyCommand));
        assert_eq!(launch(&[""], &[]), Err(DriverError::EmptyCommand));
        for (argv, env) in [
            (["a\0b"], vec![]),
            (["a"], vec![("", "x")]),
            (["a"], vec![("A=B", "x")]),
            (["a"], vec![("A", "\0")]),
        ] {
            assert!(matches!(launch(&argv, &env), Err(DriverError::Unusable { .. })));
        }
    }

    #[test]
    fn values_of_variables_are_not_shown() {
        let start = AgentStart::Builtin {
            task: "t".into(),
            dialect: Dialect::Gemini,
            model: "m".into(),
            max_steps: 1,
        };
        let env = BTreeMap::from([("HTTPS_PROXY".to_owned(), "http://run:s3cret@x".to_owned())]);
        for start in [start, AgentStart::Command { argv: vec!["make".into()] }] {
            let launch = driver_for(&start, None).launch(&env, "/").unwrap();
            let mut shown = format!("{launch:?}");
            if let LaunchInput::Bytes(bytes) = &launch.stdin {
                shown += &format!("{:?}", serde_json::from_slice::<BuiltinConfig>(bytes).unwrap());
            }
            assert!(shown.contains("HTTPS_PROXY") && !shown.contains("s3cret"), "{shown}");
        }
    }
}
