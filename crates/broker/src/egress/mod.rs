//! The egress door.
