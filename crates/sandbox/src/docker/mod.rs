//! The Docker engine, through its API.
