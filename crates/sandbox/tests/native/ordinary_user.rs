//! The engine as an ordinary user: a user namespace, and limits reported as missing.

