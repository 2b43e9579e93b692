//! The outcomes of steps that were executed again.

use taskrun_journal::ids::Seq;

use crate::scope::NotedQuestion;

/// A step that was executed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedStep {
    /// Number of its turn, from 1.
    pub turn: u32,
    /// Number of the attempt at it, from 1.
    pub attempt: u32,
    /// The position of the event with which it ended.
    pub seq: Seq,
    /// The outcome of the comparison.
    pub outcome: StepComparison,
}

/// The comparison of a step with its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepComparison {
    /// It did the same.
    Same,
    /// It did something else.
    Differs(Box<StepDifference>),
    /// It was not compared, for this reason.
    Skipped(String),
}

/// The first thing in which a step differs from its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepDifference {
    /// The thing on record, in words.
    pub recorded: String,
    /// The thing that it did instead.
    pub found: String,
    /// The question that was asked where the record has another one or none, as it was put; and the
    /// recorded one, where the agent that was recorded could be asked for it again.
    pub question: Option<(Option<NotedQuestion>, NotedQuestion)>,
}
