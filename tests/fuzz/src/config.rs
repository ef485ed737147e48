//! The operator's configuration. It is trusted, and mistyped: what loads makes sense in every part,
//! and opens no address that nothing may open.

use std::net::IpAddr;

use cofferdam_daemon::config::{
    Config, parse_bytes, parse_duration_ms, parse_micro_usd, resolve_model,
};
use cofferdam_policy::{Authority, EgressPolicy, Forbidden, Services, forbidden};

pub(crate) fn body(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let config = match Config::parse(text, "config.toml") {
        Ok(config) => config,
        Err(error) => {
            assert!(matches!(error.code(), "CONFIG-001" | "CONFIG-002"));
            return assert!(!error.to_string().is_empty());
        }
    };
    let resources = config.resources().expect("checked at load");
    assert!(resources.memory_bytes >= 64 << 20 && resources.tmp_bytes >= 1 << 20);
    assert!(resources.pids >= 16 && resources.cpu_millis >= 50);
    let budgets = config.budgets().expect("checked at load");
    assert!(budgets.wall_clock_ms > 0 && budgets.tokens > 0 && budgets.model_calls > 0);
    config.salvage_ms().expect("checked at load");
    EgressPolicy::load(&config.egress.allow, &config.egress.deny).expect("checked at load");
    let services = Services::load(config.services.clone()).expect("checked at load");
    for name in services.names() {
        let authority = Authority::parse(&format!("{name}:443")).expect("a name is a host");
        let address = services.address_of(&authority).expect("it was just named");
        assert_ne!(forbidden(address.ip()), Some(Forbidden::Metadata));
        assert!(!matches!(address.ip(), IpAddr::V4(v4) if v4.is_link_local() || v4.is_multicast()));
    }
    if let Some(wish) = &config.run.model {
        resolve_model(&config.providers, Some(wish), &|_| false).expect("checked at load");
    }
    let units: Vec<&String> =
        [&config.run.memory, &config.run.tmp, &config.run.output].into_iter().flatten().collect();
    for unit in units {
        parse_bytes(unit).expect("checked at load");
    }
    if let Some(money) = &config.run.money {
        assert!(parse_micro_usd(money).expect("checked at load") > 0);
    }
    if let Some(time) = &config.run.wall_clock {
        assert!(parse_duration_ms(time).expect("checked at load") > 0);
    }
}
