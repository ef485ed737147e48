//! Measures the native engine: the time from `prepare` to a proven teardown of a sandbox that runs
//! `/usr/bin/true`. Usage: `start_stop LAUNCHER ROUNDS`. Prints, and asserts nothing.
#![expect(clippy::disallowed_methods, reason = "measuring time is what this program is for")]

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use cofferdam_run::ids::{InstanceId, RunId, TimestampMs};
use cofferdam_run::spec::Resources;
use cofferdam_sandbox::native::{NativeConfig, NativeEngine};
use cofferdam_sandbox::{Engine as _, RootSource, SandboxSpec};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let launcher = PathBuf::from(arguments.next().ok_or("the launcher's path")?);
    let rounds: u8 = arguments.next().ok_or("the number of rounds, at most 255")?.parse()?;
    let runs_root = tempfile::tempdir()?;
    let config = NativeConfig { launcher: Some(launcher), runs_root: runs_root.path().to_owned() };
    let engine = NativeEngine::new(config).with_command(&["/usr/bin/true"]);
    let (mut exits, mut totals) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let run = RunId::from_entropy([0, 0, 0, 1, round]);
        let spec = SandboxSpec {
            run_dir: runs_root.path().join(run.as_str()),
            run,
            instance: InstanceId::from_entropy([2; 10]),
            expires_at: TimestampMs(0),
            resources: Resources::default(),
            guest_binary: PathBuf::from("/usr/bin/true"),
            root: RootSource::HostUserland,
        };
        let begin = Instant::now();
        let mut running = engine.prepare(&spec).await?.start().await?;
        let exit = running.control.wait().await;
        exits.push(begin.elapsed());
        running.control.teardown().await;
        totals.push(begin.elapsed());
        if exit.code != Some(0) {
            return Err(format!("{exit:?}").into());
        }
    }
    let mut out = std::io::stdout().lock();
    for (name, mut times) in [("start to exit", exits), ("start to gone", totals)] {
        times.sort();
        let median = times.get(times.len() / 2).ok_or("at least one round")?;
        writeln!(out, "{name}: median {median:?}, least {:?}", times.first())?;
    }
    Ok(())
}
