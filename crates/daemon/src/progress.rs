//! What a person watching a run is told, as it happens.

use cofferdam_run::fact::StopCause;
use cofferdam_run::{EngineKind, ObjectId, RunId};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The run exists and is claimed.
    Armed {
        /// Its id.
        run: RunId,
        /// Engine that will carry it.
        engine: EngineKind,
        /// One line on what will be reachable.
        reach: String,
        /// Variables of the person's that are passed in.
        passed: Vec<String>,
    },
    /// An engine needs time to prepare, for example to build its image.
    Preparing {
        /// What for.
        what: String,
    },
    /// The checkout was snapshotted.
    Snapshot {
        /// Commit that travels.
        base: ObjectId,
        /// Uncommitted paths included.
        uncommitted_paths: u64,
    },
    /// Something about the snapshot that the person should know.
    Note {
        /// One line.
        text: String,
    },
    /// The sandbox is up and its posture holds.
    Sealed {
        /// Layers that hold.
        enforced: usize,
        /// Layers that were accepted as missing.
        degraded: Vec<String>,
    },
    /// The agent started.
    AgentStarted {
        /// Program.
        program: String,
    },
    /// The agent says something of its work.
    Agent {
        /// Kind.
        kind: String,
        /// One line, escaped.
        text: String,
    },
    /// Output of the agent, escaped.
    Output {
        /// True for standard error.
        stderr: bool,
        /// Text.
        text: String,
    },
    /// A connection was refused.
    Refused {
        /// Target.
        target: String,
        /// Code and reason.
        reason: String,
    },
    /// The host stops the run.
    Stopping {
        /// Why.
        cause: StopCause,
    },
    /// The agent ended.
    AgentEnded {
        /// Exit code.
        code: Option<i32>,
    },
    /// Commits came back.
    Fetched {
        /// How many.
        commits: u64,
    },
    /// The sandbox is gone, or not.
    Teardown {
        /// True when proven gone.
        clean: bool,
    },
}

/// Who is told. Must not block.
pub trait Watcher: Send + Sync {
    /// Something happened.
    fn tell(&self, progress: Progress);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Watcher for Silent {
    fn tell(&self, _progress: Progress) {}
}
