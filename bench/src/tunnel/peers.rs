//! Other proxies, from Debian and PyPI: private processes on loopback, in directories of their own, as
//! small as their configuration allows: no cache, no log, no inspection, every loopback target.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::processes::Own;
use crate::outside;

/// A peer that runs.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) pid: u32,
    pub(super) at: SocketAddr,
}

/// Those that are installed, and those that are not, with what to do.
pub(super) struct Peers {
    pub(super) there: Vec<Peer>,
    pub(super) missing: Vec<(&'static str, &'static str)>,
}

impl Peers {
    pub(super) fn start(own: &mut Own, dir: &Path) -> anyhow::Result<Self> {
        let mut peers = Self { there: Vec::new(), missing: Vec::new() };
        let programs = [
            ("tinyproxy", "tinyproxy", "not installed (Debian package tinyproxy-bin)"),
            ("squid", "squid", "not installed (Debian package squid)"),
            ("mitmproxy", "mitmdump", "not installed (PyPI package mitmproxy)"),
        ];
        for (name, program, missing) in programs {
            let Some(program) = outside::find(program) else {
                peers.missing.push((name, missing));
                continue;
            };
            let home = dir.join(name);
            std::fs::create_dir(&home)?;
            let at = free_port()?;
            let mut command = outside::command(program);
            command.current_dir(&home).env("HOME", &home);
            let file = home.join("config");
            match name {
                "tinyproxy" => {
                    std::fs::write(&file, tinyproxy(at.port()))?;
                    command.arg("-d").arg("-c").arg(&file);
                }
                "squid" => {
                    std::fs::write(&file, squid(at.port(), &home))?;
                    command.arg("-N").arg("-f").arg(&file);
                }
                _ => {
                    let port = at.port().to_string();
                    command.args(["--quiet", "--listen-host", "127.0.0.1", "--listen-port", &port]);
                    // Tunnels are passed on as they are.
                    command.args(["--ignore-hosts", ".*"]);
                    command.arg("--set").arg(format!("confdir={}", home.display()));
                }
            }
            let pid = own.start(&mut command)?;
            wait_for(at).with_context(|| format!("{name} does not come up"))?;
            peers.there.push(Peer { name, pid, at });
        }
        Ok(peers)
    }
}

fn tinyproxy(port: u16) -> String {
    format!(
        "Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 300\nLogLevel Critical\n\
         Allow 127.0.0.1\nDisableViaHeader Yes\n"
    )
}

fn squid(port: u16, home: &Path) -> String {
    let home = home.display();
    format!(
        "http_port 127.0.0.1:{port}\nhttp_access allow all\ncache deny all\naccess_log none\n\
         cache_log /dev/null\ncache_store_log none\npid_filename none\nnetdb_filename none\n\
         coredump_dir {home}\nshutdown_lifetime 0 seconds\npinger_enable off\nworkers 1\n\
         visible_hostname bench\nmax_filedescriptors 4096\n"
    )
}

/// A port that was free a moment ago.
fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn wait_for(at: SocketAddr) -> anyhow::Result<()> {
    let mut last = None;
    for _ in 0..300 {
        match outside::connect_now(at) {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(last.map_or_else(|| anyhow::anyhow!("no attempt"), Into::into))
}
