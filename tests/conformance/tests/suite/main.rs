//! What every engine does alike. needs: the engine that `COFFERDAM_TEST_ENGINE` names; run it with
//! `cargo xtask conformance --engine NAME`, which starts what is missing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod lifecycle;
mod limits;
mod posture;
mod streams;
mod work;
