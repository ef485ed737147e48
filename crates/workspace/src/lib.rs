//! Repositories on the host: snapshot, bundle, quarantine import, diff, apply.
