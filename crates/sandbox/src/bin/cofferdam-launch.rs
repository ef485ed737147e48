//! The native engine's launcher. All of it is in the library: `native::launcher`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    cofferdam_sandbox::native::launcher::main(&arguments)
}
