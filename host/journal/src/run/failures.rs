//! Failed tool calls in a row: what tells a run that gets nowhere from one that has bad luck.

use serde::{Deserialize, Serialize};

use crate::event::{DecisionKind, Event, Refusal};
use crate::message::RetryReason;
use crate::question::Answer;
use crate::tool::ToolOutcome;

/// Most failures in a row that are the caller's mistakes (a tool that is not there, arguments
/// that do not fit) and are not counted by the policy's own cap: whoever has not found the right
/// call by then will not.
pub const MISTAKES_IN_A_ROW_MAX: u32 = 8;
/// Batches in a row of which the host allowed no call at all, before the run is ended. One is
/// told to the planner, which may still do something else.
pub(crate) const REFUSED_BATCHES_MAX: u32 = 2;

/// The number of calls that failed in a row. A batch without such a failure starts it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// In the batches before the last one.
    before: Counts,
    /// In the last one.
    batch: Counts,
    /// Calls of the last batch that began or were answered.
    others: u32,
    /// True after a decision to ask somebody outside, until the results of a tool outside come:
    /// they are a batch then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    asks: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    /// Calls that failed.
    failed: u32,
    /// Calls that could not be made as they were asked for.
    mistaken: u32,
    /// Before: batches of which every call was refused. In a batch: refused calls.
    refused: u32,
}

/// The kind of a result, for the count of failures.
enum Kind {
    Success,
    Failure,
    Mistake,
    /// The host did not want it; that is nobody's failure.
    Refusal,
    /// It came too late to mean anything.
    Void,
}

impl Failures {
    /// Nothing failed.
    #[must_use]
    pub(crate) fn none(&self) -> bool {
        *self == Self::default()
    }

    /// Takes one event into account.
    pub(crate) fn push(&mut self, event: &Event) {
        if let Event::PlanDecided { decision: DecisionKind::ToolCalls, .. } = event {
            self.begin_batch();
        } else if let Event::PlanDecided { decision: DecisionKind::Await, .. } = event {
            self.asks = true;
        } else if let Event::Answered { answer: Answer::Results(results), .. } = event {
            if self.asks {
                self.begin_batch();
            }
            results.values().for_each(|result| self.count(&result.outcome, None));
        } else if let Event::ToolResult { output, refused, .. } = event {
            self.count(&output.outcome, *refused);
        }
    }

    fn begin_batch(&mut self) {
        *self = Self { before: self.in_a_row(), ..Self::default() };
    }

    fn count(&mut self, outcome: &ToolOutcome, refused: Option<Refusal>) {
        match kind(outcome, refused) {
            Kind::Success => self.others += 1,
            Kind::Failure => {
                self.others += 1;
                self.batch.failed += 1;
            }
            Kind::Mistake => {
                self.others += 1;
                self.batch.mistaken += 1;
            }
            Kind::Refusal => self.batch.refused += 1,
            Kind::Void => {}
        }
    }

    /// True if calls have failed so often in a row that the run is to end. `cap` is the policy's
    /// bound on those that began and failed.
    #[must_use]
    pub fn are_too_many(&self, cap: Option<u32>) -> bool {
        let Counts { failed, mistaken, refused } = self.in_a_row();
        cap.is_some_and(|cap| failed >= cap)
            || mistaken >= MISTAKES_IN_A_ROW_MAX
            || refused >= REFUSED_BATCHES_MAX
    }

    /// Calls that may still fail in a row until [`Self::are_too_many`], of so many.
    #[must_use]
    pub fn left(&self, cap: u32) -> u32 {
        cap.saturating_sub(self.in_a_row().failed)
    }

    /// The failures in a row, in words; `None` if the last batch had none.
    #[must_use]
    pub fn words(&self) -> Option<String> {
        let Counts { failed, mistaken, refused } = self.in_a_row();
        match (failed.max(mistaken), refused) {
            (0, 0) => None,
            (0, 1) => Some("every tool call of a turn was refused".to_owned()),
            (0, turns) => Some(format!("every tool call of {turns} turns in a row was refused")),
            (1, _) => Some("a tool call failed".to_owned()),
            (calls, _) => Some(format!("{calls} tool calls in a row failed")),
        }
    }

    fn in_a_row(&self) -> Counts {
        let on = |before: u32, batch: u32| if batch == 0 { 0 } else { before + batch };
        let all_refused = u32::from(self.batch.refused > 0 && self.others == 0);
        Counts {
            failed: on(self.before.failed, self.batch.failed),
            mistaken: on(self.before.mistaken, self.batch.mistaken),
            refused: on(self.before.refused, all_refused),
        }
    }
}

fn kind(outcome: &ToolOutcome, refused: Option<Refusal>) -> Kind {
    match (refused, outcome) {
        (Some(Refusal::Unavailable | Refusal::Arguments), _) => Kind::Mistake,
        (Some(Refusal::Cap | Refusal::Denied), _) => Kind::Refusal,
        (Some(Refusal::Finalized | Refusal::Interrupted | Refusal::Done), _) => Kind::Void,
        // Somebody was asked and answered, which gets the run on.
        (Some(Refusal::Declined), _) => Kind::Success,
        (None, ToolOutcome::Value(_)) => Kind::Success,
        (None, ToolOutcome::Failure(failure)) => {
            match failure.retry_hint.as_ref().map(|hint| hint.reason) {
                Some(
                    RetryReason::InvalidArguments
                    | RetryReason::MissingFields
                    | RetryReason::ToolUnavailable,
                ) => Kind::Mistake,
                Some(
                    RetryReason::MalformedResponse
                    | RetryReason::Timeout
                    | RetryReason::RateLimited,
                )
                | None => Kind::Failure,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{RetryHint, ToolError};
    use crate::tool::{ToolFailure, ToolOutput};

    fn batch() -> Event {
        Event::PlanDecided {
            turn: 1,
            decision: DecisionKind::ToolCalls,
            state: Vec::new(),
            reminders: Vec::new(),
            expected_children: None,
            parents: std::collections::BTreeMap::new(),
            ran_ms: 0,
        }
    }

    fn result(outcome: ToolOutcome, refused: Option<Refusal>) -> Event {
        let output = Box::new(ToolOutput::plain("t/f", "1", "{}", outcome));
        Event::ToolResult { output, duration_ms: 0, refused }
    }

    fn failed(reason: Option<RetryReason>) -> Event {
        let retry_hint = reason.map(|reason| Box::new(RetryHint::new(reason, "t/f")));
        let failure = ToolFailure { error: ToolError::coded("x", "boom"), retry_hint };
        result(ToolOutcome::Failure(failure), None)
    }

    fn refused(refusal: Refusal) -> Event {
        let failure = ToolFailure { error: ToolError::coded("x", "no"), retry_hint: None };
        result(ToolOutcome::Failure(failure), Some(refusal))
    }

    fn worked() -> Event {
        result(ToolOutcome::Value("1".to_owned()), None)
    }

    fn after(events: &[Event]) -> Failures {
        let mut failures = Failures::default();
        events.iter().for_each(|event| failures.push(event));
        failures
    }

    #[test]
    fn ls_11_what_counts_as_a_failure() {
        let table = [
            (Some(RetryReason::ToolUnavailable), 0),
            (Some(RetryReason::InvalidArguments), 0),
            (Some(RetryReason::MissingFields), 0),
            (Some(RetryReason::RateLimited), 1),
            (Some(RetryReason::Timeout), 1),
            (Some(RetryReason::MalformedResponse), 1),
            (None, 1),
        ];
        for (reason, counted) in table {
            let failures = after(&[batch(), failed(reason)]);
            assert_eq!(failures.in_a_row().failed, counted, "{reason:?}");
            assert_eq!(failures.are_too_many(Some(1)), counted == 1, "{reason:?}");
            assert!(!failures.are_too_many(None), "{reason:?}");
        }
    }

    #[test]
    fn the_failures_in_a_row_have_their_words() {
        let calls = |count: usize, event: fn() -> Event| {
            let events: Vec<Event> = (0..count).flat_map(|_| [batch(), event()]).collect();
            after(&events).words()
        };
        let unavailable = || refused(Refusal::Unavailable);
        let denied = || refused(Refusal::Denied);
        assert_eq!(calls(8, || failed(None)).as_deref(), Some("8 tool calls in a row failed"));
        assert_eq!(calls(8, unavailable).as_deref(), Some("8 tool calls in a row failed"));
        assert_eq!(calls(1, || failed(None)).as_deref(), Some("a tool call failed"));
        let refused = "every tool call of 2 turns in a row was refused";
        assert_eq!(calls(2, denied).as_deref(), Some(refused));
        assert_eq!(calls(2, worked), None);
    }

    #[test]
    fn a_batch_without_a_failure_starts_the_count_again() {
        let two = [batch(), failed(None), worked(), batch(), failed(None)];
        assert!(after(&two).are_too_many(Some(2)));
        let between = [batch(), failed(None), batch(), worked(), batch(), failed(None)];
        assert!(!after(&between).are_too_many(Some(2)));
        assert_eq!((after(&two).left(3), after(&between).left(3)), (1, 2));
        let at_once = [batch(), failed(None), failed(None), failed(None)];
        assert!(after(&at_once).are_too_many(Some(3)));
    }

    #[test]
    fn l_066_results_from_outside_count_like_those_of_tools() {
        let asks = || {
            let mut event = batch();
            if let Event::PlanDecided { decision, .. } = &mut event {
                *decision = DecisionKind::Await;
            }
            event
        };
        let given = |outcomes: Vec<ToolOutcome>| {
            let named = outcomes.into_iter().enumerate();
            let results = named.map(|(at, outcome)| (at.to_string(), outcome.into())).collect();
            let (item, by) = ("e".to_owned(), "p".to_owned());
            Event::Answered { item, answer: Answer::Results(results), by, by_default: false }
        };
        let error = ToolError::coded("x", "boom");
        let bad = ToolOutcome::Failure(ToolFailure { error, retry_hint: None });
        let good = ToolOutcome::Value("1".to_owned());
        let bad_twice = [asks(), given(vec![bad.clone()]), asks(), given(vec![bad.clone()])];
        assert!(after(&bad_twice).are_too_many(Some(2)));
        let mixed = [batch(), failed(None), asks(), given(vec![bad.clone(), good.clone()])];
        assert!(after(&mixed).are_too_many(Some(2)));
        let mended = [asks(), given(vec![bad.clone()]), asks(), given(vec![good]), asks()];
        assert!(!after(&mended).are_too_many(Some(1)));
        let one_barrier = [asks(), given(vec![bad.clone()]), given(vec![bad])];
        assert!(after(&one_barrier).are_too_many(Some(2)));
    }

    #[test]
    fn mistakes_have_a_cap_of_their_own() {
        let unavailable = || refused(Refusal::Unavailable);
        let mut events = Vec::new();
        for _ in 1..MISTAKES_IN_A_ROW_MAX {
            events.extend([batch(), unavailable()]);
        }
        assert!(!after(&events).are_too_many(Some(1)));
        let mut mended = events.clone();
        mended.extend([batch(), worked(), batch(), unavailable()]);
        assert!(!after(&mended).are_too_many(Some(1)));
        events.extend([batch(), refused(Refusal::Arguments)]);
        assert!(after(&events).are_too_many(None));
    }

    #[test]
    fn two_batches_of_which_nothing_was_allowed_are_enough() {
        let denied = || refused(Refusal::Denied);
        assert!(!after(&[batch(), denied(), denied()]).are_too_many(Some(1)));
        assert!(after(&[batch(), denied(), batch(), denied()]).are_too_many(None));
        let some = [batch(), denied(), batch(), denied(), worked()];
        assert!(!after(&some).are_too_many(Some(1)));
        let between = [batch(), denied(), batch(), worked(), batch(), denied()];
        assert!(!after(&between).are_too_many(None));
    }
}
