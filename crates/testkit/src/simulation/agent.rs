//! Agents that follow a script made up beforehand.

use super::random::Random;

/// One thing that an agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Calls the model for so many tokens.
    Call(u64),
    /// Says something.
    Say,
    /// Asks before it deletes a file.
    Ask,
    /// Hands something down.
    Delegate,
    /// Uses up a budget.
    UseUp,
    /// Its provider asks for patience, and it gives up.
    RateLimited,
    /// Its sandbox dies.
    Die,
    /// Ends with this code.
    End(i32),
}

/// What an agent will do. The end is always the last.
pub(super) fn script(random: &mut Random, delegates: bool) -> Vec<Act> {
    let mut script = Vec::new();
    for _ in 0..1 + random.below(4) {
        script.push(match random.below(20) {
            0..4 => Act::Call(1_000 + random.below(20_000)),
            4..7 => Act::Say,
            7..14 => Act::Ask,
            14..16 if delegates => Act::Delegate,
            16 => Act::UseUp,
            17 => Act::Die,
            18 => Act::RateLimited,
            _ => Act::Say,
        });
    }
    script.push(if random.chance(850) { Act::End(0) } else { Act::End(1) });
    script
}
