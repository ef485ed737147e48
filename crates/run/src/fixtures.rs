//! Values for this room's tests: one run that did everything right.

use crate::engine::EngineKind;
use crate::fact::{CollectOutcome, Fact, TeardownOutcome};
use crate::ids::{Digest, ObjectId, RunId, TimestampMs};
use crate::limits::{Budgets, Spend};
use crate::posture::{Layer, LayerReport, LayerStatus, Probe};
use crate::spec::{AgentSpec, Dialect, Mode, ModelSpec, Resources, RunSpec};
use crate::state::Lease;

pub(crate) const REFERENCE: &str = "refs/cofferdam/runs/7k2m9qxc";

pub(crate) fn run_id() -> RunId {
    "7k2m9qxc".parse().unwrap()
}

pub(crate) fn object(byte: u8) -> ObjectId {
    format!("{byte:02x}").repeat(20).parse().unwrap()
}

pub(crate) fn spec(mode: Mode) -> RunSpec {
    RunSpec {
        task: "make the test pass".into(),
        mode,
        agent: AgentSpec::Builtin { max_steps: 50 },
        model: Some(ModelSpec {
            provider: "anthropic".into(),
            dialect: Dialect::Anthropic,
            model: "a-model".into(),
            base_url: "https://api.example".into(),
        }),
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
        egress_test: true,
    }
}

pub(crate) fn layers(status: &LayerStatus) -> Vec<LayerReport> {
    Layer::ALL.into_iter().map(|layer| LayerReport { layer, status: status.clone() }).collect()
}

pub(crate) fn good_facts(mode: Mode) -> Vec<Fact> {
    vec![
        Fact::Armed { version: "0.1.0".into(), spec: spec(mode) },
        Fact::Snapshot {
            head: object(1),
            base: object(2),
            branch: Some("main".into()),
            uncommitted_paths: 3,
            bundle: Digest::of(b"bundle"),
            bundle_bytes: 1000,
        },
        Fact::SandboxPrepared {
            engine: EngineKind::Native,
            engine_version: "6.1".into(),
            sandbox: "cofferdam-7k2m9qxc".into(),
            hardening: Digest::of(b"hardening"),
            root: "host".into(),
            guest: Digest::of(b"guest"),
            read_back: layers(&LayerStatus::Enforced),
        },
        Fact::Posture { probe_claim: Probe::default(), layers: layers(&LayerStatus::Enforced) },
        Fact::EgressTest {
            target: "denied.invalid:443".into(),
            refused: true,
            status_claim: Some(403),
            open_claim: vec![],
        },
        Fact::WorkspaceIn { head_claim: object(2) },
        Fact::AgentStarted { program: "builtin".into() },
        Fact::AgentEnded {
            code_claim: Some(0),
            signal_claim: None,
            report_claim: "done".into(),
            output_cut_bytes: 0,
        },
        Fact::Collected {
            head_claim: Some(object(3)),
            commits_claim: 2,
            outcome: CollectOutcome::Fetched {
                reference: REFERENCE.into(),
                head: object(3),
                commits: 2,
                subjects: vec!["fix".into(), "test".into()],
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

pub(crate) fn lease(epoch: u64, expires: u64) -> Lease {
    Lease { owner: "pid 1".into(), epoch, expires_at: TimestampMs(expires) }
}
