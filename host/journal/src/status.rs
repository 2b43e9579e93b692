//! The closed sets that a run's outside shows: status, what it is blocked on, why it ended.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! words {
    (
        $(#[$meta:meta])*
        $name:ident, $unknown:ident, $what:literal {
            $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// All of them, in the order in which they are documented.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word used everywhere: journal, JSON, command line.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $unknown;

            fn from_str(text: &str) -> Result<Self, $unknown> {
                Self::ALL
                    .iter()
                    .copied()
                    .find(|one| one.as_str() == text)
                    .ok_or_else(|| $unknown { given: text.to_owned() })
            }
        }

        #[doc = concat!("A word that is no ", $what, ".")]
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("unknown {what} {given:?}, known are: {known}", what = $what, known = [$($word),+].join(", "))]
        pub struct $unknown {
            /// The word.
            pub given: String,
        }
    };
}

words! {
    /// Where a run stands.
    Status, UnknownStatus, "status" {
        /// Accepted and durable, waiting for a slot, or for the heartbeat of its agent. Entered by
        /// spawn; left when a host claims the run, a batch takes it, or somebody cancels it. A
        /// crash changes nothing.
        Queued = "queued",
        /// A host executes it, or a batch run works on it. Entered by a claim or a batch; left by
        /// the driver, or with the batch. When the host dies, another process finds its lease gone
        /// and frees the run.
        Running = "running",
        /// Waits for somebody or something and holds no slot and no instance.
        Blocked = "blocked",
        /// Cancellation was asked for and recorded; the guest may still be on its way out.
        Canceling = "canceling",
        /// The guest is gone and the outcome is fixed; the last work before the end.
        Finalizing = "finalizing",
        /// Ended with an answer. Terminal.
        Completed = "completed",
        /// Ended without an answer. Terminal.
        Failed = "failed",
        /// Ended because somebody asked for it. Terminal.
        Canceled = "canceled",
    }
}

impl Status {
    /// The statuses that a word means where runs are chosen: one of ours, or an
    /// [alias](Self::alias).
    ///
    /// # Errors
    /// [`UnknownStatus`].
    pub fn meant_by(word: &str) -> Result<Vec<Self>, UnknownStatus> {
        let of_alias = |status: &Self| status.alias() == Some(word);
        let all: Vec<Self> = Self::ALL.iter().copied().filter(of_alias).collect();
        if all.is_empty() { Ok(vec![word.parse()?]) } else { Ok(all) }
    }

    /// The word that task lists elsewhere have for it, where they have another.
    #[must_use]
    pub fn alias(self) -> Option<&'static str> {
        match self {
            Self::Queued => Some("pending"),
            Self::Running | Self::Canceling | Self::Finalizing => Some("in_progress"),
            Self::Completed => Some("finished"),
            Self::Canceled => Some("cancelled"),
            Self::Blocked | Self::Failed => None,
        }
    }

    /// True if the run has ended; a run in such a status never changes again.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Canceled => true,
            Self::Queued | Self::Running | Self::Blocked | Self::Canceling | Self::Finalizing => {
                false
            }
        }
    }
}

words! {
    /// The thing that a blocked run waits for.
    BlockedOn, UnknownBlockedOn, "blocked_on" {
        /// An answer to a question.
        Input = "input",
        /// Other runs.
        Children = "children",
        /// Consent to a tool call.
        Confirmation = "confirmation",
        /// Results that somebody outside provides.
        ExternalTools = "external_tools",
        /// `resume`.
        Pause = "pause",
        /// A point in time.
        Schedule = "schedule",
    }
}

words! {
    /// Why a run ended.
    StopReason, UnknownStopReason, "stop reason" {
        /// The agent reported that it was done.
        Done = "done",
        /// The agent had nothing more to do.
        NaturalEnd = "natural_end",
        /// A tool whose answer ends the run answered.
        TerminalTool = "terminal_tool",
        /// The planner gave its final response.
        FinalResponse = "final_response",
        /// No turns were left.
        MaxTurns = "max_turns",
        /// No tokens were left.
        MaxTokens = "max_tokens",
        /// No money was left.
        MaxCost = "max_cost",
        /// The budget of running time was used up.
        Wallclock = "wallclock",
        /// No tool calls were left.
        ToolCap = "tool_cap",
        /// Too many tool calls in a row failed.
        FailureCap = "failure_cap",
        /// The time for starting work was used up.
        TimeBudget = "time_budget",
        /// The run's own time-out passed.
        RunTimeout = "run_timeout",
        /// One call took too long.
        TurnTimeout = "turn_timeout",
        /// The retry policy gave up.
        RetryAborted = "retry_aborted",
        /// A model was not to be asked for longer than a run may wait for that.
        RateLimited = "rate_limited",
        /// The planner decided something that is not allowed.
        PlannerError = "planner_error",
        /// The agent returned an error.
        AgentError = "agent_error",
        /// The agent's component was stopped by a trap or a limit.
        AgentTrap = "agent_trap",
        /// A component broke its contract with the host.
        ContractViolation = "contract_violation",
        /// Its owner canceled it.
        CanceledByOwner = "canceled_by_owner",
        /// A run above it was canceled.
        CanceledByParent = "canceled_by_parent",
        /// The host was shut down.
        HostShutdown = "host_shutdown",
        /// The host lost its lease.
        LeaseLost = "lease_lost",
        /// The host that executed it died.
        InterruptedByRestart = "interrupted_by_restart",
        /// The store can never keep a record: it is too large, or the store is damaged.
        PersistFailed = "persist_failed",
        /// Put off to a later time.
        Deferred = "deferred",
    }
}

impl StopReason {
    /// The word that other systems of autonomous runs and agents have for it, where there is one.
    #[must_use]
    pub fn alias(self) -> Option<&'static str> {
        Some(match self {
            Self::Done | Self::NaturalEnd => "completed",
            Self::FinalResponse => "success",
            Self::MaxTurns => "max_turns_exceeded",
            Self::MaxTokens => "max_tokens_exceeded",
            Self::MaxCost => "max_cost_exceeded",
            Self::Wallclock => "wallclock_exceeded",
            Self::RetryAborted => "retry_policy_aborted",
            Self::CanceledByOwner => "context_cancelled",
            Self::TerminalTool
            | Self::ToolCap
            | Self::FailureCap
            | Self::TimeBudget
            | Self::RunTimeout
            | Self::TurnTimeout
            | Self::RateLimited
            | Self::PlannerError
            | Self::AgentError
            | Self::AgentTrap
            | Self::ContractViolation
            | Self::CanceledByParent
            | Self::HostShutdown
            | Self::LeaseLost
            | Self::InterruptedByRestart
            | Self::PersistFailed
            | Self::Deferred => return None,
        })
    }

    /// The reasons that a word means where runs are chosen: one of ours, or an [`Self::alias`] of
    /// some.
    ///
    /// # Errors
    /// [`UnknownStopReason`].
    pub fn meant_by(word: &str) -> Result<Vec<Self>, UnknownStopReason> {
        let has = |reason: &Self| reason.alias() == Some(word);
        let aliased: Vec<Self> = Self::ALL.iter().copied().filter(has).collect();
        if aliased.is_empty() { word.parse().map(|own| vec![own]) } else { Ok(aliased) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back_and_unknown_ones_are_errors() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(*status));
        }
        for reason in StopReason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(*reason));
        }
        for status in Status::ALL {
            let shown = status.alias().unwrap_or(status.as_str());
            assert!(
                Status::meant_by(shown).expect("known").contains(status),
                "{status} as {shown}"
            );
            assert_eq!(Status::meant_by(status.as_str()), Ok(vec![*status]));
        }
        let working = [Status::Running, Status::Canceling, Status::Finalizing];
        assert_eq!(Status::meant_by("in_progress"), Ok(working.to_vec()));
        assert!(Status::meant_by("over").is_err());
        let meant = |word: &str| StopReason::meant_by(word).expect("known");
        assert_eq!(meant("max_turns_exceeded"), [StopReason::MaxTurns]);
        assert_eq!(meant("retry_policy_aborted"), [StopReason::RetryAborted]);
        assert_eq!(meant("completed"), [StopReason::Done, StopReason::NaturalEnd]);
        assert_eq!(meant("max_turns"), [StopReason::MaxTurns]);
        assert!(StopReason::meant_by("exceeded").is_err());
        let error = "finished".parse::<Status>().expect_err("not one of ours");
        assert!(error.to_string().starts_with("unknown status \"finished\", known are: queued,"));
    }
}
