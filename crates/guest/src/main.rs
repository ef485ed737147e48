//! The in-sandbox binary.

fn main() {}
