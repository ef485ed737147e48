//! The life of one run, from the claim to the verdict.
//!
//! Every step leaves facts; whatever goes wrong, the run is wound up, judged by its facts, and
//! settled. It never decides by itself that a run went well: [`cofferdam_run::judge`] does.

mod posture;
mod setup;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_link::Link;
use cofferdam_run::fact::{Fact, StopCause};
use cofferdam_run::posture::LayerReport;
use cofferdam_run::spec::{AgentSpec, RunSpec, ShellSeparation};
use cofferdam_run::{Record, RunEvent, RunId};
use cofferdam_sandbox::spec::Hardening;
use cofferdam_sandbox::{Running, SandboxSpec};
use cofferdam_workspace::Snapshot;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::arm::{Armed, entropy};
use crate::canary::Needles;
use crate::error::HostError;
use crate::facts::Facts;
use crate::host::Host;
use crate::monitor::{LEASE_TTL_MS, Monitor};
use crate::owner;
use crate::paths::{RunPaths, create_private_dir};
use crate::progress::{Progress, Watcher};
use crate::pulse::Pulse;
use crate::session::{self, End, Plan, Stages};
use crate::stops::{self, FirstStop};
use crate::wall::Wall;
use crate::watch::{self, Bounds, Watch};
use crate::windup::{self, Windup, teardown};
use posture::{Required, first_missing};
use setup::{doors, start_spec};

/// A sandbox lives at most this much longer than its run's wall clock before any sweep may take it.
const TTL_SLACK_MS: u64 = 30 * 60 * 1000;
/// Bytes of the guest's standard error that are kept; more is read and dropped.
pub const MAX_GUEST_LOG_BYTES: u64 = 1 << 20;

/// How a run ended.
#[derive(Debug)]
pub struct RunReport {
    /// The run.
    pub run: RunId,
    /// Its record, verdict included.
    pub record: Record,
}

pub(crate) struct Ctx<'a> {
    pub(crate) host: &'a Host,
    pub(crate) id: RunId,
    pub(crate) spec: RunSpec,
    pub(crate) epoch: u64,
    pub(crate) facts: Facts,
    pub(crate) watcher: Arc<dyn Watcher>,
    pub(crate) needles: Needles,
    pub(crate) paths: RunPaths,
    /// Where whoever wants to end the run says so.
    pub(crate) stops: mpsc::Sender<StopCause>,
    /// When the first of them came.
    pub(crate) first_stop: FirstStop,
    /// Signs of life of the agent.
    pub(crate) pulse: Pulse,
    /// The engine's name for the sandbox, once there is one.
    pub(crate) sandbox: Option<String>,
}

impl Ctx<'_> {
    /// What the run may use of the host.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds::of(&self.spec, self.host.config.disk_floor().ok().flatten())
    }

    /// Moves the run on; see [`Facts::transition`].
    pub(crate) async fn apply(&self, event: RunEvent) {
        self.facts.transition(event).await;
    }

    /// Records and applies a stop that the session did not record itself.
    async fn stop(&self, cause: StopCause) {
        self.facts.host(Fact::Stopped { cause: cause.clone() }).await;
        self.watcher.tell(Progress::Stopping { cause: cause.clone() });
        self.apply(RunEvent::StopRequested { cause }).await;
    }
}

#[async_trait]
impl Stages for Ctx<'_> {
    async fn guest_ready(&mut self) {
        self.apply(RunEvent::GuestReady).await;
    }
    async fn agent_started(&mut self) {
        self.apply(RunEvent::AgentStarted).await;
    }
    async fn plan_made(&mut self) {
        // Only the built-in agent has a planning state.
        if matches!(self.spec.agent, AgentSpec::Builtin { .. }) {
            self.apply(RunEvent::PlanMade).await;
        }
    }
    async fn agent_ended(&mut self) {
        self.apply(RunEvent::AgentEnded).await;
    }
    async fn stopping(&mut self, cause: &StopCause) {
        self.apply(RunEvent::StopRequested { cause: cause.clone() }).await;
    }
}

impl Host {
    /// Supervises an armed run to its end.
    ///
    /// # Errors
    /// Only what keeps a verdict from being stored: everything else is in the record.
    pub async fn supervise(
        &self,
        mut armed: Armed,
        watcher: Arc<dyn Watcher>,
        cancel: CancellationToken,
    ) -> Result<RunReport, HostError> {
        let id = armed.id.clone();
        let lease = match armed.lease.take() {
            Some(lease) => lease,
            None => self
                .ledger
                .claim(&id, &owner::me(), self.clock.now(), LEASE_TTL_MS)
                .await?
                .ok_or_else(|| HostError::TakenOver(id.clone()))?,
        };
        let paths = self.paths.run(&id);
        create_private_dir(paths.dir()).map_err(|e| HostError::io("create", paths.dir(), e))?;
        let (stop_sender, mut stops, first_stop) = stops::channel();
        let pulse = Pulse::new();
        let facts = Facts::start(
            Arc::clone(&self.ledger),
            id.clone(),
            lease.epoch,
            Arc::clone(&self.clock),
            Arc::clone(&watcher),
            stop_sender.clone(),
        );
        let spec = armed.request.spec.clone();
        let monitor = tokio::spawn(
            Monitor {
                ledger: Arc::clone(&self.ledger),
                clock: Arc::clone(&self.clock),
                run: id.clone(),
                epoch: lease.epoch,
                deadline: Instant::now() + Duration::from_millis(spec.budgets.wall_clock_ms),
                silence: spec.budgets.silence_ms.map(Duration::from_millis),
                pulse: pulse.clone(),
                facts: facts.clone(),
                stops: stop_sender.clone(),
                cancel,
            }
            .watch(),
        );
        let needles = plant(&armed, &paths)?;
        watcher.tell(Progress::Armed {
            run: id.clone(),
            engine: spec.engine,
            reach: armed.reach(),
            passed: spec.env_names.clone(),
        });
        let mut ctx = Ctx {
            host: self,
            id,
            epoch: lease.epoch,
            facts,
            watcher,
            needles,
            paths,
            spec: spec.clone(),
            stops: stop_sender,
            first_stop,
            pulse,
            sandbox: None,
        };
        ctx.facts.host(Fact::Armed { version: env!("CARGO_PKG_VERSION").to_owned(), spec }).await;
        let windup = run(&mut ctx, &armed, &mut stops).await;
        let settled = windup::finish(&ctx, &armed, windup).await;
        monitor.abort();
        settled
    }
}

/// Plants the marker and names every credential that must not be found anywhere.
fn plant(armed: &Armed, paths: &RunPaths) -> Result<Needles, HostError> {
    let marker = format!("cofferdam-canary-{}", hex::encode(entropy::<16>()?));
    let place = paths.canary();
    std::fs::write(&place, &marker).map_err(|e| HostError::io("write", &place, e))?;
    let mut needles = Needles::default();
    needles.add("canary", marker.as_bytes());
    if let Some(key) = &armed.request.key {
        needles.add("model key", key.expose().as_bytes());
    }
    Ok(needles)
}

/// Everything up to the end of the session. What is left to do is in the answer.
async fn run(ctx: &mut Ctx<'_>, armed: &Armed, stops: &mut mpsc::Receiver<StopCause>) -> Windup {
    let snapshot = match unless_stopped(stops, snapshot(ctx, armed)).await {
        Ok(snapshot) => snapshot,
        Err(cause) => {
            ctx.stop(cause).await;
            return Windup::default();
        }
    };
    ctx.watcher.tell(Progress::Preparing { what: format!("{} sandbox", ctx.spec.engine) });
    let sandbox_spec = SandboxSpec {
        run: ctx.id.clone(),
        instance: ctx.host.instance.clone(),
        expires_at: ctx
            .host
            .clock
            .now()
            .plus_ms(ctx.spec.budgets.wall_clock_ms.saturating_add(TTL_SLACK_MS)),
        hardening: Hardening::for_run(&ctx.spec.resources),
        guest_binary: armed.guest_binary.clone(),
        run_dir: ctx.paths.dir().to_path_buf(),
        root: ctx.host.engines.root(ctx.spec.engine),
        shell_host: ctx.spec.shell.separation == ShellSeparation::Enforced,
    };
    let prepared = unless_stopped(stops, async {
        armed.engine.prepare(&sandbox_spec).await.map_err(|e| host_error(e.code(), &e))
    });
    let prepared = match prepared.await {
        Ok(prepared) => prepared,
        Err(cause) => {
            ctx.stop(cause).await;
            return Windup { snapshot: Some(snapshot), sweep: true, ..Windup::default() };
        }
    };
    let evidence = prepared.evidence().clone();
    ctx.sandbox = Some(prepared.identity().to_owned());
    ctx.apply(RunEvent::SandboxIdentified { sandbox: prepared.identity().to_owned() }).await;
    ctx.facts
        .host(Fact::SandboxPrepared {
            engine: ctx.spec.engine,
            engine_version: evidence.engine_version.clone(),
            sandbox: prepared.identity().to_owned(),
            hardening: evidence.hardening.clone(),
            root: evidence.root.clone(),
            guest: evidence.guest.clone(),
            read_back: evidence.read_back.clone(),
        })
        .await;
    if let Some(cause) = first_missing(&ctx.spec, &evidence.read_back) {
        ctx.stop(cause).await;
        let torn = teardown::bounded(&ctx.host.instance, &armed.engine, prepared.teardown()).await;
        return Windup { snapshot: Some(snapshot), torn: Some(torn), ..Windup::default() };
    }
    // Identity first: a crash from here on finds the sandbox by it.
    let facts = ctx.facts.clone();
    let started = unless_stopped(stops, async {
        if let Some(detail) = facts.flush().await {
            return Err(StopCause::HostError { detail });
        }
        prepared.start().await.map_err(|e| host_error(e.code(), &e))
    });
    let running = match started.await {
        Ok(running) => running,
        Err(cause) => {
            ctx.stop(cause).await;
            return Windup { snapshot: Some(snapshot), sweep: true, ..Windup::default() };
        }
    };
    session(ctx, armed, snapshot, &evidence.read_back, running, stops).await
}

fn host_error(code: &str, error: &dyn std::error::Error) -> StopCause {
    let mut detail = format!("{code}: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        detail.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    StopCause::HostError { detail: crate::text::line(&detail, 2_000) }
}

async fn unless_stopped<T>(
    stops: &mut mpsc::Receiver<StopCause>,
    work: impl Future<Output = Result<T, StopCause>>,
) -> Result<T, StopCause> {
    tokio::select! {
        biased;
        Some(cause) = stops.recv() => Err(cause),
        result = work => result,
    }
}

async fn snapshot(ctx: &Ctx<'_>, armed: &Armed) -> Result<Snapshot, StopCause> {
    let snapshot = armed
        .checkout
        .snapshot(&ctx.id, &ctx.paths.bundle_in())
        .await
        .map_err(|e| host_error(e.code(), &e))?;
    ctx.facts
        .host(Fact::Snapshot {
            head: snapshot.head.clone(),
            base: snapshot.base.clone(),
            branch: snapshot.branch.clone(),
            uncommitted_paths: snapshot.uncommitted_paths,
            bundle: snapshot.bundle.clone(),
            bundle_bytes: snapshot.bundle_bytes,
        })
        .await;
    ctx.watcher.tell(Progress::Snapshot {
        base: snapshot.base.clone(),
        uncommitted_paths: snapshot.uncommitted_paths,
    });
    for note in &snapshot.notes {
        let text = crate::text::line(&note.to_string(), 500);
        ctx.facts.host(Fact::Note { text: text.clone() }).await;
        ctx.watcher.tell(Progress::Note { text });
    }
    Ok(snapshot)
}

async fn session(
    ctx: &mut Ctx<'_>,
    armed: &Armed,
    snapshot: Snapshot,
    read_back: &[LayerReport],
    running: Running,
    stops: &mut mpsc::Receiver<StopCause>,
) -> Windup {
    let Running { stdin, stdout, stderr, control, outside } = running;
    tokio::spawn(keep_log(stderr, ctx.paths.guest_log()));
    let mut windup =
        Windup { snapshot: Some(snapshot), control: Some(control), ..Windup::default() };
    let Some(snapshot) = windup.snapshot.clone() else { return windup };
    if let Some(control) = &mut windup.control
        && let Some(cause) = watch::unenforceable(&ctx.spec, &control.usage().await)
    {
        ctx.stop(cause).await;
        return windup;
    }
    let setup = setup::tokens(&ctx.spec).and_then(|tokens| {
        let doors = doors(ctx, armed, &tokens)?;
        Ok((tokens, doors))
    });
    let (tokens, doors) = match setup {
        Ok(setup) => setup,
        Err(error) => {
            ctx.stop(host_error(error.code(), &error)).await;
            return windup;
        }
    };
    let linked =
        tokio::time::timeout(session::HELLO_LIMIT, Link::host(cofferdam_link::join(stdout, stdin)));
    let (link, incoming) = match unless_stopped(stops, async {
        match linked.await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(error)) => {
                tracing::warn!(run = %ctx.id, error = %error, "link not set up");
                Err(StopCause::NoHello)
            }
            Err(_) => Err(StopCause::NoHello),
        }
    })
    .await
    {
        Ok(link) => link,
        Err(cause) => {
            ctx.stop(cause).await;
            return windup;
        }
    };
    let mut start = start_spec(ctx, armed, &snapshot, &tokens);
    let wall = Wall::begin(&armed.wall_target, &doors.egress, tokens.agent().expose());
    start.wall_test = Some(wall.task());
    let (bundle_in, needles, watcher) =
        (ctx.paths.bundle_in(), ctx.needles.clone(), Arc::clone(&ctx.watcher));
    let spec = ctx.spec.clone();
    let id = ctx.id.clone();
    let posture = Required { spec: &spec, read_back, outside: &outside };
    let plan = Plan {
        run: &id,
        start,
        base: snapshot.base.clone(),
        bundle_in: &bundle_in,
        bundle_in_bytes: snapshot.bundle_bytes,
        bundle_out: ctx.paths.bundle_out(),
        output_bytes: spec.budgets.output_bytes,
        needles: &needles,
        facts: ctx.facts.clone(),
        watcher: watcher.as_ref(),
        posture: &posture,
        pulse: ctx.pulse.clone(),
        wall: Some(wall),
    };
    let Some(control) = &mut windup.control else { return windup };
    let mut watch = Watch::new(&id, ctx.bounds(), ctx.host.paths.data(), ctx.stops.clone());
    let mut end = End::default();
    let mut overdue = ctx.first_stop.clone();
    tokio::select! {
        () = session::run(&link, incoming, &doors, plan, &mut end, ctx, stops) => {}
        never = watch.run(control) => match never {},
        // Whatever the session waits for, a stop does not wait for it.
        () = overdue.plus(session::HANDOVER_LIMIT + session::HANDOVER_SLACK) => {
            tracing::warn!(run = %id, "the session did not end in time after a stop");
        }
    }
    windup.work = watch.last;
    doors.cut();
    link.close();
    ctx.pulse.rest();
    windup.model = doors.model.clone();
    windup.end = Some(end);
    windup
}

/// Keeps the beginning of the guest's standard error and reads the rest away, so that it never blocks.
async fn keep_log(mut stderr: Box<dyn tokio::io::AsyncRead + Send + Unpin>, place: PathBuf) {
    let Ok(mut file) = tokio::fs::File::create(&place).await else { return };
    let mut head = (&mut stderr).take(MAX_GUEST_LOG_BYTES);
    let kept = tokio::io::copy(&mut head, &mut file).await;
    if kept.is_ok_and(|n| n == MAX_GUEST_LOG_BYTES) {
        let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
    }
}
