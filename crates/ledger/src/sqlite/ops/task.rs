//! Tasks: rows, creation, attempts, ends, trees.

pub(in crate::sqlite) mod create;
pub(in crate::sqlite) mod delegate;
pub(in crate::sqlite) mod end;
pub(in crate::sqlite) mod query;
pub(in crate::sqlite) mod queue;
pub(in crate::sqlite) mod retry;
pub(in crate::sqlite) mod row;
pub(in crate::sqlite) mod tree;
