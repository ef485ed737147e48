//! Authorities: one spelling for one host, beside `http::uri::Authority` and the standard library.

use std::net::{IpAddr, SocketAddr};

use cofferdam_policy::authority::Name;
use cofferdam_policy::{Authority, Host, forbidden};

use crate::has_controls;

pub(crate) fn body(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let strict = Authority::parse(text);
    let lenient = Authority::parse_or(text, 80);
    if let Ok(strict) = &strict {
        assert_eq!(lenient.as_ref(), Ok(strict), "a written port is the port");
    }
    if let Ok(name) = Name::parse(text) {
        assert_eq!(Name::parse(name.as_str()).as_ref(), Ok(&name));
        assert!(name.as_str().parse::<IpAddr>().is_err(), "an address passes for a name");
        check_name(name.as_str());
    }
    let Ok(authority) = lenient else { return };
    let shown = authority.to_string();
    assert_eq!(Authority::parse(&shown).as_ref(), Ok(&authority), "the shown form means the same");
    assert!(!has_controls(&shown) && shown.is_ascii());
    assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:[]".contains(&b)), "{text:?}");
    assert!(authority.port() != 0 && shown.len() <= 253 + 6);
    assert_eq!(shown, shown.to_ascii_lowercase());

    // Others that read the text must come to the same place.
    if let Ok(reference) = text.parse::<http::uri::Authority>() {
        assert_eq!(reference.port_u16().unwrap_or(80), authority.port(), "{text:?}");
        if authority.host().literal().is_none_or(|address| address.is_ipv4()) {
            let host = reference.host().to_ascii_lowercase();
            assert_eq!(host.strip_suffix('.').unwrap_or(&host), authority.host().to_string());
        }
    }
    if let Ok(reference) = text.parse::<SocketAddr>() {
        assert_eq!(authority.host().literal(), Some(reference.ip()));
        assert_eq!(authority.port(), reference.port());
    }
    match authority.host() {
        Host::Name(name) => check_name(name.as_str()),
        Host::V4(address) => assert!(shown.starts_with(&address.to_string())),
        // An address that carries a forbidden one is as forbidden as that one.
        Host::V6(address) => {
            if let Some(inner) = address.to_ipv4_mapped() {
                assert_eq!(
                    forbidden(IpAddr::V6(*address)).is_some(),
                    forbidden(IpAddr::V4(inner)).is_some()
                );
            }
        }
    }
}

/// A name must not be what the C library takes for a number: `inet_aton` reads `127.1` and `0x7f.1`.
fn check_name(name: &str) {
    assert!(!name.is_empty() && name.len() <= 253);
    let numeric = |label: &str| {
        let hex = label.strip_prefix("0x");
        match hex {
            Some(digits) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
            None => label.bytes().all(|b| b.is_ascii_digit()),
        }
    };
    assert!(!name.split('.').all(numeric), "{name} may be read as an address");
    for label in name.split('.') {
        assert!(!label.is_empty() && label.len() <= 63);
        assert!(!label.starts_with('-') && !label.ends_with('-'));
    }
}
