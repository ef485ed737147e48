//! Processes that a benchmark started: ended by their own ids, counted with all that they started.
//!
//! It must never touch a process that it did not start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::outside;

/// Children of this program.
#[derive(Debug, Default)]
pub(super) struct Own(Vec<Child>);

impl Own {
    pub(super) fn start(&mut self, command: &mut Command) -> anyhow::Result<u32> {
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let pid = child.id();
        self.0.push(child);
        Ok(pid)
    }

    /// This program again, as one of its parts.
    pub(super) fn part(&mut self, args: &[&str]) -> anyhow::Result<u32> {
        let mut command = outside::command(std::env::current_exe()?);
        command.arg("part").args(args).stdin(Stdio::piped()).stderr(Stdio::inherit());
        self.start(&mut command)
    }

    /// A part that says where it listens.
    pub(super) fn listening(&mut self, args: &[&str]) -> anyhow::Result<(u32, SocketAddr)> {
        let mut command = outside::command(std::env::current_exe()?);
        command.arg("part").args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let pid = self.start(command.stderr(Stdio::inherit()))?;
        let out = self.0.last_mut().and_then(|child| child.stdout.take()).context("no output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        Ok((pid, line.trim().parse().with_context(|| format!("{args:?} said {line:?}"))?))
    }

    /// Ends them all, the last one first: a run has its own end and time for it.
    pub(super) fn stop(&mut self) {
        while let Some(mut child) = self.0.pop() {
            drop(child.stdin.take());
            if !outside::ends_by_itself(&mut child) {
                // Gone already is as good.
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Parent, and processor time in milliseconds, user and system together.
fn stat(pid: u32) -> Option<(u32, f64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // proc(5): the first field after the name is field 3; ticks are 10 ms.
    let ticks: f64 = fields.get(11..13)?.iter().filter_map(|t| t.parse::<f64>().ok()).sum();
    Some((fields.get(1)?.parse().ok()?, ticks * 10.0))
}

/// Processor time of these processes and of all below them that still run.
pub(super) fn cpu_ms(roots: &[u32]) -> f64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all: BTreeMap<u32, (u32, f64)> = pids.filter_map(|p| Some((p, stat(p)?))).collect();
    let mut chosen: BTreeSet<u32> = roots.iter().copied().collect();
    loop {
        let more: Vec<u32> = all
            .iter()
            .filter(|(pid, (parent, _))| chosen.contains(parent) && !chosen.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            break;
        }
        chosen.extend(more);
    }
    chosen.iter().filter_map(|pid| all.get(pid)).map(|(_, ms)| ms).sum()
}

/// Memory of one process, without what it has mapped and never touched.
pub(super) fn resident_kib(pid: u32) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
