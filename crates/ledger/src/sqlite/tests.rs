//! Tests of what only this backend has.
