//! Project tooling.

fn main() {}
