//! Egress rules: `host:port` or `*.suffix:port`, deny over allow, nothing by default.
//!
//! A list is loaded whole or not at all. A policy is immutable: nothing that happens during a run
//! can widen it.

use std::fmt;

use crate::authority::{Authority, AuthorityError, Host, Name};
use crate::permit::NamePermit;
use crate::refusal::{Refusal, RefusalCode};

/// Most rules in one list. A longer list is refused at load.
pub const MAX_RULES: usize = 1000;

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    pattern: Pattern,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Pattern {
    Exact(Host),
    /// Any name below this one; never the name itself.
    Below(Name),
}

/// Why a list was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A rule is wrong.
    #[error("{list} rule {position} ({rule:?}): {problem}")]
    Invalid {
        /// `allow` or `deny`.
        list: &'static str,
        /// Position in the list, from 1.
        position: usize,
        /// The rule as written, cut at 300 characters.
        rule: String,
        /// What is wrong with it.
        problem: RuleProblem,
    },
    /// A list is too long.
    #[error("the {list} list has {count} rules; the most is {MAX_RULES}")]
    TooMany {
        /// `allow` or `deny`.
        list: &'static str,
        /// How many there are.
        count: usize,
    },
}

/// What is wrong with one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// Host or port are malformed.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// `*.com:443`.
    #[error("the suffix of a wildcard must contain a dot")]
    SuffixTooShort,
    /// A star anywhere but as the whole first label.
    #[error("a star stands only at the front, as in *.example.com:443")]
    MisplacedStar,
    /// IPv6 literals cannot be listed.
    #[error("IPv6 addresses cannot be listed; use a host name")]
    Ipv6Literal,
}

impl Rule {
    /// Parses one rule.
    ///
    /// # Errors
    /// [`RuleProblem`] for anything but `host:port` and `*.suffix:port`.
    pub fn parse(text: &str) -> Result<Self, RuleProblem> {
        let (below, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if rest.contains('*') {
            return Err(RuleProblem::MisplacedStar);
        }
        let authority = Authority::parse(rest)?;
        let port = authority.port();
        let pattern = match (below, authority.host()) {
            (_, Host::V6(_)) => return Err(RuleProblem::Ipv6Literal),
            (true, Host::V4(_)) => {
                return Err(RuleProblem::Authority(AuthorityError::NumericSpelling));
            }
            (true, Host::Name(name)) if !name.as_str().contains('.') => {
                return Err(RuleProblem::SuffixTooShort);
            }
            (true, Host::Name(name)) => Pattern::Below(name.clone()),
            (false, host @ (Host::Name(_) | Host::V4(_))) => Pattern::Exact(host.clone()),
        };
        Ok(Self { pattern, port })
    }

    /// The port that it names.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// True when the rule names this authority.
    #[must_use]
    pub fn matches(&self, authority: &Authority) -> bool {
        self.port == authority.port()
            && match &self.pattern {
                Pattern::Exact(host) => host == authority.host(),
                Pattern::Below(suffix) => {
                    authority.host().name().is_some_and(|name| name.is_below(suffix))
                }
            }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pattern {
            Pattern::Exact(host) => write!(f, "{host}:{}", self.port),
            Pattern::Below(suffix) => write!(f, "*.{suffix}:{}", self.port),
        }
    }
}

/// What a run may reach. The default admits nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressPolicy {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

impl EgressPolicy {
    /// Loads both lists, or neither.
    ///
    /// # Errors
    /// [`RuleError`] naming the first invalid rule.
    pub fn load(allow: &[String], deny: &[String]) -> Result<Self, RuleError> {
        Ok(Self { allow: load_list("allow", allow)?, deny: load_list("deny", deny)? })
    }

    /// Decides by text alone: nothing was looked up yet, and for a refused name nothing will be.
    ///
    /// # Errors
    /// [`RefusalCode::Denied`], [`RefusalCode::Ipv6Literal`] or [`RefusalCode::NotAdmitted`].
    pub fn decide(&self, authority: &Authority) -> Result<NamePermit, Refusal> {
        if let Some(rule) = self.deny.iter().find(|rule| rule.matches(authority)) {
            return Err(Refusal::new(RefusalCode::Denied, format!("denied by {rule}")));
        }
        if let Host::V6(_) = authority.host() {
            return Err(Refusal::new(RefusalCode::Ipv6Literal, "IPv6 literals cannot be listed"));
        }
        match self.allow.iter().find(|rule| rule.matches(authority)) {
            Some(rule) => Ok(NamePermit::new(authority.clone(), rule.clone())),
            None => Err(Refusal::new(RefusalCode::NotAdmitted, "no rule admits it")),
        }
    }

    /// The allow rules in canonical form, in order.
    pub fn allow(&self) -> impl Iterator<Item = &Rule> {
        self.allow.iter()
    }

    /// The deny rules in canonical form, in order.
    pub fn deny(&self) -> impl Iterator<Item = &Rule> {
        self.deny.iter()
    }
}

fn load_list(list: &'static str, texts: &[String]) -> Result<Vec<Rule>, RuleError> {
    if texts.len() > MAX_RULES {
        return Err(RuleError::TooMany { list, count: texts.len() });
    }
    texts
        .iter()
        .enumerate()
        .map(|(index, text)| {
            Rule::parse(text).map_err(|problem| RuleError::Invalid {
                list,
                position: index + 1,
                rule: text.chars().take(300).collect(),
                problem,
            })
        })
        .collect()
}
