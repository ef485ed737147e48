//! Where this guest's files and ports are: [`layout`]'s places, or the same tree under another
//! directory in tests.

use std::path::{Path, PathBuf};

use cofferdam_wire::layout;

/// The places.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The writable volume.
    pub(crate) work: PathBuf,
    /// The repository.
    pub(crate) repo: PathBuf,
    /// The agent's home.
    pub(crate) home: PathBuf,
    /// Directories that may be written to at all.
    pub(crate) writable: Vec<PathBuf>,
    /// Ports of proxy and model; zero lets the kernel choose.
    pub(crate) ports: [u16; 2],
    /// Gets the chosen ports, for tests.
    pub(crate) ports_file: Option<PathBuf>,
    /// What stands for [`layout::GUEST_BIN`].
    pub(crate) guest_bin: PathBuf,
}

impl Places {
    /// Those of the sandbox.
    pub(crate) fn sandbox() -> Self {
        Self {
            work: layout::WORK.into(),
            repo: layout::REPO.into(),
            home: layout::HOME.into(),
            writable: [layout::WORK, layout::TMP, "/dev", "/proc"].map(PathBuf::from).into(),
            ports: [layout::PROXY_PORT, layout::MODEL_PORT],
            ports_file: None,
            guest_bin: layout::GUEST_BIN.into(),
        }
    }

    /// The same below `root`.
    pub(crate) fn under(root: &str) -> Self {
        let below = |path: &str| Path::new(root).join(path.trim_start_matches('/'));
        Self {
            work: below(layout::WORK),
            repo: below(layout::REPO),
            home: below(layout::HOME),
            writable: vec![root.into(), layout::TMP.into(), "/dev".into(), "/proc".into()],
            ports: [0, 0],
            ports_file: Some(Path::new(root).join("ports")),
            guest_bin: std::env::current_exe().unwrap_or_else(|_| layout::GUEST_BIN.into()),
        }
    }

    /// The incoming bundle, for as long as it is needed.
    pub(crate) fn bundle_in(&self) -> PathBuf {
        self.work.join("in.bundle")
    }

    /// The outgoing bundle.
    pub(crate) fn bundle_out(&self) -> PathBuf {
        self.work.join("out.bundle")
    }
}
