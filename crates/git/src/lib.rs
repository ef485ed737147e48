//! The one launcher of git: scrubbed environment, safe configuration, bounds.
