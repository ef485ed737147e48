//! Egress rules beside a matcher on plain text: deny beats allow, a wildcard is for names below it,
//! and one more deny rule never opens anything.
//!
//! Lines: `+RULE` allows, `-RULE` denies, everything else is asked for.

use cofferdam_policy::{Authority, EgressPolicy, RefusalCode, Rule};

use crate::has_controls;

pub(crate) fn body(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (mut allow, mut deny, mut asked) = (Vec::new(), Vec::new(), Vec::new());
    for line in text.lines().take(64) {
        match line.as_bytes().first() {
            Some(b'+') => allow.push(line[1..].to_owned()),
            Some(b'-') => deny.push(line[1..].to_owned()),
            _ => asked.extend(Authority::parse(line)),
        }
    }
    let every: Vec<String> = allow.iter().chain(&deny).cloned().collect();
    let each_parses = every.iter().all(|rule| Rule::parse(rule).is_ok());
    let loaded = EgressPolicy::load(&allow, &deny);
    assert_eq!(loaded.is_ok(), each_parses, "a list is loaded whole or not at all");
    for rule in every.iter().filter_map(|rule| Rule::parse(rule).ok()) {
        let shown = rule.to_string();
        assert_eq!(Rule::parse(&shown).as_ref(), Ok(&rule), "the shown form means the same");
        assert!(!has_controls(&shown));
        // The name of a wildcard itself is a favourite mistake, so it is always asked for.
        let apex = shown.strip_prefix("*.").unwrap_or(&shown);
        asked.extend(Authority::parse(apex));
        asked.extend(Authority::parse(&format!("x.{apex}")));
        asked.extend(Authority::parse(&format!("x{apex}")));
    }
    let Ok(policy) = loaded else { return };
    for authority in asked {
        let name = authority.to_string();
        let denied = policy.deny().any(|rule| matches(&rule.to_string(), &name));
        let allowed = policy.allow().any(|rule| matches(&rule.to_string(), &name));
        match policy.decide(&authority) {
            Ok(permit) => {
                assert!(allowed && !denied, "{name} is admitted by no rule, or though denied");
                assert_eq!(permit.authority(), &authority);
                assert!(!name.starts_with('['), "an IPv6 address is admitted");
            }
            Err(refusal) => {
                assert_eq!(refusal.kind == RefusalCode::Denied, denied, "{name}");
                assert!(denied || !allowed || name.starts_with('['), "{name} is refused");
            }
        }
        // One more deny rule: shut before, shut after; and what it names is shut.
        let mut more = deny.clone();
        more.push(name.clone());
        if let Ok(stricter) = EgressPolicy::load(&allow, &more) {
            assert!(stricter.decide(&authority).is_err(), "{name} is denied and admitted");
        }
        let nothing = EgressPolicy::load(&[], &deny).expect("loaded before");
        assert!(nothing.decide(&authority).is_err(), "the default is to refuse");
    }
}

/// The rule and the authority as text, both canonical.
fn matches(rule: &str, authority: &str) -> bool {
    match rule.strip_prefix('*') {
        Some(suffix) => {
            authority.len() > suffix.len()
                && authority.ends_with(suffix)
                && !authority.starts_with('[')
        }
        None => rule == authority,
    }
}
