//! Properties of the policy under arbitrary input.

use cofferdam_policy::{Authority, EgressPolicy, RefusalCode, Rule, forbidden};
use proptest::prelude::*;

fn label() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9]([a-zA-Z0-9-]{0,10}[a-zA-Z0-9])?"
}

fn authority_text() -> impl Strategy<Value = String> {
    let name = (prop::collection::vec(label(), 1..6), "[a-zA-Z]{2,8}", prop::bool::ANY).prop_map(
        |(labels, last, dot)| format!("{}.{last}{}", labels.join("."), if dot { "." } else { "" }),
    );
    let v4 = any::<std::net::Ipv4Addr>().prop_map(|a| a.to_string());
    let v6 = any::<std::net::Ipv6Addr>().prop_map(|a| format!("[{a}]"));
    (prop_oneof![name, v4, v6], 1u16..).prop_map(|(host, port)| format!("{host}:{port}"))
}

proptest! {
    #[test]
    fn a_printed_authority_reads_back_as_itself(text in authority_text()) {
        let authority = Authority::parse(&text).unwrap();
        let printed = authority.to_string();
        prop_assert_eq!(Authority::parse(&printed).unwrap(), authority.clone());
        prop_assert_eq!(Authority::parse_or(&printed, 80).unwrap(), authority);
    }

    #[test]
    fn any_text_is_parsed_without_panic_and_only_canonical_text_survives(text in ".{0,80}") {
        if let Ok(authority) = Authority::parse(&text) {
            let printed = authority.to_string();
            prop_assert!(printed.is_ascii());
            prop_assert_eq!(Authority::parse(&printed).unwrap(), authority);
        }
        let _ = Rule::parse(&text);
    }

    #[test]
    fn a_rule_admits_what_it_spells(text in authority_text()) {
        let authority = Authority::parse(&text).unwrap();
        if let Ok(rule) = Rule::parse(&text) {
            prop_assert!(rule.matches(&authority));
            prop_assert_eq!(Rule::parse(&rule.to_string()).unwrap(), rule);
        }
    }

    #[test]
    fn deny_survives_whatever_else_is_listed(
        target in authority_text(),
        others in prop::collection::vec(authority_text(), 0..8),
        allow_target in prop::bool::ANY,
        deny_at in 0usize..8,
    ) {
        prop_assume!(!target.starts_with('['));
        let others: Vec<String> = others.into_iter().filter(|o| !o.starts_with('[')).collect();
        let mut allow = others.clone();
        if allow_target {
            allow.insert(0, target.clone());
        }
        let mut deny = others;
        deny.insert(deny_at.min(deny.len()), target.clone());
        let policy = EgressPolicy::load(&allow, &deny).unwrap();
        let authority = Authority::parse(&target).unwrap();
        prop_assert_eq!(policy.decide(&authority).unwrap_err().kind, RefusalCode::Denied);
    }

    #[test]
    fn no_wrapping_opens_a_forbidden_ipv4_address(address in any::<std::net::Ipv4Addr>()) {
        prop_assume!(forbidden(address.into()).is_some());
        let [a, b, c, d] = address.octets();
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        for segments in [
            [0, 0, 0, 0, 0, 0xffff, high, low],
            [0, 0, 0, 0, 0, 0, high, low],
            [0x64, 0xff9b, 0, 0, 0, 0, high, low],
            [0x64, 0xff9b, 1, 0, 0, 0, high, low],
            [0x2002, high, low, 0, 0, 0, 0, 1],
            [0x2001, 0, high, low, 0, 0, 0xa247, 0x27dd],
            [0x2001, 0, 0x5db8, 0xd822, 0, 0, !high, !low],
            [0x2606, 0x2800, 0, 1, 0, 0x5efe, high, low],
        ] {
            prop_assert!(forbidden(std::net::Ipv6Addr::from(segments).into()).is_some());
        }
    }
}
