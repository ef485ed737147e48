//! The run as the guest sees it, from hello to done.
//!
//! Never goes on without the host: when the link ends, so does everything here, after a short grace
//! in which leftovers are committed for whoever finds the volume.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use cofferdam_agent::shell_host::fds;
use cofferdam_link::{Incoming, Link, join};
use cofferdam_run::posture::Probe;
use cofferdam_wire::{
    AgentEnd, ErrorCode, Manifest, PROTOCOL_VERSION, StartSpec, StreamOpen, Up, layout,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::git::Git;
use crate::limits::{
    BLOCKING_THREADS, FAILED_LINGER, MESSAGE_CHARS, ORPHAN_GRACE, THREAD_KEPT, THREADS_MADE,
};
use crate::places::Places;
use crate::shell_host::meet::{Met, meet};
use crate::talk::{self, HostGone, ToHost, Wish, Wishes};
use crate::{agent, collect, doors, harden, import, leftovers, log, probe, reap, stdio, wall_test};

/// The guest could not do its part; the host knows why.
const FAILED: u8 = 1;
/// The host was gone before all was told.
const HOST_GONE: u8 = 3;
/// The two ends do not understand one another.
const PROTOCOL: u8 = 4;

/// The supervisor's whole life.
pub(crate) fn main(places: Places, with_shell_host: bool) -> ExitCode {
    // Before anything is opened here.
    let mut descriptors = probe::extra_descriptors();
    let shell_host = match with_shell_host.then(|| fds::inherited(layout::SHELL_FD)).transpose() {
        Ok(shell_host) => shell_host,
        Err(error) => {
            log::line(&format!("the shell host is not there: {error}"));
            return ExitCode::from(FAILED);
        }
    };
    if shell_host.is_some() {
        // Not leaked but given; the launcher's other half is at its other end.
        let own = format!("{}: ", layout::SHELL_FD);
        descriptors.retain(|descriptor| !descriptor.starts_with(&own));
    }
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
    let runtime = match runtime() {
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
        let shell_host = Mutex::new(shell_host);
        Supervisor { places, link, shell_host }.run(incoming, control, probe).await
    });
    // Nothing that still hangs in a thread may hold the process.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// A runtime with all the threads that it will ever have, so that the agent's filter can name them.
fn runtime() -> std::io::Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(THREAD_KEPT)
        .enable_all()
        .build()?;
    // As many pieces of work as there may be threads, each of which waits for the last to begin.
    let begun = Arc::new((Mutex::new(0), Condvar::new()));
    for _ in 0..BLOCKING_THREADS {
        let begun = Arc::clone(&begun);
        runtime.spawn_blocking(move || {
            let (count, all) = &*begun;
            let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
            *count += 1;
            all.notify_all();
            // Bounded, since a limit of processes may leave fewer.
            drop(all.wait_timeout_while(count, THREADS_MADE, |count| *count < BLOCKING_THREADS));
        });
    }
    Ok(runtime)
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
    /// Taken once, for the agent.
    shell_host: Mutex<Option<OwnedFd>>,
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
        let mut doors = doors::open(&self.places, &self.link)
            .await
            .map_err(|e| Stop::Failed(ErrorCode::AgentStart, format!("a loopback port: {e}")))?;
        // Beside the import, which takes longer.
        let prepared = async {
            tokio::join!(
                import::workspace(&self.places, &mut incoming, git, &spec.workspace),
                wall_test::run(spec.wall_test.as_ref(), doors.proxy),
            )
        };
        let imported = tokio::select! {
            (imported, tested) = prepared => {
                if let Some(tested) = tested {
                    up.say(tested).await?;
                }
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
        up.say(Up::WorkspaceReady { head }).await?;
        let channel = match self.meet_shell_host(spec).await? {
            Some(mut met) => {
                if let Some(proxy) = met.proxy.take() {
                    doors.open_shells(proxy, &self.link);
                }
                Some(met)
            }
            None => None,
        };
        let end = self.agent(up, wishes, spec, channel).await?;
        drop(doors);
        up.say(Up::AgentEnded(end)).await?;
        self.collect(up, wishes, spec, git).await
    }

    /// Sets the shell host up where the agent's commands are to be kept apart.
    async fn meet_shell_host(&self, spec: &StartSpec) -> Result<Option<Met>, Stop> {
        let Some(shell) = spec.shell.as_ref().filter(|shell| shell.separate) else {
            return Ok(None);
        };
        let failed = |message: String| Stop::Failed(ErrorCode::AgentStart, message);
        // Whole at any point: it is taken or it is not.
        let there = self.shell_host.lock().unwrap_or_else(PoisonError::into_inner).take();
        let there = there.ok_or_else(|| failed("there is no shell host".to_owned()))?;
        let port = shell.proxy.then_some(self.places.ports[0]);
        meet(there, port).await.map(Some).map_err(failed)
    }

    async fn agent(
        &self,
        up: &ToHost,
        wishes: &mut Wishes,
        spec: &StartSpec,
        shell: Option<Met>,
    ) -> Result<AgentEnd, Stop> {
        match wishes.now() {
            Wish::Work => {}
            Wish::Cancel => return Ok(AgentEnd { cancelled: true, ..AgentEnd::default() }),
            Wish::Gone => return Err(Stop::HostGone),
        }
        let failed = |message| Stop::Failed(ErrorCode::AgentStart, message);
        let launch = agent::launch(&self.places, spec).map_err(failed)?;
        let program = agent::shown_program(&spec.agent, &launch);
        let (channel, number) = shell.map(Met::into_channel).unzip();
        let agent = agent::start(launch, channel).map_err(failed)?;
        drop(number);
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
