//! The supervisor of runs, as a library: the command uses it in process, a service will use it later.
//!
//! It carries out what [`cofferdam_run`] decides. It holds no business rule of its own: what a run may
//! do is `policy`'s, how it is judged is `run`'s. Nothing of the agent's runs on the host.

pub mod arm;
pub mod canary;
pub mod clock;
pub mod config;
mod doors;
pub mod engines;
mod environment;
pub mod error;
mod facts;
mod give_up;
pub mod host;
mod monitor;
mod objects;
mod owner;
pub mod paths;
pub mod progress;
mod pulse;
pub mod reconcile;
mod session;
mod stops;
pub mod supervise;
#[cfg(test)]
mod testing;
pub mod text;
mod wall;
#[cfg(test)]
mod wall_tests;
pub mod watch;
mod windup;
pub mod wish;

pub use arm::{Armed, Checked, RunRequest, reach};
pub use doors::gatewayed;
pub use error::HostError;
pub use host::{Host, HostOptions};
pub use progress::{Progress, Silent, Watcher};
pub use reconcile::SweepReport;
pub use supervise::RunReport;
