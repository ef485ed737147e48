//! The model gateway.
