//! Authorisation row by row, and the document that is made of the same rows.

use std::collections::BTreeSet;

use super::*;
use crate::access::{Access, Role};
use crate::routes;

fn concrete(path: &str) -> String {
    path.replace("{run}", "00000000")
        .replace("{task}", "tsk-00000000")
        .replace("{project}", "prj-00000000")
        .replace("{thread}", "thr-00000000")
        .replace("{schedule}", "sch-00000000")
}

#[tokio::test]
async fn every_route_refuses_whoever_its_row_does_not_admit() {
    let lab = Lab::new().await;
    let mut open = BTreeSet::new();
    for endpoint in routes::all() {
        let line = format!("{} {}", endpoint.method, concrete(endpoint.path));
        let nobody = lab.tcp(&line, &[lab.host_line(), JSON.to_owned()], "{}").await;
        let wrong = "Authorization: Bearer 0123".to_owned();
        let stranger = lab.tcp(&line, &[lab.host_line(), JSON.to_owned(), wrong], "{}").await;
        assert_eq!(stranger.status, 401, "{line}: a wrong token never passes");
        match endpoint.access {
            Access::Anyone => {
                open.insert(endpoint.id);
            }
            Access::AtLeast(_) => assert_eq!(nobody.code(), "API-001", "{line}"),
            Access::LocalSocket => {
                assert_eq!(nobody.code(), "API-001", "{line}");
                assert_eq!(lab.honest(&line, "{}").await.code(), "API-002", "{line}");
            }
        }
    }
    // A new route that needs no token has to be put here on purpose.
    assert_eq!(open, BTreeSet::from(["health", "new_session", "openapi", "page"]));
    lab.end().await;
}

#[test]
fn the_operators_token_never_decides() {
    let operator =
        crate::access::Principal { role: Role::Operator, via: crate::access::Via::Token };
    assert!(!Access::AtLeast(Role::Approver).admits(Some(operator)));
    assert!(Access::AtLeast(Role::Viewer).admits(Some(operator)));
    assert!(!Access::LocalSocket.admits(Some(operator)));
    assert!(!Access::AtLeast(Role::Viewer).admits(None));
}

#[test]
fn names_of_routes_are_unique() {
    let all = routes::all();
    let ids: BTreeSet<&str> = all.iter().map(|e| e.id).collect();
    let places: BTreeSet<(String, &str)> =
        all.iter().map(|e| (e.method.to_string(), e.path)).collect();
    assert_eq!((ids.len(), places.len()), (all.len(), all.len()));
}

/// All `$ref`s of a document.
fn references(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            if let Some(serde_json::Value::String(target)) = map.get("$ref") {
                found.push(target.clone());
            }
            map.values().for_each(|v| references(v, found));
        }
        serde_json::Value::Array(list) => list.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

#[test]
fn the_document_names_each_route_and_every_reference_leads_somewhere() {
    let document = crate::document();
    for endpoint in routes::all() {
        let method = endpoint.method.as_str().to_ascii_lowercase();
        let operation = &document["paths"][endpoint.path][&method];
        assert_eq!(operation["operationId"], endpoint.id);
        assert_eq!(operation["x-access"], endpoint.access.as_str());
    }
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 20);
    for target in found {
        let pointer = target.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{target} leads nowhere");
    }
    let query = document["paths"]["/api/v1/runs"]["get"]["parameters"].as_array().unwrap();
    assert!(query.iter().any(|p| p["name"] == "limit" && p["in"] == "query"), "{query:?}");
}

#[test]
fn the_committed_document_is_the_one_of_this_version() {
    let committed = include_str!("../../../../docs/schema/openapi-v1.json");
    let committed: serde_json::Value = serde_json::from_str(committed).unwrap();
    assert!(
        committed == crate::document(),
        "run: cargo run -q -p cofferdam-api --example openapi > docs/schema/openapi-v1.json"
    );
}
