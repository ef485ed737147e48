//! Who did something: a person, an agent, a trigger, the host itself.
//!
//! An agent can never decide: [`Decider`] is made from a person's name and from nothing else.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{RunId, ScheduleId};

/// Characters of a person's or a source's name. A longer one is refused.
pub const MAX_ACTOR_CHARS: usize = 200;

/// Who did something, in storage and output `kind:name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Actor {
    /// A person, by the name under which the daemon knows them.
    Person(String),
    /// The agent of a run.
    Agent(RunId),
    /// A schedule that fired.
    Schedule(ScheduleId),
    /// A webhook's source.
    Webhook(String),
    /// Cofferdam by itself: a clock, a retry, a reconciliation.
    Host,
}

/// Text that names nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names nobody: a kind, a colon and a short name on one line are needed")]
pub struct InvalidActor {
    /// The text, cut at 80 characters.
    pub text: String,
}

fn is_name(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= MAX_ACTOR_CHARS
        && !text.chars().any(char::is_control)
}

impl FromStr for Actor {
    type Err = InvalidActor;
    fn from_str(text: &str) -> Result<Self, InvalidActor> {
        let invalid = || InvalidActor { text: text.chars().take(80).collect() };
        if text == "host" {
            return Ok(Self::Host);
        }
        let (kind, name) = text.split_once(':').ok_or_else(invalid)?;
        match kind {
            "person" if is_name(name) => Ok(Self::Person(name.to_owned())),
            "webhook" if is_name(name) => Ok(Self::Webhook(name.to_owned())),
            "agent" => name.parse().map(Self::Agent).map_err(|_| invalid()),
            "schedule" => name.parse().map(Self::Schedule).map_err(|_| invalid()),
            _ => Err(invalid()),
        }
    }
}

impl TryFrom<String> for Actor {
    type Error = InvalidActor;
    fn try_from(text: String) -> Result<Self, InvalidActor> {
        text.parse()
    }
}

impl From<Actor> for String {
    fn from(actor: Actor) -> Self {
        actor.to_string()
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Person(name) => write!(f, "person:{name}"),
            Self::Agent(run) => write!(f, "agent:{run}"),
            Self::Schedule(id) => write!(f, "schedule:{id}"),
            Self::Webhook(source) => write!(f, "webhook:{source}"),
            Self::Host => f.write_str("host"),
        }
    }
}

/// Somebody who may decide: a person. Whether this person has the role is the daemon's to ask
/// before it makes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Decider(String);

impl Decider {
    /// The person of that name.
    ///
    /// # Errors
    /// When the name is empty, too long or not one line.
    pub fn person(name: &str) -> Result<Self, InvalidActor> {
        if is_name(name) {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidActor { text: name.chars().take(80).collect() })
        }
    }

    /// The person as an actor.
    #[must_use]
    pub fn actor(&self) -> Actor {
        Actor::Person(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_survives_storage() {
        for text in
            ["person:ada", "agent:7k2m9qxc", "schedule:sch-7k2m9qxc", "webhook:github", "host"]
        {
            assert_eq!(text.parse::<Actor>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn text_that_names_nobody_is_refused() {
        let long = format!("person:{}", "x".repeat(201));
        for text in
            ["", "ada", "person:", "person: ", "person:a\nb", "agent:ada", "root:ada", &long]
        {
            text.parse::<Actor>().unwrap_err();
        }
        Decider::person("a\u{7}").unwrap_err();
    }
}
