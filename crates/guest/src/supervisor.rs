//! The run as the guest sees it, from hello to done.
//!
//! Never goes on without the host: when the link ends, so does everything here, after a short grace
//! in which leftovers are committed for whoever finds the volume.

use std::pin::Pin;
use std::process::ExitCode;

use cofferdam_link::{Incoming, Link, join};
use cofferdam_run::posture::Probe;
use cofferdam_wire::{AgentEnd, ErrorCode, Manifest, PROTOCOL_VERSION, StartSpec, StreamOpen, Up};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::git::Git;
use crate::limits::{FAILED_LINGER, MESSAGE_CHARS, ORPHAN_GRACE};
use crate::places::Places;
use crate::talk::{self, HostGone, ToHost, Wish, Wishes};
use crate::{agent, collect, doors, harden, import, leftovers, log, probe, reap, stdio};

/// The guest could not do its part; the host knows why.
const FAILED: u8 = 1;
/// The host was gone before all was told.
const HOST_GONE: u8 = 3;
/// The two ends do not understand one another.
const PROTOCOL: u8 = 4;

/// The supervisor's whole life.
pub(crate) fn main(places: Places) -> ExitCode {
    // Before anything is opened here.
    let descriptors = probe::extra_descriptors();
    let claimed = match stdio::claim() {
        Ok(claimed) => claimed,
        Err(error) => {
            log::line(&format!("the standard streams cannot be used: {error}"));
            return ExitCode::from(PROTOCOL);
        }
    };
    reap::look_around(places.ports_file.is_none());
    let landlock_abi = harden::myself(&places.writable);
    let probe = probe::observe(landlock_abi, descriptors);
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                log::line(&format!("no runtime: {error}"));
                return ExitCode::from(FAILED);
            }
        };
    let code = runtime.block_on(async {
        let (reader, writer) = match claimed.halves() {
            Ok(halves) => halves,
            Err(error) => {
                log::line(&format!("the standard streams cannot be used: {error}"));
                return PROTOCOL;
            }
        };
        tokio::spawn(reap::forever());
        let (link, incoming, control) = match talk::open(join(reader, writer)).await {
            Ok(open) => open,
            Err(error) => {
                log::line(&error);
                return PROTOCOL;
            }
        };
        Supervisor { places, link }.run(incoming, control, probe).await
    });
    // Nothing that still hangs in a thread may hold the process.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// Resolves when this process is asked to end.
pub(crate) fn told_to_end() -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async {
        let (Ok(mut term), Ok(mut interrupt)) =
            (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Why the run stops here.
enum Stop {
    HostGone,
    Failed(ErrorCode, String),
}

impl From<HostGone> for Stop {
    fn from(HostGone: HostGone) -> Self {
        Self::HostGone
    }
}

struct Supervisor {
    places: Places,
    link: Link,
}

impl Supervisor {
    async fn run(self, incoming: Incoming, mut control: talk::Control, probe: Probe) -> u8 {
        let hello = Up::Hello {
            protocol: PROTOCOL_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            probe: Box::new(probe),
        };
        if control.up.say(hello).await.is_err() {
            return HOST_GONE;
        }
        let spec = match control.start().await {
            Ok(spec) => spec,
            Err(error) => {
                log::line(&error);
                let message = Up::Failed { code: ErrorCode::Protocol, message: clip(&error) };
                if control.up.say(message).await.is_ok() {
                    let _ = timeout(FAILED_LINGER, self.link.closed()).await;
                }
                return PROTOCOL;
            }
        };
        let (up, mut wishes, closing) = control.follow(&self.link);
        let path = spec.env.get("PATH");
        let git = Git::new(&self.places.repo, path, &spec.workspace.identity);
        let result = self.work(incoming, &up, &mut wishes, &spec, &git).await;
        let code = match result {
            Ok(()) => {
                wishes.gone().await;
                0
            }
            Err(Stop::Failed(code, message)) => {
                log::line(&message);
                reap::kill_all().await;
                let message = Up::Failed { code, message: clip(&message) };
                if up.say(message).await.is_ok() {
                    let _ = timeout(FAILED_LINGER, wishes.gone()).await;
                }
                FAILED
            }
            Err(Stop::HostGone) => {
                log::line("the host is gone");
                reap::kill_all().await;
                let leftovers = leftovers::commit(&self.places, &git);
                let _ = timeout(ORPHAN_GRACE, leftovers).await;
                reap::kill_all().await;
                HOST_GONE
            }
        };
        drop(closing);
        code
    }

    async fn work(
        &self,
        mut incoming: Incoming,
        up: &ToHost,
        wishes: &mut Wishes,
        spec: &StartSpec,
        git: &Git,
    ) -> Result<(), Stop> {
        let imported = tokio::select! {
            imported = import::workspace(&self.places, &mut incoming, git, &spec.workspace) => {
                Some(imported.map_err(|e| Stop::Failed(ErrorCode::WorkspaceIn, e.to_string()))?)
            }
            wish = wishes.changed() => match wish {
                Wish::Gone => return Err(Stop::HostGone),
                Wish::Cancel | Wish::Work => None,
            },
        };
        // The host opens nothing else; a stream that it opens anyway is reset.
        tokio::spawn(async move { while incoming.next().await.is_some() {} });
        let Some(head) = imported else {
            // What git had started itself.
            reap::kill_all().await;
            let end = AgentEnd { cancelled: true, ..AgentEnd::default() };
            up.say(Up::AgentEnded(end)).await?;
            up.say(Up::Manifest(Manifest::default())).await?;
            return Ok(up.say(Up::Done).await?);
        };
        let doors = doors::open(&self.places, &self.link)
            .await
            .map_err(|e| Stop::Failed(ErrorCode::AgentStart, format!("a loopback port: {e}")))?;
        up.say(Up::WorkspaceReady { head }).await?;
        let end = self.agent(up, wishes, spec).await?;
        drop(doors);
        up.say(Up::AgentEnded(end)).await?;
        self.collect(up, wishes, spec, git).await
    }

    async fn agent(
        &self,
        up: &ToHost,
        wishes: &mut Wishes,
        spec: &StartSpec,
    ) -> Result<AgentEnd, Stop> {
        match wishes.now() {
            Wish::Work => {}
            Wish::Cancel => return Ok(AgentEnd { cancelled: true, ..AgentEnd::default() }),
            Wish::Gone => return Err(Stop::HostGone),
        }
        let failed = |message| Stop::Failed(ErrorCode::AgentStart, message);
        let launch = agent::launch(&self.places, spec).map_err(failed)?;
        let program = agent::shown_program(&spec.agent, &launch);
        let agent = agent::start(launch).map_err(failed)?;
        up.say(Up::AgentStarted { program }).await?;
        let end = agent.listen(spec.output_bytes, up).finish(wishes).await;
        if wishes.now() == Wish::Gone { Err(Stop::HostGone) } else { Ok(end) }
    }

    async fn collect(
        &self,
        up: &ToHost,
        wishes: &mut Wishes,
        spec: &StartSpec,
        git: &Git,
    ) -> Result<(), Stop> {
        let failed = |message: String| Stop::Failed(ErrorCode::Collect, message);
        let pack = collect::pack(&self.places, git, &spec.workspace);
        let manifest = tokio::select! {
            packed = pack => packed.map_err(|e| failed(e.to_string()))?,
            () = wishes.gone() => return Err(Stop::HostGone),
        };
        let bytes = manifest.bundle_bytes;
        up.say(Up::Manifest(manifest)).await?;
        if bytes > 0 {
            let send = self.send_bundle(bytes);
            tokio::select! {
                sent = send => sent.map_err(failed)?,
                () = wishes.gone() => return Err(Stop::HostGone),
            }
        }
        Ok(up.say(Up::Done).await?)
    }

    /// Sends exactly `bytes`.
    async fn send_bundle(&self, bytes: u64) -> Result<(), String> {
        let io = |error: std::io::Error| format!("the bundle could not be sent: {error}");
        let file = tokio::fs::File::open(self.places.bundle_out()).await.map_err(io)?;
        let mut stream = talk::open_stream(&self.link, &StreamOpen::BundleOut).await?;
        let sent = tokio::io::copy(&mut file.take(bytes), &mut stream).await.map_err(io)?;
        if sent != bytes {
            return Err(format!("the bundle has {sent} bytes, {bytes} were announced"));
        }
        stream.shutdown().await.map_err(io)
    }
}

fn clip(message: &str) -> String {
    message.chars().take(MESSAGE_CHARS).collect()
}
