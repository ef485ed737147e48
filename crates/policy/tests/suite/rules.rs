//! Rules: what loads, what matches, what a deny rule beats.

use cofferdam_policy::{Authority, EgressPolicy, RefusalCode, Rule, RuleError, Stage};

fn list(rules: &[&str]) -> Vec<String> {
    rules.iter().map(|rule| (*rule).to_owned()).collect()
}

fn decide(allow: &[&str], deny: &[&str], target: &str) -> Result<String, RefusalCode> {
    let policy = EgressPolicy::load(&list(allow), &list(deny)).unwrap();
    policy
        .decide(&Authority::parse(target).unwrap())
        .map(|permit| permit.rule().to_string())
        .map_err(|refusal| refusal.kind)
}

#[test]
fn a_rule_admits_its_own_host_and_port_only() {
    let allow = ["example.com:443", "93.184.216.34:443"];
    assert_eq!(decide(&allow, &[], "Example.COM.:443").as_deref(), Ok("example.com:443"));
    assert_eq!(decide(&allow, &[], "93.184.216.34:443").as_deref(), Ok("93.184.216.34:443"));
    for target in [
        "notexample.com:443",
        "example.com.evil.example:443",
        "a.example.com:443",
        "example.com:80",
        "com:443",
        "93.184.216.35:443",
        "localhost:443",
    ] {
        assert_eq!(decide(&allow, &[], target), Err(RefusalCode::NotAdmitted), "{target}");
    }
}

#[test]
fn a_wildcard_stops_at_label_boundaries_and_spares_the_bare_suffix() {
    let allow = ["*.P08.Example:443"];
    for target in ["a.p08.example:443", "a.b.c.p08.example:443", "X.P08.EXAMPLE.:443"] {
        assert_eq!(decide(&allow, &[], target).as_deref(), Ok("*.p08.example:443"), "{target}");
    }
    for target in
        ["p08.example:443", "p08.example.:443", "xp08.example:443", "a.p08.example.net:443"]
    {
        assert_eq!(decide(&allow, &[], target), Err(RefusalCode::NotAdmitted), "{target}");
    }
}

#[test]
fn deny_beats_allow_on_the_canonical_name() {
    let deny = ["bad.p97.example:443"];
    let allow = ["*.p97.example:443", "bad.p97.example:443", "*.p97.example:8443"];
    assert_eq!(decide(&allow, &deny, "BAD.p97.example.:443"), Err(RefusalCode::Denied));
    assert!(decide(&allow, &deny, "good.p97.example:443").is_ok());
    assert!(decide(&allow, &deny, "bad.p97.example:8443").is_ok());
    assert_eq!(
        decide(&["a.b.example:443"], &["*.b.example:443"], "a.b.example:443"),
        Err(RefusalCode::Denied)
    );
}

#[test]
fn nothing_is_admitted_by_default() {
    assert_eq!(decide(&[], &[], "example.com:443"), Err(RefusalCode::NotAdmitted));
    let authority = Authority::parse("example.com:443").unwrap();
    let refusal = EgressPolicy::default().decide(&authority).unwrap_err();
    assert_eq!((refusal.code, refusal.status, refusal.stage), ("EGRESS-020", 403, Stage::Policy));
}

#[test]
fn ipv6_literals_are_refused_by_text() {
    assert_eq!(
        decide(&["a.example:443"], &[], "[2606:2800::1]:443"),
        Err(RefusalCode::Ipv6Literal)
    );
}

#[test]
fn one_invalid_rule_rejects_the_list_and_is_named() {
    for rule in [
        "",
        "example.com",
        "example.com:0",
        "*:443",
        "*.com:443",
        "*.:443",
        "*",
        "*.example.*:443",
        "a*.example.com:443",
        "**.example.com:443",
        "*.*.example.com:443",
        "müller.example:443",
        "https://example.com:443",
        "example.com:443/path",
        "example.com:*",
        " example.com:443",
        "example.com:443 ",
        "[2606:2800::1]:443",
        "*.[::1]:443",
        "*.93.184.216.34:443",
        "*.168.1:443",
        "0177.0.0.1:443",
        "127.1:443",
        "example.com:443,b.example:443",
    ] {
        let lists = list(&["fine.example:443", rule]);
        let RuleError::Invalid { list: name, position, rule: named, .. } =
            EgressPolicy::load(&lists, &[]).unwrap_err()
        else {
            panic!("{rule:?} was refused for its number");
        };
        assert_eq!((name, position, named.as_str()), ("allow", 2, rule));
        assert!(EgressPolicy::load(&[], &lists).is_err(), "deny {rule:?}");
    }
}

#[test]
fn an_endless_list_is_refused() {
    let rules = vec!["example.com:443".to_owned(); 1001];
    assert!(matches!(
        EgressPolicy::load(&rules, &[]),
        Err(RuleError::TooMany { list: "allow", count: 1001 })
    ));
    assert!(EgressPolicy::load(&rules[1..], &[]).is_ok());
}

#[test]
fn a_rule_prints_in_its_canonical_form() {
    assert_eq!(Rule::parse("*.Example.COM.:443").unwrap().to_string(), "*.example.com:443");
    assert_eq!(Rule::parse("A.example:80").unwrap().to_string(), "a.example:80");
}

#[test]
fn codes_are_unique_and_read_back() {
    for code in RefusalCode::ALL {
        assert_eq!(RefusalCode::parse(code.as_str()), Some(*code));
        assert!(code.as_str().starts_with("EGRESS-0"));
    }
}
