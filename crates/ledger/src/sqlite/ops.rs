//! What the ledger does, one file per group. Each function runs inside a transaction that it did
//! not open and must leave nothing half done: its caller commits everything or rolls it back.

pub(super) mod append;
pub(super) mod approvals;
pub(super) mod catalogue;
pub(super) mod create;
mod fact;
mod ids;
pub(super) mod lease;
pub(super) mod output;
pub(super) mod query;
pub(super) mod settle;
pub(super) mod stream;
pub(super) mod task;
pub(super) mod transition;
pub(super) mod triggers;
