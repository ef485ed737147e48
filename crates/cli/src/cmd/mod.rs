//! One file per command.

pub(crate) mod cancel;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod egress;
pub(crate) mod logs;
pub(crate) mod ps;
pub(crate) mod record;
pub(crate) mod review;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod service;
pub(crate) mod show;
pub(crate) mod sweep;
