//! The table of addresses that may not be dialled, and its legal neighbours.

use std::net::IpAddr;

use cofferdam_policy::{Authority, EgressPolicy, Forbidden, RefusalCode, forbidden};

fn kind(address: &str) -> Option<Forbidden> {
    forbidden(address.parse().unwrap())
}

#[test]
fn special_ranges_are_forbidden_up_to_both_ends_and_no_further() {
    use Forbidden as F;
    for (address, expect) in [
        ("0.0.0.0", Some(F::Unspecified)),
        ("0.255.255.255", Some(F::Unspecified)),
        ("1.0.0.0", None),
        ("9.255.255.255", None),
        ("10.0.0.0", Some(F::Private)),
        ("10.255.255.255", Some(F::Private)),
        ("11.0.0.0", None),
        ("100.63.255.255", None),
        ("100.64.0.0", Some(F::CarrierNat)),
        ("100.127.255.255", Some(F::CarrierNat)),
        ("100.128.0.0", None),
        ("126.255.255.255", None),
        ("127.0.0.0", Some(F::Loopback)),
        ("127.255.255.255", Some(F::Loopback)),
        ("128.0.0.0", None),
        ("169.253.255.255", None),
        ("169.254.0.0", Some(F::LinkLocal)),
        ("169.254.169.254", Some(F::Metadata)),
        ("169.254.170.2", Some(F::Metadata)),
        ("169.254.255.255", Some(F::LinkLocal)),
        ("169.255.0.0", None),
        ("172.15.255.255", None),
        ("172.16.0.0", Some(F::Private)),
        ("172.31.255.255", Some(F::Private)),
        ("172.32.0.0", None),
        ("191.255.255.255", None),
        ("192.0.0.0", Some(F::Reserved)),
        ("192.0.0.192", Some(F::Metadata)),
        ("192.0.1.0", None),
        ("192.0.2.255", Some(F::Documentation)),
        ("192.0.3.0", None),
        ("192.88.99.1", Some(F::Reserved)),
        ("192.167.255.255", None),
        ("192.168.0.0", Some(F::Private)),
        ("192.168.255.255", Some(F::Private)),
        ("192.169.0.0", None),
        ("198.17.255.255", None),
        ("198.18.0.0", Some(F::Benchmark)),
        ("198.19.255.255", Some(F::Benchmark)),
        ("198.20.0.0", None),
        ("198.51.100.7", Some(F::Documentation)),
        ("198.51.101.0", None),
        ("203.0.113.7", Some(F::Documentation)),
        ("203.0.114.0", None),
        ("168.63.129.16", Some(F::Metadata)),
        ("168.63.129.17", None),
        ("100.100.100.200", Some(F::Metadata)),
        ("223.255.255.255", None),
        ("224.0.0.0", Some(F::Multicast)),
        ("239.255.255.255", Some(F::Multicast)),
        ("240.0.0.0", Some(F::Reserved)),
        ("255.255.255.254", Some(F::Reserved)),
        ("255.255.255.255", Some(F::Broadcast)),
        ("::", Some(F::Unspecified)),
        ("::1", Some(F::Loopback)),
        ("100::1", Some(F::Reserved)),
        ("1fff:ffff::1", Some(F::Reserved)),
        ("2000::1", None),
        ("2001:1ff:ffff::1", Some(F::Reserved)),
        ("2001:200::1", None),
        ("2001:2::1", Some(F::Benchmark)),
        ("2001:2:1::1", Some(F::Reserved)),
        ("2001:20::1", Some(F::Reserved)),
        ("2001:db7:ffff::1", None),
        ("2001:db8::1", Some(F::Documentation)),
        ("2001:db9::1", None),
        ("2606:2800:220:1:248:1893:25c8:1946", None),
        ("3ffe:ffff::1", None),
        ("3fff::1", Some(F::Documentation)),
        ("3fff:fff::1", Some(F::Documentation)),
        ("3fff:1000::1", None),
        ("4000::1", Some(F::Reserved)),
        ("5f00::1", Some(F::Reserved)),
        ("fbff::1", Some(F::Reserved)),
        ("fc00::1", Some(F::UniqueLocal)),
        ("fdff:ffff::1", Some(F::UniqueLocal)),
        ("fd00:ec2::254", Some(F::Metadata)),
        ("fd20:ce::254", Some(F::Metadata)),
        ("fe00::1", Some(F::Reserved)),
        ("fe80::1", Some(F::LinkLocal)),
        ("febf::1", Some(F::LinkLocal)),
        ("fec0::1", Some(F::SiteLocal)),
        ("feff::1", Some(F::SiteLocal)),
        ("ff02::1", Some(F::Multicast)),
        ("ffff::1", Some(F::Multicast)),
    ] {
        assert_eq!(kind(address), expect, "{address}");
    }
}

#[test]
fn ipv4_inside_ipv6_is_unwrapped_before_it_is_judged() {
    use Forbidden as F;
    for (address, expect) in [
        ("::ffff:127.0.0.1", Some(F::Loopback)),
        ("::ffff:10.0.0.5", Some(F::Private)),
        ("::ffff:93.184.216.34", None),
        ("::127.0.0.1", Some(F::Loopback)),
        ("::93.184.216.34", Some(F::Transition)),
        ("::ffff:0:10.0.0.5", Some(F::Private)),
        ("::ffff:0:5db8:d822", Some(F::Transition)),
        ("64:ff9b::a9fe:a9fe", Some(F::Metadata)),
        ("64:ff9b::7f00:1", Some(F::Loopback)),
        ("64:ff9b::5db8:d822", None),
        ("64:ff9b:1::5db8:d822", Some(F::Transition)),
        ("64:ff9b::1:5db8:d822", Some(F::Reserved)),
        ("2002:7f00:1::1", Some(F::Loopback)),
        ("2002:a00:5::", Some(F::Private)),
        ("2002:a9fe:a9fe::", Some(F::Metadata)),
        ("2002:5db8:d822::1", None),
        // Teredo: the client's 10.0.0.5 is stored inverted.
        ("2001:0:5db8:d822:0:0:f5ff:fffa", Some(F::Private)),
        ("2001:0:a00:5:0:0:a247:27dd", Some(F::Private)),
        ("2001:0:5db8:d822:0:0:a247:27dd", Some(F::Transition)),
        // ISATAP.
        ("2606:2800:220:1:0:5efe:a00:5", Some(F::Private)),
        ("2606:2800:220:1:200:5efe:5db8:d822", None),
    ] {
        assert_eq!(kind(address), expect, "{address}");
    }
}

fn vet(target: &str, answers: &[&str]) -> Result<Vec<String>, RefusalCode> {
    let policy = EgressPolicy::load(
        &["a.example:443".to_owned(), "93.184.216.34:443".to_owned(), "127.0.0.1:443".to_owned()],
        &[],
    )
    .unwrap();
    let permit = policy.decide(&Authority::parse(target).unwrap()).unwrap();
    let answers: Vec<IpAddr> = answers.iter().map(|a| a.parse().unwrap()).collect();
    permit
        .vet(&answers)
        .map(|permit| permit.addresses().iter().map(ToString::to_string).collect())
        .map_err(|refusal| refusal.kind)
}

#[test]
fn one_forbidden_answer_refuses_the_set() {
    assert_eq!(
        vet("a.example:443", &["93.184.216.34", "10.0.0.1"]),
        Err(RefusalCode::ForbiddenAddress)
    );
    assert_eq!(
        vet("a.example:443", &["10.0.0.1", "93.184.216.34"]),
        Err(RefusalCode::ForbiddenAddress)
    );
    let mut many = vec!["93.184.216.34"; 40];
    many.push("127.0.0.1");
    assert_eq!(vet("a.example:443", &many), Err(RefusalCode::ForbiddenAddress));
}

#[test]
fn vetted_answers_keep_their_order_without_repeats() {
    assert_eq!(
        vet(
            "a.example:443",
            &["151.101.1.69", "::ffff:93.184.216.34", "93.184.216.34", "2606:2800::1"]
        ),
        Ok(vec![
            "151.101.1.69:443".to_owned(),
            "93.184.216.34:443".to_owned(),
            "[2606:2800::1]:443".to_owned()
        ])
    );
    assert_eq!(vet("a.example:443", &[]), Err(RefusalCode::NoAddress));
}

#[test]
fn a_literal_stands_for_itself_and_still_passes_the_table() {
    assert_eq!(vet("93.184.216.34:443", &["8.8.8.8"]), Ok(vec!["93.184.216.34:443".to_owned()]));
    assert_eq!(vet("127.0.0.1:443", &["93.184.216.34"]), Err(RefusalCode::ForbiddenAddress));
}
