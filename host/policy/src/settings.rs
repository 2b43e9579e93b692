//! Settings of an agent that are neither rules nor limits: what it does when something fails.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskrun_journal::answers::Answers;
use taskrun_journal::autonomy::{AutonomyMode, DoneTool, ROUNDS_DEFAULT};

use crate::beat_times::BeatTimes;

/// The consequence of a tool call that failed as fields are missing
/// ([`RetryReason::MissingFields`](taskrun_journal::message::RetryReason::MissingFields)), whether
/// the host or the tool says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingFields {
    /// The planner sees the failure, and decides.
    #[default]
    Resume,
    /// A person is asked for them, in the words of the failure's hint; the answer becomes a message
    /// of the user, and then the planner decides.
    AwaitClarification,
    /// The planner is asked for its last word.
    Finalize,
}

/// The form of their agent that runs have whose agent has changed since they were accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upgrade {
    /// That which they were accepted with, until somebody adopts them.
    #[default]
    Pinned,
    /// That of now, from the next time on at which a host takes them up and neither a step nor a
    /// call of them is under way.
    Adopt,
}

/// The settings of an agent's runs that go on by themselves, asked to or started by another run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutonomySettings {
    /// The condition under which an answer ends them; `None` for standing ones at the top of their
    /// trees and bounded ones beneath others.
    pub mode: Option<AutonomyMode>,
    /// Most rounds; `None` is no bound.
    pub rounds: Option<u32>,
    /// The prompt of every round but the first, where one is stated.
    pub continuation: Option<String>,
    /// The schema of the result that they have to give, as JSON.
    pub result_schema: Option<String>,
    /// The tool by which they say that they are done, where anything of it is stated.
    pub done: Option<DoneTool>,
    /// The states that they may say they are in; any, if there are none here.
    pub states: Vec<String>,
    /// The longest time for which they may put their next round off; zero if they may not put any
    /// off. `None` for [`DEFER_DEFAULT`](taskrun_journal::autonomy::DEFER_DEFAULT) where they are
    /// standing, and for none where they are bounded.
    pub max_defer: Option<Duration>,
    /// The one who answers what they ask, where the request does not say; `None` for nobody.
    pub answers: Option<Answers>,
}

impl Default for AutonomySettings {
    fn default() -> Self {
        Self {
            mode: None,
            rounds: Some(ROUNDS_DEFAULT),
            continuation: None,
            result_schema: None,
            done: None,
            states: Vec::new(),
            max_defer: None,
            answers: None,
        }
    }
}

/// The settings of tasks that an agent's runs delegate into rooms of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelegationSettings {
    /// The channels of the run that a room has where the call names none, each once. At most
    /// [`CHANNELS_MAX`](taskrun_journal::channel::CHANNELS_MAX).
    pub share_channels: Vec<String>,
    /// The time for which the result of a task is given again to who delegates the same, from
    /// [`REUSE_WITHIN_MIN`] to [`REUSE_WITHIN_MAX`]. Default: each task is worked on.
    pub reuse_within: Option<Duration>,
    /// True if one task is worked on at a time of those that are delegated in one conversation.
    pub serial: bool,
}

/// The shortest time for which a result is given again.
pub const REUSE_WITHIN_MIN: Duration = Duration::from_secs(1);
/// The longest such time: what is older than a day is asked for again.
pub const REUSE_WITHIN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// When an agent works on the entries that wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The times of its ticks.
    pub times: BeatTimes,
    /// The text before the entries in the task of a batch; the host says something general if it
    /// is `None`.
    pub prompt: Option<String>,
}

/// The further attempts at something that failed in a way that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts in all, the first one included; at least 1.
    pub attempts: u32,
    /// Pause before the second one; each further pause is twice as long, and up to a quarter is
    /// taken off by chance, so that those who failed together do not come again together.
    pub pause: Duration,
    /// The next thing when all attempts failed.
    pub then: RetryExhaustion,
}

impl Default for Retry {
    /// Three attempts, one second, then the run fails.
    fn default() -> Self {
        Self { attempts: 3, pause: Duration::from_secs(1), then: RetryExhaustion::default() }
    }
}

/// The failures of a plan step after which it is tried again, by their words: the codes of errors
/// that the agent returns, [`Self::UNCODED`] for those without a code, and `deadline`, `memory`,
/// `unavailable`, `stack`, `limit`, `trap`, `contract` and `internal` for steps that the host
/// aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryOn(Arc<[String]>);

impl RetryOn {
    /// The word for errors without a code.
    pub const UNCODED: &str = "uncoded";

    /// These words.
    pub fn new<W: Into<String>>(words: impl IntoIterator<Item = W>) -> Self {
        let words: BTreeSet<String> = words.into_iter().map(Into::into).collect();
        Self(words.into_iter().collect())
    }

    /// True if a failure of this word is among them.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        self.0.iter().any(|one| one == word)
    }

    /// The words, in order.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.0
    }
}

impl Default for RetryOn {
    /// A thing that may pass: a failure of the host, and where the agent says that what it needs was not to
    /// be had just now.
    fn default() -> Self {
        Self::new(["transient", "rate-limited", "unavailable", "timeout", "internal"])
    }
}

/// Turns in a row that are skipped, unless the policy says otherwise.
pub(crate) const SKIPS_DEFAULT: u32 = 3;

/// The next thing when all attempts at a plan step failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryExhaustion {
    /// The run fails.
    #[default]
    Abort,
    /// The turn counts, and the planner is told to go on, as if it had decided nothing.
    Skip {
        /// Most turns in a row that are skipped; then the run fails. At least 1.
        in_a_row: u32,
    },
}

/// The fate of a tool call that the death of its host cut off, where the tool does not promise
/// that a repeated call has no further effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptionPolicy {
    /// The agent is told that it is not known whether the call took effect.
    #[default]
    Fail,
    /// A person is asked whether to repeat it.
    Ask,
}
