//! The things that a scope is made of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
#[cfg(doc)]
use taskrun_journal::event::Event;
use taskrun_journal::message::{Labels, Usage};
use taskrun_journal::money::Price;
use taskrun_journal::time::{Clock, Random};
use taskrun_journal::tool::ToolSpec;
use tokio::sync::Notify;

use super::model::Models;
use super::rules::CurrentRules;
use super::runs::RunsAccess;
use super::services::Services;
use super::shortage::{NO_MONEY, NO_TOKENS, Shortage};
use super::stop::StopSignal;
use super::tape::Tape;

/// The run, as the component that is called in it may know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunContext {
    /// Id of the run.
    pub run_id: String,
    /// Run that started this one.
    pub parent_run_id: Option<String>,
    /// First run of the tree.
    pub root_run_id: String,
    /// Tenant of the run; guests are not told.
    pub tenant: String,
    /// Session of this run.
    pub session_id: String,
    /// Session that asked for the run.
    pub parent_session_id: String,
    /// The user who asked for the run.
    pub owner_user_id: String,
    /// Application of the run.
    pub app_name: Option<String>,
    /// Agent of the run.
    pub agent_name: String,
    /// Number of the turn, from 1.
    pub turn: u32,
    /// Number of the attempt at this turn, from 1.
    pub attempt: u32,
    /// Runs above this one.
    pub depth: u32,
    /// Tool call this run or call belongs to.
    pub parent_tool_call_id: Option<String>,
    /// Labels of the run.
    pub labels: Labels,
    /// State that the caller gave, and the host's own keys.
    pub envelope: BTreeMap<String, String>,
}

/// Bounds on what a call may write into the journal.
#[derive(Clone, Copy, Debug)]
pub struct ScopeLimits {
    /// Events, log lines included.
    pub events: u32,
    /// Bytes of log lines and event texts together.
    pub bytes: u64,
}

/// The rest of a run's budget when a call begins; `None` is not limited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remaining {
    /// Turns after this one.
    pub turns: Option<u32>,
    /// Tool calls.
    pub tool_calls: Option<u32>,
    /// Tokens.
    pub tokens: Option<u64>,
    /// Tokens that models read.
    pub prompt_tokens: Option<u64>,
    /// Tokens that models write.
    pub completion_tokens: Option<u64>,
    /// Calls that may fail in a row.
    pub tool_failures: Option<u32>,
    /// Money, in millionths of a US dollar.
    pub cost_microusd: Option<u64>,
    /// True if a policy or a request states a sum of money for the run or one above it: only models
    /// whose prices are known are asked then.
    pub states_cost: bool,
}

/// The most that an answer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerBound {
    /// Tokens.
    pub(super) tokens: u64,
    /// The limit that leaves no more.
    pub(super) shortage: Shortage,
}

impl Remaining {
    /// The most that the answer to a question of about so many tokens may have, after so much was
    /// used; `None` is not bounded.
    ///
    /// # Errors
    /// The thing that is missing for an answer of one token.
    pub(super) fn answer_bound(
        &self,
        used: Usage,
        question: u64,
        price: Option<Price>,
    ) -> Result<Option<AnswerBound>, String> {
        if let Some(missing) = self.missing(used) {
            return Err(missing.to_owned());
        }
        let written =
            self.completion_tokens.map(|left| left.saturating_sub(used.completion_tokens));
        let both = self.tokens.map(|left| left.saturating_sub(used.total_tokens));
        let both = both.map(|left| left.saturating_sub(question));
        let cost = self.cost_microusd.map(|left| left.saturating_sub(used.cost_microusd));
        let paid = price.zip(cost).and_then(|(price, cost)| price.affords(cost, question));
        let bounds =
            [(written, Shortage::WRITTEN), (both, Shortage::TOKENS), (paid, Shortage::MONEY)];
        let bounds = bounds
            .into_iter()
            .filter_map(|(tokens, shortage)| tokens.map(|tokens| AnswerBound { tokens, shortage }));
        match bounds.min_by_key(|bound| bound.tokens) {
            Some(AnswerBound { tokens: 0, shortage }) => {
                let missing = shortage.words();
                Err(format!("{missing} for an answer to a question of about {question} tokens"))
            }
            bound => Ok(bound),
        }
    }

    /// The thing that is missing for one more question to a model, after so much was used.
    pub(super) fn missing(&self, used: Usage) -> Option<&'static str> {
        let spent = [
            (self.prompt_tokens, used.prompt_tokens),
            (self.completion_tokens, used.completion_tokens),
            (self.tokens, used.total_tokens),
        ];
        if spent.iter().any(|(left, used)| left.is_some_and(|left| *used >= left)) {
            return Some(NO_TOKENS);
        }
        let no_money = self.cost_microusd.is_some_and(|cost| used.cost_microusd >= cost);
        no_money.then_some(NO_MONEY)
    }
}

/// The journal of a run, for a call whose answers are kept there.
#[derive(Clone, Debug)]
pub struct JournalRoom {
    /// Woken when there are events that a guest waits for to be durable.
    pub urgent: Arc<Notify>,
    /// Bytes of recorded answers after which the call is stopped.
    pub bytes: u64,
}

/// Without a bound.
impl Default for JournalRoom {
    fn default() -> Self {
        Self { urgent: Arc::default(), bytes: u64::MAX }
    }
}

/// The things that a [`CallScope`](super::CallScope) is made of.
pub struct CallScopeParts {
    /// The run.
    pub context: RunContext,
    /// Stops the call.
    pub stop: StopSignal,
    /// The time that the call may take.
    pub deadline: Duration,
    /// Time as the guest sees it.
    pub clock: Arc<dyn Clock>,
    /// Random numbers as the guest sees them.
    pub random: Arc<dyn Random>,
    /// Models the guest may ask; a tool has none.
    pub models: Option<Arc<Models>>,
    /// The rules for all that is done in the call.
    pub rules: Arc<CurrentRules>,
    /// The pins of the policy under which the journal says that the work goes on, see
    /// [`Event::RulesChanged`]; they do not count for a call that is not done again.
    pub pins: Vec<String>,
    /// Runs the guest may start and watch; `None` for a call that belongs to no run, or to one
    /// that is at its end.
    pub runs: Option<RunsAccess>,
    /// Tools the planner may call.
    pub tools: Arc<Vec<ToolSpec>>,
    /// State of the run.
    pub state: BTreeMap<String, String>,
    /// The rest of what the host has for the call.
    pub services: Services,
    /// The rest of the budget, unless [`Services::budget`] is there: a call that asks no models needs
    /// it only to tell of it.
    pub remaining: Remaining,
    /// Bounds on what goes into the journal.
    pub limits: ScopeLimits,
    /// Woken when there are events to be journalled.
    pub wake: Arc<Notify>,
    /// `None` for calls that are not done again: then nothing that they are given is recorded.
    pub journal: Option<JournalRoom>,
    /// The record of the call, when it was made before.
    pub tape: Option<Tape>,
}
