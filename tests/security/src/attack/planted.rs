//! Against things that the host planted in the work volume, as an operator's mistake might: a set-user-id
//! program of root, and a device node.

use std::fs::File;
use std::io::Read as _;
use std::process::Command;

use super::twins;
use crate::outcome::Outcome;
use crate::promise::Promise::P4;
use crate::table::{Attempt, Place};

pub(crate) const TABLE: &[Attempt] = &[
    Attempt::new("planted.setuid_program", "no_new_privileges", P4, setuid, twins::exec_from_tmp)
        .at(Place::Planted),
    Attempt::new("planted.device_node", "mounts", P4, device, twins::write_null).at(Place::Planted),
];

fn setuid() -> Outcome {
    match Command::new("/work/planted-suid").arg("whoami").output() {
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
            if text.starts_with("euid ") {
                Outcome::through_if(text == "euid 0", text)
            } else {
                Outcome::Through(format!("could not be tried: {:?}", out.status))
            }
        }
        Err(error) => Outcome::Through(format!("could not be tried: {error}")),
    }
}

fn device() -> Outcome {
    // A copy of `/dev/zero`: harmless, and told from a dead node by its bytes.
    let read = File::open("/work/planted-zero").and_then(|mut file| file.read(&mut [0; 8]));
    Outcome::of(read, &[libc::EACCES, libc::EPERM])
}
