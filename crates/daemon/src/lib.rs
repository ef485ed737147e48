//! The supervisor of runs, usable in process and as a service.
