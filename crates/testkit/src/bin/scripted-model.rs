//! `scripted-model`: the scripted model server as a program, for the demonstration.
//!
//! Binds 127.0.0.1 only, writes its address to a file in one step, and serves until standard input
//! ends or SIGTERM arrives. It must never be given a real key.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cofferdam_testkit::model::{ModelServer, Script};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str =
    "usage: scripted-model --script FILE --address-file PATH [--require-key-env NAME]";

struct Arguments {
    script: PathBuf,
    address_file: PathBuf,
    require_key_env: Option<String>,
}

fn arguments() -> anyhow::Result<Arguments> {
    let (mut script, mut address_file, mut require_key_env) = (None, None, None);
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().with_context(|| format!("{name} needs a value\n{USAGE}"))?;
        match name.as_str() {
            "--script" => script = Some(PathBuf::from(value)),
            "--address-file" => address_file = Some(PathBuf::from(value)),
            "--require-key-env" => require_key_env = Some(value),
            _ => bail!("unknown argument {name}\n{USAGE}"),
        }
    }
    Ok(Arguments {
        script: script.context(USAGE)?,
        address_file: address_file.context(USAGE)?,
        require_key_env,
    })
}

/// Readers see the whole address or no file.
fn write_address(path: &Path, address: &str) -> anyhow::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder)
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    std::io::Write::write_all(&mut file, address.as_bytes())?;
    file.persist(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(serve(arguments()?));
    // A read of stdin blocks a thread that cannot be cancelled; it must not outlive SIGTERM.
    runtime.shutdown_background();
    result
}

async fn serve(arguments: Arguments) -> anyhow::Result<()> {
    let path = arguments.script.display();
    let text = std::fs::read_to_string(&arguments.script)
        .with_context(|| format!("cannot read {path}"))?;
    let script = Script::parse(&text).with_context(|| format!("{path} is no script"))?;
    let mut terminate = signal(SignalKind::terminate())?;

    let server = ModelServer::start(script).context("cannot listen on 127.0.0.1")?;
    if let Some(name) = &arguments.require_key_env {
        #[expect(
            clippy::disallowed_methods,
            reason = "a test tool without a configuration of its own"
        )]
        let key = std::env::var(name).with_context(|| format!("{name} is not set"))?;
        server.require_key(key);
    }
    write_address(&arguments.address_file, &server.address().to_string())?;

    let mut stdin = tokio::io::stdin();
    let mut ignored = [0; 512];
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            read = stdin.read(&mut ignored) => if !matches!(read, Ok(1..)) { return Ok(()) },
        }
    }
}
