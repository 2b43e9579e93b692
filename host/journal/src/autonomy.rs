//! Runs that go on by themselves, round after round, until they say that they are done: the
//! settings of one, and the marks that it leaves of itself.
//!
//! A *round* is from a prompt to the answer without tool calls that it leads to.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The prompt of every round but the first, unless another one is stated.
pub const CONTINUATION: &str = "continue";
/// Rounds of a run unless another number is stated: what one goal takes, and an agent that does not
/// end by itself costs no more.
pub const ROUNDS_DEFAULT: u32 = 50;
/// Most rounds that can be stated: one in each minute of two years.
pub const ROUNDS_MAX: u32 = 1_000_000;
/// Most bytes of a prompt of a round: it stands in the conversation as often as there are rounds.
pub const CONTINUATION_BYTES_MAX: usize = 16 << 10;
/// Most bytes of the schema of a result, which is part of every request to a model.
pub const RESULT_SCHEMA_BYTES_MAX: usize = 64 << 10;
/// The number of times that a run is asked again for a result which it has to give.
pub const RESULT_ASKS_MAX: u32 = 3;
/// Most states that a run can be told to choose from.
pub const STATES_MAX: usize = 64;
/// Most bytes of the name of a tool or a state.
pub const NAME_BYTES_MAX: usize = 64;
/// Most bytes of what a run says of itself with a mark.
pub const MARK_BYTES_MAX: usize = 16 << 10;

/// The time for which a standing run may put its next round off, unless another one is stated.
pub const DEFER_DEFAULT: Duration = Duration::from_secs(30 * 24 * 3_600);
/// The longest that can be stated: a year, after which nobody knows of it any more.
pub const DEFER_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The names of the tool by which a run says that it is done: the first one is described to models,
/// all are understood.
pub const DONE_NAMES: [&str; 4] =
    ["report_done", "return_result", "mark_task_done", "submit_result"];

/// True if a name means the tool by which a run says that it is done, also with a prefix as other
/// systems put before the names of tools: `mcp__gateway__submit_result`.
#[must_use]
pub fn means_done(name: &str) -> bool {
    let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
    let last = last.rsplit_once("__").map_or(last, |(_, last)| last);
    DONE_NAMES.contains(&last)
}

/// The settings of a run that goes on by itself; its goal is the run's task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autonomy {
    /// The condition under which an answer ends it.
    pub mode: AutonomyMode,
    /// The prompt of every round but the first.
    pub continuation: String,
    /// Most rounds; `None` is no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// The schema of the result that it has to give, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_schema: Option<String>,
    /// The tool by which it says that it is done, where that is called otherwise than usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<DoneTool>,
    /// The states that it may say it is in; any, if there are none here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<String>,
    /// The longest time for which it may put its next round off, in milliseconds: what it asks for
    /// beyond that is refused. `None` if it may not put any off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_defer_ms: Option<u64>,
    /// The longest time for which a round is put off, in milliseconds: what it asks for beyond that
    /// is cut. `None` cuts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_defer_ms: Option<u64>,
    /// True if it ends where another one would be deferred: the run that continues it goes on when
    /// the time has come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exits_on_defer: bool,
}

/// The condition under which an answer without tool calls ends a run that goes on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutonomyMode {
    /// None: it goes on until it says that it is done, or a budget is used up.
    Standing,
    /// Each does.
    Bounded,
}

impl AutonomyMode {
    /// Both, in the order in which they are documented.
    pub const ALL: [Self; 2] = [Self::Standing, Self::Bounded];

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standing => "standing",
            Self::Bounded => "bounded",
        }
    }
}

/// Name and description of the tool by which a run says that it is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DoneTool {
    /// Its own name, instead of the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its description, instead of the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl Autonomy {
    /// The name of the tool by which it says that it is done.
    #[must_use]
    pub fn done_name(&self) -> &str {
        let own = self.done.as_ref().and_then(|done| done.name.as_deref());
        own.unwrap_or(DONE_NAMES[0])
    }
}

/// A thing that a run says of itself by a tool call, on record in one write with the call's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mark")]
pub enum Mark {
    /// It is done.
    Done(Done),
    /// It gave a result that is none it may end with, and is asked again.
    Rejected,
    /// It is in a state.
    Status(StateReport),
    /// Its next round begins at a time.
    Schedule(Schedule),
}

/// A wake-up that a run wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The time, made absolute when it was asked for.
    pub at: Timestamp,
    /// The prompt of the round that begins then; `None` for the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Pattern and time zone, where the time is the next one of such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<[String; 2]>,
}

/// The word of a run that it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// In words.
    pub detail: String,
    /// The result, as JSON, where it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Why the task failed, where it said that it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The state that a run says it is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateReport {
    /// The state, in a word.
    pub state: String,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::means_done;

    #[test]
    fn rs_19_the_names_of_the_tool_mean_it_with_a_prefix_too_and_others_do_not() {
        let all = ["report_done", "return_result", "mark_task_done", "submit_result"];
        for name in all {
            assert!(means_done(name));
            assert!(means_done(&format!("mcp__gateway__{name}")));
            assert!(means_done(&format!("host/{name}")));
        }
        for name in ["web_search", "submit_result_extra", "my_submit_result", "", "done"] {
            assert!(!means_done(name), "{name}");
        }
    }
}
