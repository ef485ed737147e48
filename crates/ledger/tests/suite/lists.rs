//! What people ask the store: prefixes, lists, derived columns.

use cofferdam_ledger::{LedgerError, ListFilter, NewRun};
use cofferdam_run::fact::Fact;
use cofferdam_run::limits::Spend;
use cofferdam_run::spec::Mode;
use cofferdam_run::{Outcome, RunId, StateName};

use super::fixtures::{at, new_run, run_id, spec};
use super::{AnyStore, claimed, collected};

async fn arm(store: &AnyStore, id: &str) -> RunId {
    let id: RunId = id.parse().unwrap();
    let new = NewRun { id: id.clone(), ..new_run(0, Mode::Unattended) };
    store.create_run(new).await.unwrap();
    id
}

pub(crate) async fn a_prefix_names_one_run_or_says_why_not(store: AnyStore) {
    let first = arm(&store, "7k2m9qxc").await;
    let second = arm(&store, "7k3m9qxc").await;
    assert_eq!(store.resolve_prefix("7k2").await.unwrap(), first);
    assert_eq!(store.resolve_prefix("7K3M9QXC").await.unwrap(), second);
    let error = store.resolve_prefix("7k").await.unwrap_err();
    let LedgerError::Ambiguous { candidates, .. } = &error else { panic!("{error:?}") };
    assert_eq!(candidates, &["7k3m9qxc", "7k2m9qxc"]);
    assert_eq!(error.code(), "LEDGER-007");
    for unknown in ["9", "", "%", "7k2m9qxcc", "7k_", "7k2'; --", "é"] {
        assert_eq!(store.resolve_prefix(unknown).await.unwrap_err().code(), "LEDGER-006");
    }
    for n in 0..6 {
        arm(&store, &format!("zz0000{n}0")).await;
    }
    let error = store.resolve_prefix("zz").await.unwrap_err();
    assert!(error.to_string().ends_with("zz000010, …"), "{error}");
}

pub(crate) async fn lists_are_newest_first_and_filtered(store: AnyStore) {
    for n in 1..=4 {
        store.create_run(new_run(n, Mode::Unattended)).await.unwrap();
    }
    let (_, _) = claimed(&store, 5, Mode::Supervised).await;
    let _ = store.request_cancel(&run_id(2), "ada", at(1)).await.unwrap();
    let mut elsewhere = new_run(6, Mode::Unattended);
    elsewhere.spec.checkout = "/home/ada/other".into();
    store.create_run(elsewhere).await.unwrap();

    let ids = |filter: ListFilter, limit| {
        let store = store.clone();
        async move {
            let rows = store.list(filter, limit).await.unwrap();
            rows.into_iter().map(|r| r.id).collect::<Vec<_>>()
        }
    };
    let all = ids(ListFilter::default(), 100).await;
    assert_eq!(all, [6, 5, 4, 3, 2, 1].map(run_id));
    assert_eq!(ids(ListFilter::default(), 2).await, [6, 5].map(run_id));
    let live = ListFilter { live_only: true, ..Default::default() };
    assert_eq!(ids(live, 100).await, [6, 5, 4, 3, 1].map(run_id));
    let states = vec![StateName::Preparing, StateName::Cancelled];
    let some = ListFilter { states, ..Default::default() };
    assert_eq!(ids(some, 100).await, [5, 2].map(run_id));
    let here = ListFilter { checkout: Some("/home/ada/other".into()), ..Default::default() };
    assert_eq!(ids(here, 100).await, [6].map(run_id));
}

pub(crate) async fn a_list_shows_what_the_run_brought(store: AnyStore) {
    let (id, epoch) = collected(&store, 1).await;
    let _ = store.settle(&id, epoch, at(4)).await.unwrap();
    let row = store.list(ListFilter::default(), 1).await.unwrap().remove(0);
    assert_eq!(row.title, "task 1");
    assert_eq!(row.checkout, spec(Mode::Unattended).checkout);
    assert_eq!(row.state, StateName::Completed);
    assert_eq!(row.commits, Some(2));
    assert_eq!(row.reference.as_deref(), Some("refs/cofferdam/runs/x"));
    assert_eq!(row.verdict.unwrap().outcome, Outcome::Completed);
    assert!(!row.cancel_requested);
}

pub(crate) async fn spend_adds_up_while_the_run_goes_on(store: AnyStore) {
    let (id, lease) = claimed(&store, 1, Mode::Unattended).await;
    let call = |tokens, usd, refusal: Option<&str>| Fact::ModelCall {
        request: "POST /v1/messages".into(),
        model: "m".into(),
        status: 200,
        refusal: refusal.map(str::to_owned),
        usage: Spend { input_tokens: tokens, micro_usd: usd, ..Default::default() },
        bytes_out: 1,
        bytes_in: 1,
        retry_after_ms: None,
    };
    for fact in
        [call(10, None, None), call(5, Some(7), None), call(99, Some(99), Some("MODEL-001"))]
    {
        let _ = store.append_fact(&id, lease.epoch, at(1), fact).await.unwrap();
    }
    let row = store.list(ListFilter::default(), 1).await.unwrap().remove(0);
    assert_eq!((row.spend.tokens(), row.spend.micro_usd, row.spend.model_calls), (15, Some(7), 2));
    let spend = Spend { input_tokens: 16, micro_usd: Some(8), ..Default::default() };
    let _ = store.append_fact(&id, lease.epoch, at(2), Fact::Spent { spend: spend.clone() }).await;
    let row = store.list(ListFilter::default(), 1).await.unwrap().remove(0);
    assert_eq!(row.spend, spend);
}

pub(crate) async fn the_instance_id_stays(store: AnyStore) {
    assert_eq!(store.instance_id().await.unwrap(), store.instance_id().await.unwrap());
}
