//! Local services: the one way to a private address.

use std::collections::BTreeMap;

use cofferdam_policy::{Authority, EgressPolicy, Route, ServiceError, Services};

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn route(services: &Services, rule: &str, target: &str) -> Option<String> {
    let policy = EgressPolicy::load(&[rule.to_owned()], &[]).unwrap();
    let permit = policy.decide(&Authority::parse(target).unwrap()).unwrap();
    match services.route(permit) {
        Route::Service(permit) => Some(permit.addresses()[0].to_string()),
        Route::Lookup(_) => None,
    }
}

#[test]
fn a_service_leads_to_its_configured_address_only() {
    let services = Services::load(map(&[
        ("Model.internal.", "127.0.0.1:11434"),
        ("db.internal", "10.1.2.3"),
        ("six.internal", "[::1]:9000"),
    ]))
    .unwrap();
    let at = |rule: &str, target: &str| route(&services, rule, target);
    assert_eq!(at("model.internal:80", "MODEL.internal:80").as_deref(), Some("127.0.0.1:11434"));
    assert_eq!(at("db.internal:5432", "db.internal:5432").as_deref(), Some("10.1.2.3:5432"));
    assert_eq!(at("six.internal:80", "six.internal:80").as_deref(), Some("[::1]:9000"));
    assert_eq!(at("*.model.internal:80", "a.model.internal:80"), None);
    assert_eq!(at("other.internal:80", "other.internal:80"), None);
    assert_eq!(at("127.0.0.1:11434", "127.0.0.1:11434"), None);
}

#[test]
fn a_rule_must_still_admit_a_service() {
    let policy = EgressPolicy::load(&["*.internal.example:80".to_owned()], &[]).unwrap();
    assert!(policy.decide(&Authority::parse("model.internal:80").unwrap()).is_err());
}

#[test]
fn a_wrong_service_is_named_at_load() {
    let load = |name: &str, address: &str| Services::load(map(&[(name, address)]));
    assert!(matches!(load("*.internal", "127.0.0.1"), Err(ServiceError::Name { .. })));
    assert!(matches!(load("127.0.0.1", "127.0.0.1"), Err(ServiceError::Name { .. })));
    assert!(matches!(load("a.internal:80", "127.0.0.1"), Err(ServiceError::Name { .. })));
    for address in ["localhost:80", "127.1:80", "127.0.0.1:0", "", "[fe80::1%1]:80", "db.example"] {
        assert!(
            matches!(load("a.internal", address), Err(ServiceError::Address { .. })),
            "{address}"
        );
    }
    for address in
        ["169.254.169.254:80", "0.0.0.0:80", "::", "224.0.0.1", "[fd00:ec2::254]:80", "fe80::1"]
    {
        assert!(
            matches!(load("a.internal", address), Err(ServiceError::Forbidden { .. })),
            "{address}"
        );
    }
    assert!(matches!(
        Services::load(map(&[("a.internal", "127.0.0.1"), ("A.internal", "10.0.0.1")])),
        Err(ServiceError::Twice { .. })
    ));
}
