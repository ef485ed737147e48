//! Authorities: what parses, to what, and what does not.

use cofferdam_policy::{Authority, AuthorityError};

fn canonical(text: &str) -> Result<String, AuthorityError> {
    Authority::parse(text).map(|authority| authority.to_string())
}

#[test]
fn one_host_has_one_spelling() {
    for (text, expect) in [
        ("example.com:443", "example.com:443"),
        ("EXAMPLE.com:443", "example.com:443"),
        ("example.com.:443", "example.com:443"),
        ("xn--bcher-kva.example:1", "xn--bcher-kva.example:1"),
        ("localhost:65535", "localhost:65535"),
        ("93.184.216.34:80", "93.184.216.34:80"),
        ("127-0-0-1.example:80", "127-0-0-1.example:80"),
        ("0177.example:80", "0177.example:80"),
        ("0x7f.example:80", "0x7f.example:80"),
        ("1.2.3.4.example:80", "1.2.3.4.example:80"),
        ("[2606:2800:220:1:0:0:0:1]:443", "[2606:2800:220:1::1]:443"),
        ("[::FFFF:7f00:1]:443", "[::ffff:127.0.0.1]:443"),
    ] {
        assert_eq!(canonical(text).as_deref(), Ok(expect), "{text}");
    }
}

#[test]
fn text_that_others_read_differently_is_refused() {
    use AuthorityError as E;
    for (text, expect) in [
        ("", E::MissingPort),
        (":443", E::EmptyHost),
        (".:443", E::EmptyHost),
        ("example.com", E::MissingPort),
        ("example.com:", E::BadPort),
        ("example.com:0", E::BadPort),
        ("example.com:0443", E::BadPort),
        ("example.com:+443", E::BadPort),
        ("example.com:65536", E::BadPort),
        ("example.com:4294967739", E::BadPort),
        ("example.com: 443", E::BadPort),
        ("example.com:443 ", E::BadPort),
        ("example.com:443/", E::BadPort),
        ("example.com:443:443", E::BadPort),
        ("example.com:٤٤٣", E::BadPort),
        ("user@example.com:443", E::BadByte),
        ("user:secret@example.com:443", E::BadPort),
        ("https://example.com:443", E::BadPort),
        ("example.com\0.ok.example:443", E::BadByte),
        ("example.com%00.ok.example:443", E::BadByte),
        ("example%2ecom:443", E::BadByte),
        ("evil.example\\.ok.example:443", E::BadByte),
        ("evil.example/.ok.example:443", E::BadByte),
        ("evil.example#.ok.example:443", E::BadByte),
        ("under_score.example:443", E::BadByte),
        ("*.example.com:443", E::BadByte),
        ("exam ple.com:443", E::BadByte),
        ("exam\tple.com:443", E::BadByte),
        ("bücher.example:443", E::BadByte),
        ("\u{212a}it.example:443", E::BadByte),
        ("example。com:443", E::BadByte),
        ("example..com:443", E::EmptyLabel),
        (".example.com:443", E::EmptyLabel),
        ("example.com..:443", E::EmptyLabel),
        ("-a.example:443", E::HyphenAtEdge),
        ("a-.example:443", E::HyphenAtEdge),
        ("0177.0.0.1:443", E::NumericSpelling),
        ("0x7f.0.0.1:443", E::NumericSpelling),
        ("0x5d.0xb8.0xd8.0x22:443", E::NumericSpelling),
        ("2130706433:443", E::NumericSpelling),
        ("0x7f000001:443", E::NumericSpelling),
        ("127.1:443", E::NumericSpelling),
        ("127.0.0.1.:443", E::NumericSpelling),
        ("127.0.0.256:443", E::NumericSpelling),
        ("127.0.0.01:443", E::NumericSpelling),
        ("1.2.3.4.5:443", E::NumericSpelling),
        ("example.0x:443", E::NumericSpelling),
        ("::1:443", E::BadPort),
        ("[::1:443", E::BadPort),
        ("[::1]443", E::MissingPort),
        ("[fe80::1%25eth0]:443", E::BadIpv6),
        ("[fe80::1%eth0]:443", E::BadIpv6),
        ("[v1.x]:443", E::BadIpv6),
        ("[127.0.0.1]:443", E::BadIpv6),
        ("[]:443", E::BadIpv6),
        ("[::1]x:443", E::BadIpv6),
    ] {
        assert_eq!(canonical(text), Err(expect), "{text:?}");
    }
}

#[test]
fn lengths_are_bounded_by_dns() {
    let label = "a".repeat(63);
    assert!(Authority::parse(&format!("{label}.example:443")).is_ok());
    assert_eq!(canonical(&format!("{label}a.example:443")), Err(AuthorityError::LabelTooLong));
    let name = format!("{label}.{label}.{label}.{}", "b".repeat(61));
    assert_eq!(name.len(), 253);
    assert!(Authority::parse(&format!("{name}:443")).is_ok());
    assert!(Authority::parse(&format!("{name}.:443")).is_ok());
    assert_eq!(canonical(&format!("{name}b:443")), Err(AuthorityError::NameTooLong));
}

#[test]
fn a_default_port_applies_only_where_none_is_written() {
    let parse = |text| Authority::parse_or(text, 80).map(|a| a.to_string());
    assert_eq!(parse("example.com").as_deref(), Ok("example.com:80"));
    assert_eq!(parse("example.com:8080").as_deref(), Ok("example.com:8080"));
    assert_eq!(parse("[::1]").as_deref(), Ok("[::1]:80"));
    assert_eq!(parse("example.com:"), Err(AuthorityError::BadPort));
}
