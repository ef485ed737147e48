//! The static binary inside the sandbox. Without arguments it is the supervisor: it speaks the
//! guest protocol on its standard streams, prepares the workspace, opens the loopback doors, starts
//! the agent and brings back what it made. As `guest agent` it is the built-in agent, as `guest
//! shell-host` the process that starts its commands.
//!
//! It must never hold a credential, decide about egress, or be believed: everything that it says is
//! a claim, and the boundary is the host. Standard output belongs to the link from the first
//! instruction on.

mod agent;
mod collect;
mod doors;
mod git;
mod harden;
mod import;
mod leftovers;
mod limits;
mod log;
mod lost;
mod output;
mod places;
mod probe;
mod process;
mod reap;
mod shell_host;
mod stdio;
mod supervisor;
mod survey;
mod talk;
mod untouchable;
mod wall_test;

use std::process::ExitCode;

use places::Places;

/// Exit code for arguments that mean nothing.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => supervisor::main(Places::sandbox(), false),
        // Made by the launcher, which also makes the shell host at the other end of a socket.
        ["--shell-host"] => supervisor::main(Places::sandbox(), true),
        // For tests: the same tree of paths somewhere else, and ports that the kernel chooses.
        ["--root", root] => supervisor::main(Places::under(root), false),
        ["--root", root, "--shell-host"] => supervisor::main(Places::under(root), true),
        ["shell-host"] => shell_host::main(&Places::sandbox()),
        ["shell-host", "--root", root] => shell_host::main(&Places::under(root)),
        ["agent"] => agent_mode(),
        ["--version"] => {
            log::stdout_line(&format!("cofferdam-guest {}", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
        _ => {
            log::line(
                "usage: guest [--shell-host] | guest agent | guest shell-host | guest --version",
            );
            ExitCode::from(USAGE)
        }
    }
}

fn agent_mode() -> ExitCode {
    // Its commands have its user id where there is no shell host, and its environment is not theirs.
    harden::hide();
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(cofferdam_agent::run_stdio());
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
        Err(error) => {
            log::line(&format!("no runtime: {error}"));
            ExitCode::FAILURE
        }
    }
}
