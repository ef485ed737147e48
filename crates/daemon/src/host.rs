//! The host of runs: one data directory, its ledger and its engines.

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_ledger::{Durable, Ledger, Store};
use cofferdam_run::{EngineKind, InstanceId};
use cofferdam_sandbox::EngineReport;

use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::engines::{EngineHosts, Engines};
use crate::error::HostError;
use crate::paths::{Paths, create_private_dir};

/// Names of the binaries that belong to the command.
pub const GUEST: &str = "cofferdam-guest";
/// The native engine's launcher.
pub const LAUNCHER: &str = "cofferdam-launch";

/// What a host is made of.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Data directory.
    pub data_dir: PathBuf,
    /// Folders in which guest and launcher are looked for, in order.
    pub bin_dirs: Vec<PathBuf>,
    /// What the environment says of the engines.
    pub engine_hosts: EngineHosts,
    /// The configuration.
    pub config: Config,
}

/// A host of runs.
pub struct Host {
    pub(crate) paths: Paths,
    pub(crate) ledger: Arc<dyn Store>,
    /// The same ledger, with tasks, approvals, triggers and the log over all runs.
    durable: Arc<dyn Durable>,
    pub(crate) instance: InstanceId,
    pub(crate) engines: Engines,
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    guest: Result<PathBuf, String>,
    launcher: Result<PathBuf, String>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("paths", &self.paths).finish_non_exhaustive()
    }
}

fn find(name: &str, dirs: &[PathBuf]) -> Result<PathBuf, String> {
    dirs.iter().map(|d| d.join(name)).find(|p| p.is_file()).ok_or_else(|| {
        let looked: Vec<String> = dirs.iter().map(|d| d.display().to_string()).collect();
        looked.join(", ")
    })
}

impl Host {
    /// Opens the data directory, which is created when missing.
    ///
    /// # Errors
    /// The directory or the ledger cannot be used.
    pub async fn open(options: HostOptions) -> Result<Self, HostError> {
        let paths = Paths::new(options.data_dir);
        for dir in [paths.data().to_path_buf(), paths.runs(), paths.engine_state()] {
            create_private_dir(&dir).map_err(|e| HostError::io("create", &dir, e))?;
        }
        let ledger = Arc::new(Ledger::open(&paths.ledger()).await?);
        let instance = ledger.instance_id().await?;
        let guest = find(GUEST, &options.bin_dirs);
        let launcher = find(LAUNCHER, &options.bin_dirs);
        let engines = Engines::new(
            &options.config,
            &paths,
            launcher.clone().unwrap_or_default(),
            options.engine_hosts,
        );
        Ok(Self {
            paths,
            ledger: ledger.clone(),
            durable: ledger,
            instance,
            engines,
            config: options.config,
            clock: Arc::new(SystemClock),
            guest,
            launcher,
        })
    }

    /// This process, as leases name it.
    #[must_use]
    pub fn owner(&self) -> String {
        crate::owner::me()
    }

    /// Tasks, approvals, triggers and the log over all runs.
    #[must_use]
    pub fn durable(&self) -> &Arc<dyn Durable> {
        &self.durable
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Arc<dyn Store> {
        &self.ledger
    }

    /// Now, by the clock of this host.
    #[must_use]
    pub fn now(&self) -> cofferdam_run::TimestampMs {
        self.clock.now()
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The data directory.
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The guest binary, and the launcher when the engine needs it.
    pub(crate) fn parts(&self, engine: EngineKind) -> Result<PathBuf, HostError> {
        let missing =
            |what, looked: &String| HostError::PartMissing { what, looked: looked.clone() };
        if engine == EngineKind::Native {
            self.launcher.as_ref().map_err(|l| missing(LAUNCHER, l))?;
        }
        self.guest.clone().map_err(|l| missing(GUEST, &l))
    }

    /// What each engine can do here.
    pub async fn doctor(&self) -> Vec<EngineReport> {
        let mut reports = Vec::new();
        for kind in EngineKind::ALL {
            let report = match self.parts(kind) {
                Err(error) => unusable(kind, &error.to_string(), error.hint()),
                Ok(_) => match self.engines.get(kind).await {
                    Ok(engine) => engine.probe().await,
                    Err(error) => unusable(kind, &error.to_string(), Some(error.hint())),
                },
            };
            reports.push(report);
        }
        reports
    }
}

fn unusable(kind: EngineKind, what: &str, fix: Option<String>) -> EngineReport {
    EngineReport {
        kind,
        version: String::new(),
        usable: false,
        layers: Vec::new(),
        problems: vec![cofferdam_sandbox::Problem {
            what: what.to_owned(),
            fix: fix.unwrap_or_default(),
        }],
    }
}
