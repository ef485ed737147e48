//! From refused targets to the shortest list of rules that a person can review.
//!
//! Exact rules, most asked first. A wildcard only stands for several names below one registrable
//! domain, as far down as those names agree, and never at or above a public suffix, where the names
//! below belong to strangers.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_policy::authority::Name;
use cofferdam_policy::{Authority, Forbidden, Host, RefusalCode, forbidden};
use serde::Serialize;

use super::Decision;

/// Different names under one registrable domain, and with one port, from which on one wildcard is
/// suggested instead of them.
pub const GROUP_FROM: usize = 3;

/// A target with how often it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// `host:port`.
    pub target: String,
    /// How often.
    pub count: u64,
}

/// One rule to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// The rule, as `--allow` takes it.
    pub rule: String,
    /// Refused attempts that it would have admitted.
    pub count: u64,
    /// What they asked for, most asked first.
    pub targets: Vec<Asked>,
    /// What to think about before it is taken over; absent for a plain host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A refused target for which no rule is suggested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// As recorded.
    pub target: String,
    /// How often.
    pub count: u64,
    /// Code of the refusal; empty when the record names none.
    pub code: String,
    /// Why there is no rule for it, and what there is instead.
    pub why: String,
}

/// What to look at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Suggestions {
    /// Rules, most asked first.
    pub rules: Vec<Suggestion>,
    /// Refused targets that no rule is suggested for, most asked first.
    pub left_out: Vec<LeftOut>,
}

/// Suggests rules for what was refused. `grouped`: several names may become one wildcard.
#[must_use]
pub fn suggest(decisions: &[Decision<'_>], grouped: bool) -> Suggestions {
    let mut wanted: BTreeMap<Authority, u64> = BTreeMap::new();
    let mut left_out: BTreeMap<(&str, &str), LeftOut> = BTreeMap::new();
    for decision in decisions.iter().filter(|decision| !decision.admitted) {
        match rule_for(decision) {
            Ok(authority) => *wanted.entry(authority).or_default() += 1,
            Err(why) => {
                let code = decision.code.map_or("", RefusalCode::as_str);
                left_out
                    .entry((decision.target, code))
                    .or_insert_with(|| LeftOut {
                        target: decision.target.to_owned(),
                        count: 0,
                        code: code.to_owned(),
                        why: why.to_owned(),
                    })
                    .count += 1;
            }
        }
    }
    let mut rules = if grouped { groups(&mut wanted) } else { Vec::new() };
    rules.extend(wanted.into_iter().map(|(authority, count)| exact(&authority, count)));
    rules.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.rule.cmp(&b.rule)));
    let mut left_out: Vec<LeftOut> = left_out.into_values().collect();
    left_out.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.target.cmp(&b.target)));
    Suggestions { rules, left_out }
}

/// The authority that a rule could name, or why none should.
fn rule_for(decision: &Decision<'_>) -> Result<Authority, &'static str> {
    match decision.code {
        Some(RefusalCode::NotAdmitted) => {}
        Some(code) => return Err(instead_of_a_rule(code)),
        None => return Err("the record does not say why it was refused"),
    }
    let Ok(authority) = Authority::parse(decision.target) else {
        return Err("the target cannot be read as host and port");
    };
    match authority.host() {
        Host::V6(_) => Err(instead_of_a_rule(RefusalCode::Ipv6Literal)),
        Host::V4(address) => match forbidden((*address).into()) {
            Some(Forbidden::Metadata) => Err(METADATA),
            Some(_) => Err(SERVICE),
            None => Ok(authority),
        },
        Host::Name(name) if is_local(name) => Err(SERVICE),
        Host::Name(_) => Ok(authority),
    }
}

const SERVICE: &str = "it leads into this machine or its own network, which no rule admits: give it a \
                       name under [services] in your configuration, and admit that name";
const METADATA: &str = "it is a cloud metadata address, which nothing admits";

/// Names that public DNS does not answer, or that resolvers answer with local addresses: special-use
/// names (RFC 6761, RFC 6762, RFC 8375, ICANN's reservation of `internal`) and bare labels.
fn is_local(name: &Name) -> bool {
    const LOCAL: [&str; 9] =
        ["localhost", "local", "internal", "intranet", "lan", "home", "corp", "private", "test"];
    let name = name.as_str();
    let Some((_, last)) = name.rsplit_once('.') else { return true };
    LOCAL.contains(&last) || name == "home.arpa" || name.ends_with(".home.arpa")
}

/// Why a rule would not help against that refusal.
fn instead_of_a_rule(code: RefusalCode) -> &'static str {
    use RefusalCode as Code;
    match code {
        Code::Denied => "a deny rule refuses it, and deny beats allow",
        Code::Malformed | Code::TooLarge | Code::HeaderTimeout | Code::BodyFraming => {
            "the request itself was refused; rules were not asked"
        }
        Code::Credential => "the request came without the run's token; rules were not asked",
        Code::Upgrade => "protocol upgrades over plain HTTP are not admitted: use TLS",
        Code::PlainOnTls => "plain HTTP to port 443 is not admitted: the client has to use https",
        Code::Gatewayed => "it is a host of the model gateway, which is the only way to it",
        Code::Ipv6Literal => "IPv6 addresses cannot be listed: use a host name",
        Code::TooManyStreams => "there were too many connections at once; rules were not asked",
        Code::ForbiddenAddress => {
            "a rule admits the name, but it leads to an address that nothing is sent to; a service of \
             your own gets a name under [services] in your configuration"
        }
        Code::NoAddress | Code::LookupFailed => "a rule admits it; its name had no address",
        Code::DialFailed => "a rule admits it; the host did not accept the connection",
        Code::SniMismatch | Code::NotTls => {
            "a rule admits it; what was sent through the tunnel is not TLS for that host"
        }
        Code::BadUpstream => "a rule admits it; the host's answer could not be relayed",
        Code::NotAdmitted => "no rule admits it",
    }
}

fn exact(authority: &Authority, count: u64) -> Suggestion {
    let note = match authority.host() {
        Host::Name(_) if authority.port() == 80 => {
            Some("plain HTTP: what is sent can be read and changed on the way".to_owned())
        }
        Host::Name(_) if authority.port() != 443 => {
            Some("only on port 443 does the door check that a tunnel carries TLS".to_owned())
        }
        Host::Name(_) => None,
        Host::V4(_) | Host::V6(_) => {
            Some("an address, not a name: whoever has it tomorrow is admitted too".to_owned())
        }
    };
    let target = authority.to_string();
    Suggestion { rule: target.clone(), count, targets: vec![Asked { target, count }], note }
}

/// Takes names that agree on a registrable domain and a port out of `wanted`, as wildcards.
fn groups(wanted: &mut BTreeMap<Authority, u64>) -> Vec<Suggestion> {
    let mut families: BTreeMap<(String, u16), BTreeSet<Authority>> = BTreeMap::new();
    for authority in wanted.keys() {
        if let Some(domain) = authority.host().name().and_then(registrable) {
            families.entry((domain, authority.port())).or_default().insert(authority.clone());
        }
    }
    let mut rules = Vec::new();
    for ((domain, port), family) in families {
        // A wildcard never matches the bare suffix, so that keeps a rule of its own.
        let Some(suffix) = shared_suffix(&family, &domain) else { continue };
        let below: Vec<&Authority> = family
            .iter()
            .filter(|authority| authority.host().name().is_some_and(|name| name.is_below(&suffix)))
            .collect();
        if below.len() < GROUP_FROM {
            continue;
        }
        let mut targets: Vec<Asked> = below
            .iter()
            .map(|authority| Asked {
                target: authority.to_string(),
                count: wanted.remove(*authority).unwrap_or(0),
            })
            .collect();
        targets.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.target.cmp(&b.target)));
        rules.push(Suggestion {
            rule: format!("*.{suffix}:{port}"),
            count: targets.iter().map(|asked| asked.count).sum(),
            note: Some(format!(
                "instead of {} names; admits every other name below {suffix} as well",
                targets.len()
            )),
            targets,
        });
    }
    rules
}

/// The domain that somebody registered: one label below a public suffix, those of hosting services
/// included, where each customer is a stranger to the next.
fn registrable(name: &Name) -> Option<String> {
    psl::domain_str(name.as_str()).map(str::to_owned)
}

/// The longest suffix of whole labels that all names of a family share and that is the registrable
/// domain or lies below it. It may be one of the names, which then is not below it; the bare domain
/// does not pull it up.
fn shared_suffix(family: &BTreeSet<Authority>, domain: &str) -> Option<Name> {
    let mut shared: Option<Vec<&str>> = None;
    for name in family.iter().filter_map(|authority| authority.host().name()) {
        if name.as_str() == domain {
            continue;
        }
        let labels: Vec<&str> = name.as_str().rsplit('.').collect();
        let common = match shared {
            None => labels,
            Some(before) => {
                before.into_iter().zip(labels).take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
            }
        };
        shared = Some(common);
    }
    let mut labels = shared?;
    labels.reverse();
    let suffix = labels.join(".");
    let fits = suffix == domain || suffix.ends_with(&format!(".{domain}"));
    fits.then(|| Name::parse(&suffix).ok()).flatten()
}
