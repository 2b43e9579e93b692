//! The options of the command.

use taskrun::clock::SystemRandom;
use taskrun_journal::time::random_u64;

/// Kills and runs of a round where nobody says how many: about a minute.
const KILLS_DEFAULT: usize = 30;
const RUNS_DEFAULT: usize = 40;
/// Kills while the policy changes, beside those.
const CLOSURE_KILLS_DEFAULT: usize = 8;
const DELIVERY_KILLS_DEFAULT: usize = 3;
const ROUNDS_KILLS_DEFAULT: usize = 4;

pub(crate) struct Options {
    /// Kills in all.
    pub(crate) kills: usize,
    /// Runs of a round, at least.
    pub(crate) runs: usize,
    /// Kills while the policy changes and components are removed.
    pub(crate) closures: usize,
    /// Kills under a conversation with background runs.
    pub(crate) deliveries: usize,
    /// Kills under runs that go on by themselves for many rounds.
    pub(crate) rounds: usize,
    /// The hosts that die in calls of tools of the host: one in each, or none if it is 0.
    pub(crate) tools: usize,
    /// True if programs of other makers use the store all the time.
    pub(crate) foreign: bool,
    /// Decides when and where is killed, and what the runs do.
    pub(crate) seed: u64,
}

pub(crate) enum Asked {
    ToRun(Options),
    /// The names of the tests, for the program that starts them.
    ToList,
    /// Only tests of another name are wanted.
    ForOthers,
}

impl Asked {
    /// Reads the command line. What the usual test harness understands and this one does not is
    /// passed over, as `cargo test` gives it to every test.
    ///
    /// # Errors
    /// The fault, in words.
    pub(crate) fn read(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options {
            kills: KILLS_DEFAULT,
            runs: RUNS_DEFAULT,
            closures: CLOSURE_KILLS_DEFAULT,
            deliveries: DELIVERY_KILLS_DEFAULT,
            rounds: ROUNDS_KILLS_DEFAULT,
            tools: 1,
            foreign: false,
            seed: random_u64(&SystemRandom),
        };
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let mut number = || {
                let value = args.next().ok_or_else(|| format!("{arg} needs a number"))?;
                value.parse::<u64>().map_err(|_| format!("{arg}: {value:?} is not a number"))
            };
            match arg.as_str() {
                "--kills" => options.kills = count(number()?)?,
                "--runs" => options.runs = count(number()?)?,
                "--closures" => options.closures = count(number()?)?,
                "--deliveries" => options.deliveries = count(number()?)?,
                "--rounds" => options.rounds = count(number()?)?,
                "--tools" => options.tools = count(number()?)?,
                "--foreign" => options.foreign = true,
                "--seed" => options.seed = number()?,
                "--list" => return Ok(Self::ToList),
                "--test-threads" | "--color" | "--format" => drop(args.next()),
                flag if flag.starts_with('-') => {}
                name if crate::NAME.contains(name) => {}
                _ => return Ok(Self::ForOthers),
            }
        }
        Ok(Self::ToRun(options))
    }
}

fn count(number: u64) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| format!("{number} is too much"))
}
