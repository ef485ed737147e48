//! Attempts to break out, on real engines: each is refused, its permitted twin works, and without the
//! layer that holds it it gets through.
//!
//! needs: root, git, `cargo xtask build`, and a Docker engine at `COFFERDAM_TEST_DOCKER_HOST`
//! (`cargo xtask engine up` starts one).

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "tests start processes, read the environment, make kernel objects, and fail by panicking"
)]

mod bare;
mod controls;
mod destructive;
mod machine;
mod product;
mod report;
mod secrets;
mod targets;
mod world;
