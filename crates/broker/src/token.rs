//! The per-run tokens that the guest's proxy clients show: one of the agent's, one of its shell's.
//!
//! They separate the run's own clients from whatever else reaches a loopback door inside the
//! sandbox, and tell agent and shell apart. They are no credentials of the host, yet they are treated
//! as such: compared in constant time, never printed.

use std::fmt;

use cofferdam_run::spec::Principal;
use subtle::ConstantTimeEq as _;

use crate::secret::Secret;

/// User name that goes with a token in proxy Basic authentication.
pub const TOKEN_USER: &str = "run";

/// One token.
#[derive(Clone)]
pub struct RunToken(Secret);

impl RunToken {
    /// Wraps a token that was minted elsewhere. An empty token matches nothing.
    #[must_use]
    pub fn new(token: Secret) -> Self {
        Self(token)
    }

    /// Mints a token from sixteen random bytes: 32 lower-case hex characters.
    #[must_use]
    pub fn from_entropy(bytes: [u8; 16]) -> Self {
        Self(Secret::new(hex::encode(bytes)))
    }

    /// True when `candidate` is the token. Takes the same time for each candidate of one length.
    #[must_use]
    pub fn matches(&self, candidate: &[u8]) -> bool {
        let own = self.0.expose().as_bytes();
        !own.is_empty() && bool::from(own.ct_eq(candidate))
    }

    /// The token as text, to hand to the run's own client.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl fmt::Debug for RunToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunToken(..)")
    }
}

/// How the shell of a run gets to the egress door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellWay {
    /// Not at all: its token is refused at every door.
    Closed,
    /// Through the agent's door: they share a network namespace.
    Shared,
    /// Through a door of its own, and only there.
    Own,
}

/// The tokens of one run, and which door each opens.
#[derive(Debug, Clone)]
pub struct Tokens {
    agent: RunToken,
    shell: Option<(RunToken, ShellWay)>,
}

impl Tokens {
    /// Of a run without a shell of its own: there is one principal.
    #[must_use]
    pub fn one(agent: RunToken) -> Self {
        Self { agent, shell: None }
    }

    /// Of a run whose shell has its own token.
    #[must_use]
    pub fn two(agent: RunToken, shell: RunToken, way: ShellWay) -> Self {
        Self { agent, shell: Some((shell, way)) }
    }

    /// The agent's.
    #[must_use]
    pub fn agent(&self) -> &RunToken {
        &self.agent
    }

    /// The shell's, unless it has none that would open anything.
    #[must_use]
    pub fn shell(&self) -> Option<&RunToken> {
        self.shell.as_ref().filter(|(_, way)| *way != ShellWay::Closed).map(|(token, _)| token)
    }

    /// Whose token `candidate` is. Both are compared whatever the first comparison says.
    pub(crate) fn owner(&self, candidate: &[u8]) -> Option<Principal> {
        let agent = self.agent.matches(candidate);
        let shell = self.shell.as_ref().is_some_and(|(token, _)| token.matches(candidate));
        match (agent, shell) {
            (true, _) => Some(Principal::Agent),
            (false, true) => Some(Principal::Shell),
            (false, false) => None,
        }
    }

    /// Why the token of `owner` opens nothing at the door of `door`; `None` when it does.
    pub(crate) fn refusal(&self, owner: Principal, door: Principal) -> Option<&'static str> {
        let way = self.shell.as_ref().map(|(_, way)| *way);
        match (owner, door, way) {
            (Principal::Agent, Principal::Agent, _)
            | (Principal::Shell, Principal::Shell, Some(ShellWay::Own))
            | (Principal::Shell, Principal::Agent, Some(ShellWay::Shared)) => None,
            (Principal::Agent, Principal::Shell, _) => {
                Some("the agent's token at the shell's door")
            }
            (Principal::Shell, _, Some(ShellWay::Closed)) => {
                Some("the shell of this run has no network")
            }
            (Principal::Shell, Principal::Agent, _) => {
                Some("the shell's token at the agent's door")
            }
            (Principal::Shell, Principal::Shell, _) => Some("the shell of this run has no door"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_matches() {
        let token = RunToken::from_entropy([7; 16]);
        let text = token.expose().to_owned();
        assert!(token.matches(text.as_bytes()));
        assert!(!token.matches(&text.as_bytes()[..31]));
        assert!(!token.matches(format!("{text}0").as_bytes()));
        assert!(!token.matches(text.to_uppercase().as_bytes()) || text == text.to_uppercase());
        assert!(!token.matches(b""));
    }

    #[test]
    fn an_empty_token_admits_nobody() {
        assert!(!RunToken::new(Secret::new(String::new())).matches(b""));
    }

    #[test]
    fn each_token_opens_its_own_door_and_no_other() {
        use Principal::{Agent, Shell};
        let (agent, shell) = (RunToken::from_entropy([1; 16]), RunToken::from_entropy([2; 16]));
        let of = |way| Tokens::two(agent.clone(), shell.clone(), way);
        let one = Tokens::one(agent.clone());
        assert_eq!(one.owner(shell.expose().as_bytes()), None);
        for (tokens, shell_opens) in [
            (one, [false, false]),
            (of(ShellWay::Closed), [false, false]),
            (of(ShellWay::Shared), [true, false]),
            (of(ShellWay::Own), [false, true]),
        ] {
            assert_eq!(tokens.owner(agent.expose().as_bytes()), Some(Agent));
            assert!(tokens.refusal(Agent, Agent).is_none());
            assert!(tokens.refusal(Agent, Shell).is_some());
            let opens = [Agent, Shell].map(|door| tokens.refusal(Shell, door).is_none());
            assert_eq!(opens, shell_opens, "{tokens:?}");
            assert_eq!(tokens.shell().is_some(), shell_opens.contains(&true));
        }
        assert_eq!(of(ShellWay::Closed).owner(shell.expose().as_bytes()), Some(Shell));
    }
}
