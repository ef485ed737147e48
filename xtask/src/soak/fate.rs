//! What each run does and how it ends: chosen by the seed alone, so that a find can be repeated.

/// How a run ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ending {
    /// By itself.
    Itself,
    /// The person cancels it.
    Cancel { after_ms: u64 },
    /// The host process is killed.
    Kill { after_ms: u64 },
}

/// What its agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    /// Commits and ends.
    Commit,
    /// Commits and goes on for a while.
    CommitAndWait,
    /// Leaves a file uncommitted.
    Leave,
    /// Leaves children that hold its output open.
    Children,
    /// Fails.
    Fail,
    /// Ignores a polite end.
    Stubborn,
    /// Commits something large, so that bringing it out takes a while.
    Large,
    /// Makes a branch beside its head.
    Side,
}

const DEEDS: [Deed; 8] = [
    Deed::Commit,
    Deed::CommitAndWait,
    Deed::Leave,
    Deed::Children,
    Deed::Fail,
    Deed::Stubborn,
    Deed::Large,
    Deed::Side,
];

/// Latest moment of a kill or cancel after the start. Most runs are over by then.
const LATEST_MS: u64 = 1_600;

/// One run's fate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fate {
    pub(super) deed: Deed,
    pub(super) ending: Ending,
    pub(super) wall_clock: &'static str,
}

impl Fate {
    pub(super) fn of(seed: u64, number: u32, kill: bool) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9) ^ (u64::from(number) << 17));
        let deed = DEEDS[usize::try_from(random.below(DEEDS.len() as u64)).unwrap_or(0)];
        let after_ms = random.below(LATEST_MS);
        let ending = match random.below(10) {
            0..=6 if kill => Ending::Kill { after_ms },
            7 => Ending::Cancel { after_ms },
            _ => Ending::Itself,
        };
        let wall_clock = if deed == Deed::Stubborn { "4s" } else { "60s" };
        Self { deed, ending, wall_clock }
    }

    /// The agent. Its beginning names the run in lists, and it says so when its work is committed.
    pub(super) fn script(&self, number: u32) -> String {
        let commit = format!(
            "echo {number} > work-{number}.txt && git add work-{number}.txt && git commit -q -m 'work {number}' && echo COMMITTED"
        );
        let body = match self.deed {
            Deed::Commit => commit,
            Deed::CommitAndWait => format!("{commit}; sleep 1"),
            Deed::Leave => format!("echo {number} > left-{number}.txt"),
            Deed::Children => {
                format!("for i in 1 2 3 4 5; do setsid sleep 300 & done; {commit}")
            }
            Deed::Fail => format!("{commit}; exit 3"),
            Deed::Stubborn => format!("trap '' TERM; {commit}; sleep 60"),
            Deed::Large => {
                format!("head -c 20000000 /dev/urandom > big.bin; git add big.bin; {commit}")
            }
            Deed::Side => format!("git checkout -q -b side && {commit} && git checkout -q -"),
        };
        format!(": soak-{number} {:?}; {body}", self.deed)
    }

    /// A run of this kind that ends well has at least one commit.
    pub(super) fn has_commits(&self) -> bool {
        match self.deed {
            Deed::Commit
            | Deed::CommitAndWait
            | Deed::Leave
            | Deed::Children
            | Deed::Fail
            | Deed::Stubborn
            | Deed::Large
            | Deed::Side => true,
        }
    }
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
