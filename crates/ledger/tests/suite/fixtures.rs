//! Values for the ledger's tests.

use cofferdam_ledger::NewRun;
use cofferdam_run::fact::{CollectOutcome, Fact, TeardownOutcome};
use cofferdam_run::limits::Spend;
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus, Probe};
use cofferdam_run::spec::{AgentSpec, Mode, Resources, RunSpec};
use cofferdam_run::{Budgets, Digest, EngineKind, ObjectId, RunEvent, RunId, TimestampMs};

pub(crate) const TTL_MS: u64 = 1_000;

pub(crate) fn run_id(n: u32) -> RunId {
    let [a, b, c, d] = n.to_be_bytes();
    RunId::from_entropy([a, b, c, d, 7])
}

pub(crate) fn at(ms: u64) -> TimestampMs {
    TimestampMs(ms)
}

pub(crate) fn spec(mode: Mode) -> RunSpec {
    RunSpec {
        task: "make the test pass".into(),
        mode,
        agent: AgentSpec::Builtin { max_steps: 50 },
        model: None,
        engine: EngineKind::Native,
        resources: Resources::default(),
        budgets: Budgets::default(),
        egress_allow: vec![],
        egress_deny: vec![],
        checkout: "/home/ada/repo".into(),
        accept_degraded: vec![],
        credentials: vec![],
        env_names: vec![],
        gateway_opened: vec![],
        shell: Default::default(),
        services: vec![],
        egress_test: false,
    }
}

pub(crate) fn new_run(n: u32, mode: Mode) -> NewRun {
    NewRun { id: run_id(n), spec: spec(mode), created_at: at(0), title: format!("task {n}") }
}

/// The events that lead a claimed run to `executing`.
pub(crate) fn to_executing() -> Vec<RunEvent> {
    vec![
        RunEvent::SandboxIdentified { sandbox: "box".into() },
        RunEvent::GuestReady,
        RunEvent::AgentStarted,
        RunEvent::PlanMade,
    ]
}

fn object(byte: u8) -> ObjectId {
    format!("{byte:02x}").repeat(20).parse().unwrap()
}

fn layers() -> Vec<LayerReport> {
    let status = LayerStatus::Enforced;
    Layer::ALL.into_iter().map(|layer| LayerReport { layer, status: status.clone() }).collect()
}

/// Every fact of a run that did everything right.
pub(crate) fn good_facts(mode: Mode) -> Vec<Fact> {
    vec![
        Fact::Armed { version: "0.1.0".into(), spec: spec(mode) },
        Fact::Snapshot {
            head: object(1),
            base: object(2),
            branch: None,
            uncommitted_paths: 0,
            bundle: Digest::of(b"bundle"),
            bundle_bytes: 1,
        },
        Fact::SandboxPrepared {
            engine: EngineKind::Native,
            engine_version: "6".into(),
            sandbox: "box".into(),
            hardening: Digest::of(b"hardening"),
            root: "host".into(),
            guest: Digest::of(b"guest"),
            read_back: layers(),
        },
        Fact::Posture { probe_claim: Probe::default(), layers: layers() },
        Fact::WorkspaceIn { head_claim: object(2) },
        Fact::AgentStarted { program: "builtin".into() },
        Fact::AgentEnded {
            code_claim: Some(0),
            signal_claim: None,
            report_claim: String::new(),
            output_cut_bytes: 0,
        },
        Fact::Collected {
            head_claim: None,
            commits_claim: 2,
            outcome: CollectOutcome::Fetched {
                reference: "refs/cofferdam/runs/x".into(),
                head: object(3),
                commits: 2,
                subjects: vec![],
                sides: vec![],
                side_commits: 0,
            },
            not_taken_claim: vec![],
        },
        Fact::SandboxEnded { exit: Some(0), oom_killed: false },
        Fact::Teardown { outcome: TeardownOutcome::Removed },
        Fact::Canary { found_in: vec![], searched: vec!["bundle".into()], unsearched: vec![] },
        Fact::Spent { spend: Spend::default() },
    ]
}
