//! Where a data directory keeps things. One instance, one person, mode 0700.

use std::path::{Path, PathBuf};

use cofferdam_run::RunId;

/// The data directory.
#[derive(Debug, Clone)]
pub struct Paths {
    data: PathBuf,
}

impl Paths {
    /// At `data`; nothing is created yet.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into() }
    }

    /// The directory itself.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The ledger's database.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.data.join("ledger.sqlite")
    }

    /// Parent of all run directories.
    #[must_use]
    pub fn runs(&self) -> PathBuf {
        self.data.join("runs")
    }

    /// Everything of one run while it lives.
    #[must_use]
    pub fn run(&self, id: &RunId) -> RunPaths {
        RunPaths { dir: self.runs().join(id.as_str()) }
    }

    /// Work that could not be fetched and was kept.
    #[must_use]
    pub fn salvage(&self, id: &RunId) -> PathBuf {
        self.salvage_dir().join(id.as_str())
    }

    /// Parent of what is only waiting to be removed.
    #[must_use]
    pub fn trash_dir(&self) -> PathBuf {
        self.data.join("trash")
    }

    /// A run's work directory that is only waiting to be removed.
    #[must_use]
    pub fn trash(&self, id: &RunId) -> PathBuf {
        self.trash_dir().join(id.as_str())
    }

    /// Parent of all work that could not be fetched and was kept.
    #[must_use]
    pub fn salvage_dir(&self) -> PathBuf {
        self.data.join("salvage")
    }

    /// State of engines: image locks and the like.
    #[must_use]
    pub fn engine_state(&self) -> PathBuf {
        self.data.join("engine")
    }
}

/// The private directory of one run.
#[derive(Debug, Clone)]
pub struct RunPaths {
    dir: PathBuf,
}

impl RunPaths {
    /// The directory itself.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bundle that goes in.
    #[must_use]
    pub fn bundle_in(&self) -> PathBuf {
        self.dir.join("in.bundle")
    }

    /// Bundle that comes out.
    #[must_use]
    pub fn bundle_out(&self) -> PathBuf {
        self.dir.join("out.bundle")
    }

    /// Quarantine repository.
    #[must_use]
    pub fn quarantine(&self) -> PathBuf {
        self.dir.join("quarantine.git")
    }

    /// The native engine's work directory.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// Standard error of the guest, bounded.
    #[must_use]
    pub fn guest_log(&self) -> PathBuf {
        self.dir.join("guest.log")
    }

    /// Names the process that armed the run.
    #[must_use]
    pub fn armed_by(&self) -> PathBuf {
        self.dir.join("armed-by")
    }

    /// The planted secret.
    #[must_use]
    pub fn canary(&self) -> PathBuf {
        self.dir.join("canary")
    }
}

/// Creates `path` and its parents, private to the person.
///
/// # Errors
/// What the file system says.
pub fn create_private_dir(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
