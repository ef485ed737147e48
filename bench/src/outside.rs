//! The world outside of the program: clock, environment, processes, connections, the machine.
//!
//! The funnels of `clippy.toml` open here and nowhere else in this crate. It must never change
//! anything on the machine beyond what a caller's command does.

#![expect(clippy::disallowed_methods, reason = "the one place of this crate that may")]

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::net::TcpStream;

/// Searched for peers besides `PATH`, which for ordinary people leaves these out.
const MORE_PROGRAMS: &str = "/usr/sbin:/sbin";

/// Time since it was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch(Instant);

impl Watch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn seconds(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    pub(crate) fn ms(self) -> f64 {
        self.seconds() * 1e3
    }

    pub(crate) fn us(self) -> f64 {
        self.seconds() * 1e6
    }
}

/// The Docker engine that the person means, the test engine first.
pub(crate) fn docker_host() -> Option<String> {
    ["COFFERDAM_TEST_DOCKER_HOST", "DOCKER_HOST"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty())
}

/// `PATH` as this program got it.
pub(crate) fn search_path() -> String {
    std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned())
}

/// A program by name; `None` when it is not installed.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let places = format!("{}:{MORE_PROGRAMS}", search_path());
    places
        .split(':')
        .filter(|place| place.starts_with('/'))
        .map(|place| Path::new(place).join(program))
        .find(|file| file.is_file())
}

/// A command with silent streams.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Milliseconds from start to end of a command that must succeed.
pub(crate) fn timed(command: &mut Command) -> anyhow::Result<f64> {
    let watch = Watch::start();
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    let ms = watch.ms();
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(ms)
}

/// Runs a command that must succeed and gives its standard output without the last line break.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let shown = format!("{command:?}");
    let out = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot start {shown}"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("{shown} ended with {}: {}", out.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim_end().to_owned())
}

/// A connection to a server of this program.
pub(crate) async fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(to).await?;
    // As the broker's dialler does.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The same without a runtime.
pub(crate) fn connect_now(to: SocketAddr) -> std::io::Result<std::net::TcpStream> {
    std::net::TcpStream::connect(to)
}

/// The proxy that a sandbox names to its agent.
pub(crate) fn proxy_variable() -> Option<String> {
    std::env::var("http_proxy").ok()
}

/// Ends this process: for a part whose benchmark has gone.
#[expect(clippy::exit, reason = "its threads wait in system calls that nothing else ends")]
pub(crate) fn leave() -> ! {
    std::process::exit(0)
}

/// Waits a while for a child to end; true when it has.
pub(crate) fn ends_by_itself(child: &mut Child) -> bool {
    for _ in 0..100 {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Processor time of all children that have ended, and of theirs, milliseconds, user and system
/// together. The kernel counts in ticks of 10 ms: only sums over many children mean something.
pub(crate) fn children_cpu_ms() -> anyhow::Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, rest) = stat.rsplit_once(')').context("unknown form of /proc/self/stat")?;
    // proc(5): cutime and cstime are fields 16 and 17; the first after the name is field 3.
    let ticks: Vec<f64> =
        rest.split_whitespace().skip(13).take(2).filter_map(|t| t.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() * 10.0)
}

/// Whether this program runs as root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// The load average over one, five and fifteen minutes.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Cores, processor, distribution and kernel, in one line.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let line_of = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with(key)).unwrap_or_default();
        let (_, value) = line.split_once([':', '=']).unwrap_or_default();
        value.trim().trim_matches('"').to_owned()
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{cores} cores ({}), {}, Linux {}",
        line_of("/proc/cpuinfo", "model name"),
        line_of("/etc/os-release", "PRETTY_NAME"),
        kernel.trim()
    )
}

/// Kind of the file system that holds `place`.
pub(crate) fn file_system(place: &Path) -> String {
    let place = place.canonicalize().unwrap_or_else(|_| place.to_owned());
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((Path::new(fields.next()?), fields.next()?))
        })
        .filter(|(point, _)| place.starts_with(point))
        // Later mounts hide earlier ones of the same place.
        .max_by_key(|(point, _)| point.components().count())
        .map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}

/// Bytes of all files below a directory.
pub(crate) fn bytes_below(place: &Path) -> u64 {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => bytes_below(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}
