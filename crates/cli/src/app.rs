//! What all commands share: where things are, the configuration, the host.

use std::path::PathBuf;

use cofferdam_daemon::config::Config;
use cofferdam_daemon::engines::EngineHosts;
use cofferdam_daemon::{Host, HostOptions};
use cofferdam_run::RunId;
use etcetera::BaseStrategy as _;

use crate::args::Cli;
use crate::env;
use crate::error::CliError;
use crate::out::Out;

/// The command's surroundings.
pub(crate) struct App {
    pub(crate) out: Out,
    pub(crate) config_path: PathBuf,
    /// The person named it, so it has to be there.
    config_named: bool,
    data_dir: PathBuf,
}

impl App {
    pub(crate) fn new(cli: &Cli) -> Result<Self, CliError> {
        let base = || {
            etcetera::choose_base_strategy().map_err(|_| {
                CliError::usage(
                    "HOME is not set: say where things are with --config and --data-dir",
                )
            })
        };
        let named = cli.config.clone().or_else(|| env::path(env::CONFIG));
        let config_named = named.is_some();
        let config_path = match named {
            Some(path) => path,
            None => base()?.config_dir().join("cofferdam/config.toml"),
        };
        let data_dir = match cli.data_dir.clone().or_else(|| env::path(env::DATA_DIR)) {
            Some(path) => path,
            None => base()?.data_dir().join("cofferdam"),
        };
        let data_dir = std::path::absolute(&data_dir).map_err(CliError::other)?;
        Ok(Self { out: Out::new(cli.json), config_path, config_named, data_dir })
    }

    /// The configuration; a file that is not there is an empty one.
    pub(crate) fn config(&self) -> Result<Config, CliError> {
        self.config_at(&self.config_path)
    }

    /// The configuration in a file that has to be there.
    pub(crate) fn config_at_named(path: &std::path::Path) -> Result<Config, CliError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| CliError::usage(format!("cannot read {}: {e}", path.display())))?;
        Ok(Config::parse(&text, &path.display().to_string())
            .map_err(cofferdam_daemon::HostError::from)?)
    }

    pub(crate) fn config_at(&self, path: &std::path::Path) -> Result<Config, CliError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !self.config_named => {
                String::new()
            }
            Err(e) => return Err(CliError::usage(format!("cannot read {}: {e}", path.display()))),
        };
        Ok(Config::parse(&text, &path.display().to_string())
            .map_err(cofferdam_daemon::HostError::from)?)
    }

    /// The data directory.
    pub(crate) fn data_dir(&self) -> &std::path::Path {
        &self.data_dir
    }

    /// The configuration file, when the person named one.
    pub(crate) fn named_config(&self) -> Option<&std::path::Path> {
        self.config_named.then_some(self.config_path.as_path())
    }

    /// Where the service of this data directory is.
    pub(crate) fn place(&self) -> cofferdam_api::Place {
        cofferdam_api::Place::of(&self.data_dir)
    }

    /// The host.
    pub(crate) async fn host(&self) -> Result<Host, CliError> {
        let mut bin_dirs = Vec::new();
        bin_dirs.extend(env::path(env::BIN_DIR));
        if let Ok(exe) = std::env::current_exe()
            && let Some(folder) = exe.parent()
        {
            bin_dirs.push(folder.to_path_buf());
            bin_dirs.push(folder.join("../libexec/cofferdam"));
        }
        let host = Host::open(HostOptions {
            data_dir: self.data_dir.clone(),
            bin_dirs,
            engine_hosts: EngineHosts {
                docker: env::text(env::DOCKER_HOST),
                podman: env::text(env::CONTAINER_HOST),
            },
            config: self.config()?,
        })
        .await?;
        Ok(host)
    }

    /// The run that `prefix` names; `last` is the newest one.
    pub(crate) async fn resolve(&self, host: &Host, prefix: &str) -> Result<RunId, CliError> {
        if prefix == "last" {
            let rows = host.ledger().list(cofferdam_ledger::ListFilter::default(), 1).await?;
            return rows.into_iter().next().map(|row| row.id).ok_or_else(|| {
                CliError::not_found("there is no run yet", "start one: cofferdam run \"…\"")
            });
        }
        Ok(host.ledger().resolve_prefix(prefix).await?)
    }

    /// Now, Unix milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
    }
}
