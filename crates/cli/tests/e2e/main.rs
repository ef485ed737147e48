//! End to end: the real command, real git, real engines, a real (scripted) model server. No mocks.
//!
//! needs: git, root or user namespaces, `cargo xtask build`, and a Docker engine at
//! `COFFERDAM_TEST_DOCKER_HOST` (`cargo xtask engine up` starts one).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "tests start processes, read the environment, and fail by panicking"
)]

mod engine_faults;
mod host_faults;
mod limits;
mod lossless;
mod promises;
mod refusals;
mod sealed;
mod service;
mod shell;
mod stops;
mod support;
mod wall;
