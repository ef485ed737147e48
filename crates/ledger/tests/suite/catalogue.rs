//! Projects, threads and profiles.

use cofferdam_ledger::store::catalogue::{ProjectChange, Stored};
use cofferdam_ledger::store::work::{Page, TaskFilter};
use cofferdam_run::limits::Budgets;
use cofferdam_run::project::{AgentProfile, Named, PolicyProfile, Project, Switches};
use cofferdam_run::spec::{AgentSpec, Mode, Resources};
use cofferdam_run::{AgentId, PolicyId, ProjectId};

use super::AnyStore;
use super::fixtures::at;
use super::tasks::{created, new_task, project, thread};

pub(crate) async fn names_and_checkouts_are_given_once(store: AnyStore) {
    let id = project(&store, 1, Switches::default()).await;
    let found = store.project(&id).await.unwrap();
    assert_eq!(store.project_at("/home/ada/1").await.unwrap(), Some(found.clone()));
    let twin = Project { id: ProjectId::from_entropy([2; 5]), ..found.clone() };
    let taken = store.create_project(twin.clone()).await.unwrap();
    assert_eq!(taken, Stored::Taken { what: "name" });
    let twin = Project { name: "other".into(), ..twin };
    let taken = store.create_project(twin.clone()).await.unwrap();
    assert_eq!(taken, Stored::Taken { what: "checkout" });
    // An archived one gives both free.
    let archive = ProjectChange { archive: Some(at(5)), ..Default::default() };
    let Stored::Done(old) = store.change_project(&id, archive).await.unwrap() else { panic!() };
    assert_eq!(old.archived_at, Some(at(5)));
    assert!(matches!(store.create_project(twin).await.unwrap(), Stored::Done(_)));
    let nameless = Project {
        id: ProjectId::from_entropy([3; 5]),
        name: String::new(),
        checkout: "/elsewhere".into(),
        ..found
    };
    assert_eq!(store.create_project(nameless).await.unwrap_err().code(), "LEDGER-010");
    let thread = thread(&store, None).await;
    assert_eq!(store.thread(&thread).await.unwrap().closed_at, None);
    store.close_thread(&thread, at(7)).await.unwrap();
    assert_eq!(store.close_thread(&thread, at(9)).await.unwrap().closed_at, Some(at(7)));
    let unknown = store.project(&ProjectId::from_entropy([9; 5])).await.unwrap_err();
    assert_eq!(unknown.code(), "LEDGER-013");
}

pub(crate) async fn profiles_count_their_versions(store: AnyStore) {
    let body = AgentProfile {
        agent: AgentSpec::Builtin { max_steps: 9 },
        model: None,
        resources: Resources::default(),
        budgets: Budgets::default(),
        max_parallel: Some(2),
    };
    let id = AgentId::from_entropy([1; 5]);
    let named = |name: &str| Named {
        id: id.clone(),
        name: name.into(),
        version: 0,
        body: body.clone(),
        updated_at: at(1),
    };
    let Stored::Done(one) = store.put_agent(named("fixer"), 0).await.unwrap() else { panic!() };
    assert_eq!(one.version, 1);
    let Stored::Done(two) = store.put_agent(named("mender"), 1).await.unwrap() else { panic!() };
    assert_eq!((two.version, two.name.as_str()), (2, "mender"));
    // Whoever read the first version does not overwrite the second.
    let stale = store.put_agent(named("x"), 1).await.unwrap();
    assert_eq!(stale, Stored::Changed { version: 2 });
    assert_eq!(store.agent(&id).await.unwrap(), two);
    let other = Named { id: AgentId::from_entropy([2; 5]), ..named("mender") };
    assert_eq!(store.put_agent(other, 0).await.unwrap(), Stored::Taken { what: "name" });
    assert_eq!(store.agents(Page::default()).await.unwrap().items, [two]);
    let policy = Named {
        id: PolicyId::from_entropy([1; 5]),
        // Agents and policies do not share names.
        name: "mender".into(),
        version: 0,
        body: PolicyProfile::default(),
        updated_at: at(1),
    };
    let Stored::Done(policy) = store.put_policy(policy, 0).await.unwrap() else { panic!() };
    assert_eq!(store.policy(&policy.id).await.unwrap(), policy);
    assert_eq!(store.policies(Page::default()).await.unwrap().items.len(), 1);
}

pub(crate) async fn lists_are_paged(store: AnyStore) {
    for n in 0..25 {
        created(&store, new_task(n, Mode::Unattended)).await;
    }
    let (mut before, mut titles) = (None, Vec::new());
    loop {
        let page = Page { before, limit: 10 };
        let tasks = store.tasks(TaskFilter::default(), page).await.unwrap();
        titles.extend(tasks.items.into_iter().map(|t| t.title));
        // What is made meanwhile does not move the rest.
        let n = u32::try_from(titles.len()).unwrap();
        created(&store, new_task(1_000 + n, Mode::Unattended)).await;
        match tasks.next {
            Some(next) => before = Some(next),
            None => break,
        }
    }
    let expected: Vec<_> = (0..25).rev().map(|n| format!("task {n}")).collect();
    assert_eq!(titles, expected);
    let roots = TaskFilter { roots_only: true, states: vec!["open".into()], ..Default::default() };
    assert_eq!(store.tasks(roots, Page::default()).await.unwrap().items.len(), 28);
    assert_eq!(store.threads(None, Page::default()).await.unwrap().items, []);
    assert_eq!(store.projects(Page::default()).await.unwrap().next, None);
}
