//! The attacker: a static program that a test starts inside a sandbox. See the crate's documentation.

fn main() {
    cofferdam_security::runner::main(std::env::args().skip(1));
}
