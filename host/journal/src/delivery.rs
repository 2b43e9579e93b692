//! The delivery of a run's outcome: where it is told when nobody waited for it, and the reports that
//! a store keeps until somebody was told.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::RunId;
use crate::time::Timestamp;

/// The number of takers that may fail by themselves before a report is a dead letter.
pub const ATTEMPTS_MAX: u32 = 3;
/// The pauses after the first and the second of them before somebody is made to look again: a fault
/// that passes is over in seconds, or else takes a person.
pub(crate) const ATTEMPT_PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// Most nudges from which a run may come, one after the other: agents that wake each other stop
/// here, and a person who is told of the eighth has had time to notice.
pub const HOPS_MAX: u32 = 8;
/// Most bytes of the task of a nudge, as a request or a policy has it.
pub const PROMPT_BYTES_MAX: usize = 4 << 10;
/// Most bytes of what stands between two reports.
pub const SEPARATOR_BYTES_MAX: usize = 64;
/// The longest buffer and the longest time-out of a strategy.
pub const IDLE_WAIT_MAX: Duration = Duration::from_secs(60 * 60);

/// The delivery of a run's outcome, as it was settled when the run was accepted.
///
/// The nearest run above it that is open is told, before its next plan step. Where none is, the next
/// run of the conversation is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The runs above it, the nearest first.
    pub above: Vec<RunId>,
    /// The conversation of the first run of its tree, with the agent that is told there; `None` if
    /// that takes part in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Conversation>,
    /// When a host starts a run of the conversation that is told.
    #[serde(default, skip_serializing_if = "Strategy::is_context_only")]
    pub strategy: Strategy,
    /// The task of that run, unless it is the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// True if nobody but people could say its texts, at the door or by a policy. A host that took
    /// those of components, too, did not write this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vetted: bool,
}

impl Delivery {
    /// The task of the run that is told, where people said one. That of a component would stand in
    /// the conversation as the word of its user.
    #[must_use]
    pub fn task(&self) -> Option<&str> {
        let said = self.prompt.as_deref().map(str::trim).filter(|task| !task.is_empty());
        said.filter(|_| self.is_of_people())
    }

    /// The text between its outcome and the one before it, where both come together. That of a
    /// component, which stands outside of all fences, is passed over unless it is white space.
    #[must_use]
    pub fn separator(&self) -> &str {
        let said = self.strategy.separator().unwrap_or_default();
        match self.is_of_people() || said.trim().is_empty() {
            true => said,
            false => Strategy::SEPARATOR_DEFAULT,
        }
    }

    /// True if its texts are those of people: nothing is above a run that they start themselves.
    fn is_of_people(&self) -> bool {
        self.vetted || self.above.is_empty()
    }

    /// True if a host may start a run that is told.
    #[must_use]
    pub fn nudges(&self) -> bool {
        self.conversation.is_some() && !self.strategy.is_context_only()
    }
}

/// The moment at which a conversation is told of an outcome where no run above is open. A run that a
/// host starts for that is a **nudge**.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Strategy {
    /// With its next run: nobody is nudged.
    #[default]
    ContextOnly,
    /// At once, beside whatever else is under way.
    Immediate,
    /// When the conversation is idle.
    WaitForIdle {
        /// The time, in milliseconds, for which nothing has begun in it.
        buffer_ms: u64,
        /// The longest wait, in milliseconds.
        timeout_ms: u64,
        /// True if it is not waited for: the nudge begins beside what is under way.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        interrupt: bool,
    },
    /// The same, and the outcomes that come together stand in one text.
    Queued {
        /// As above.
        buffer_ms: u64,
        /// As above.
        timeout_ms: u64,
        /// The text that stands between two of them.
        separator: String,
    },
}

impl Strategy {
    /// The buffer where none is named, in milliseconds.
    pub(crate) const BUFFER_MS_DEFAULT: u64 = 1_000;
    /// The time-out where none is named, in milliseconds.
    pub(crate) const TIMEOUT_MS_DEFAULT: u64 = 15_000;
    /// The separator where none is named.
    pub(crate) const SEPARATOR_DEFAULT: &str = "\n\n";
    /// The words of all strategies, in the order of their haste, the slowest first.
    pub const WORDS: [&str; 4] = ["context-only", "queued", "wait-for-idle", "immediate"];

    /// The strategy of a word, with what it has by default; `None` if no strategy has that word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        let (buffer_ms, timeout_ms) = (Self::BUFFER_MS_DEFAULT, Self::TIMEOUT_MS_DEFAULT);
        match word {
            "context-only" => Some(Self::ContextOnly),
            "immediate" => Some(Self::Immediate),
            "wait-for-idle" => Some(Self::WaitForIdle { buffer_ms, timeout_ms, interrupt: false }),
            "queued" => {
                let separator = Self::SEPARATOR_DEFAULT.to_owned();
                Some(Self::Queued { buffer_ms, timeout_ms, separator })
            }
            _ => None,
        }
    }

    /// Its word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::ContextOnly => "context-only",
            Self::Immediate => "immediate",
            Self::WaitForIdle { .. } => "wait-for-idle",
            Self::Queued { .. } => "queued",
        }
    }

    /// True for the strategy that is not written down.
    #[must_use]
    pub(crate) fn is_context_only(&self) -> bool {
        self.delay().is_none()
    }

    /// The time after which a host looks whether it is to nudge; `None` if nobody is nudged.
    #[must_use]
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self {
            Self::ContextOnly => None,
            Self::Immediate | Self::WaitForIdle { interrupt: true, .. } => Some(Duration::ZERO),
            Self::WaitForIdle { buffer_ms, timeout_ms, interrupt: false }
            | Self::Queued { buffer_ms, timeout_ms, .. } => {
                Some(Duration::from_millis(*buffer_ms.min(timeout_ms)))
            }
        }
    }

    /// The wait for a conversation that is not idle; `None` where that is not waited for.
    #[must_use]
    pub fn idle(&self) -> Option<IdleWait> {
        match self {
            Self::ContextOnly | Self::Immediate | Self::WaitForIdle { interrupt: true, .. } => None,
            Self::WaitForIdle { buffer_ms, timeout_ms, interrupt: false }
            | Self::Queued { buffer_ms, timeout_ms, .. } => Some(IdleWait {
                buffer: Duration::from_millis(*buffer_ms),
                longest: Duration::from_millis(timeout_ms.saturating_sub(*buffer_ms)),
            }),
        }
    }

    /// The text between two outcomes that come together, where it names one.
    #[must_use]
    pub fn separator(&self) -> Option<&str> {
        match self {
            Self::Queued { separator, .. } => Some(separator),
            Self::ContextOnly | Self::Immediate | Self::WaitForIdle { .. } => None,
        }
    }
}

/// The wish of a request, or of the policy of an agent for the runs that it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeliverySettings {
    /// When a conversation is told; `None` if nobody is told at all.
    pub strategy: Option<Strategy>,
    /// The agent that is told there; that of the conversation unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// The task of a nudge, unless it is the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
}

impl Default for DeliverySettings {
    fn default() -> Self {
        Self { strategy: Some(Strategy::default()), notify: None, prompt: None }
    }
}

/// A wait for an idle conversation: no run that a person or another nudge began in it is open, or
/// began within the buffer. Background runs do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleWait {
    /// The time for which nothing has begun.
    pub buffer: Duration,
    /// The longest wait from the moment at which the report is due.
    pub longest: Duration,
}

/// The runs of one agent that continue a session: those of the tenant and the owner of the run whose
/// outcome is delivered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Conversation {
    /// Session from which they are asked for.
    pub session: String,
    /// Application from which they are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Their agent.
    pub agent: String,
}

/// The stage of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportState {
    /// Nobody was told.
    Pending,
    /// A run was told that has not ended, or has waited for this end. If it completes the report is
    /// delivered, otherwise it is pending again.
    Taken,
    /// It stands in a conversation.
    Delivered,
    /// Nobody is told any more: see [`Report::reason`].
    Dead,
}

impl ReportState {
    /// Every one, in the order of a report's life.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Taken, Self::Delivered, Self::Dead];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Taken => "taken",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

/// The report of a run's outcome: an index over journals, made in the transaction in which the run
/// ends and changed in those in which somebody is told or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The run that ended.
    pub run: RunId,
    /// Its place in the order of the ends.
    pub place: u64,
    /// Its stage.
    pub state: ReportState,
    /// Takers that failed by themselves.
    pub attempts: u32,
    /// The run that was told.
    pub taken_by: Option<RunId>,
    /// The reason why it is a dead letter.
    pub reason: Option<DeadReason>,
    /// When a host is to look whether it starts a run that is told; `None` if nobody is made to look
    /// for it, or not while a run above it or a nudge that was started for it is open.
    pub due: Option<Timestamp>,
    /// The agent that is told in the conversation; `None` without one.
    pub notify: Option<String>,
}

/// The reason why nobody is told of an outcome any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// Each of [`ATTEMPTS_MAX`] runs that were told failed by itself.
    Attempts,
    /// The session of its conversation was ended.
    SessionEnded,
    /// A hook of the host blocked it.
    Blocked,
}

impl DeadReason {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Attempts, Self::SessionEnded, Self::Blocked];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::SessionEnded => "session_ended",
            Self::Blocked => "blocked",
        }
    }
}

/// The reports of runs that an append tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportsTaken {
    /// The run is told of them now: each is to be pending, or nothing of the append is kept.
    Told(Vec<RunId>),
    /// The run has waited for the ends of these: reports among them that are pending are taken, too.
    Awaited(Vec<RunId>),
}
