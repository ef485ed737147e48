//! The facts of a run that did everything right.

use cofferdam_run::fact::{CollectOutcome, Fact, TeardownOutcome};
use cofferdam_run::limits::Spend;
use cofferdam_run::posture::{Layer, LayerReport, LayerStatus, Probe};
use cofferdam_run::spec::{AgentSpec, Mode, Resources, RunSpec};
use cofferdam_run::{Budgets, Digest, EngineKind, ObjectId};

/// A specification of an agent that plans.
pub(super) fn spec(mode: Mode, task: &str) -> RunSpec {
    RunSpec {
        task: task.to_owned(),
        mode,
        agent: AgentSpec::Builtin { max_steps: 50 },
        model: None,
        engine: EngineKind::Native,
        resources: Resources::default(),
        budgets: Budgets::default(),
        egress_allow: vec![],
        egress_deny: vec![],
        checkout: "/work".into(),
        accept_degraded: vec![],
        credentials: vec![],
        env_names: vec![],
        gateway_opened: vec![],
        shell: Default::default(),
        services: vec![],
        egress_test: false,
    }
}

fn object(byte: u8) -> Option<ObjectId> {
    format!("{byte:02x}").repeat(20).parse().ok()
}

fn layers() -> Vec<LayerReport> {
    let status = LayerStatus::Enforced;
    Layer::ALL.into_iter().map(|layer| LayerReport { layer, status: status.clone() }).collect()
}

/// A call to the model as the gateway tells it.
pub(super) fn call(tokens: u64, status: u16, retry_after_ms: Option<u64>) -> Fact {
    Fact::ModelCall {
        request: "POST /v1/messages".into(),
        model: "m".into(),
        status,
        refusal: None,
        usage: Spend { input_tokens: tokens, model_calls: 1, ..Spend::default() },
        bytes_out: 1,
        bytes_in: 1,
        retry_after_ms,
    }
}

/// Everything up to the end of the agent.
pub(super) fn lived(spec: &RunSpec, sandbox: &str, code: i32) -> Vec<Fact> {
    let (Some(head), Some(base)) = (object(1), object(2)) else { return Vec::new() };
    vec![
        Fact::Armed { version: "simulated".into(), spec: spec.clone() },
        Fact::Snapshot {
            head,
            base: base.clone(),
            branch: None,
            uncommitted_paths: 0,
            bundle: Digest::of(b"bundle"),
            bundle_bytes: 1,
        },
        Fact::SandboxPrepared {
            engine: EngineKind::Native,
            engine_version: "6".into(),
            sandbox: sandbox.to_owned(),
            hardening: Digest::of(b"hardening"),
            root: "host".into(),
            guest: Digest::of(b"guest"),
            read_back: layers(),
        },
        Fact::Posture { probe_claim: Probe::default(), layers: layers() },
        Fact::WorkspaceIn { head_claim: base },
        Fact::AgentStarted { program: "builtin".into() },
        Fact::AgentEnded {
            code_claim: Some(code),
            signal_claim: None,
            report_claim: String::new(),
            output_cut_bytes: 0,
        },
        Fact::Collected {
            head_claim: None,
            commits_claim: 0,
            outcome: CollectOutcome::NoCommits,
            not_taken_claim: vec![],
        },
        Fact::SandboxEnded { exit: Some(0), oom_killed: false },
        Fact::Canary { found_in: vec![], searched: vec!["bundle".into()], unsearched: vec![] },
    ]
}

/// The sandbox was removed, and the engine was asked again.
pub(super) fn removed() -> Fact {
    Fact::Teardown { outcome: TeardownOutcome::Removed }
}
