//! Narrowings and ancestors as a run's record keeps them: the rights that a request takes away from
//! its agent, and the runs above.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::money::UsdDisplay;
use crate::quantity::DurationDisplay;

/// The narrowing that a request asks for. The default takes nothing.
// A reader that does not know a field would grant what a request took away, so unknown ones are
// refused; a further field also raises the version of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Narrowing {
    /// The only functions that the run and all beneath it may call: `tool/function`, or `tool/*`
    /// for all of a tool. `None` is all that the agent may call, an empty list none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Rules as they stand under `deny` of an agent, for the run and all beneath it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// The only tags of functions that the run and all beneath it may call: a function needs one of
    /// them, as the policy states it of its tool. `None` is all functions, an empty list none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_tags: Option<Vec<String>>,
    /// Tags of functions that the run and all beneath it may not call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_tags: Vec<String>,
    /// Longest calls of the run in milliseconds, by names of functions or beginnings of them as
    /// under `timeouts` of an agent. One that is longer than the agent's own changes nothing.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub timeouts: BTreeMap<String, u64>,
    /// Tool calls of each turn of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_calls: Option<u32>,
    /// Tool calls of the run that may fail in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_failures: Option<u32>,
    /// Turns of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// Tokens of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens of the run that models read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Tokens of the run that models wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Money of the run, in millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
    /// Tool calls of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u32>,
    /// Running time of the run, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// A plan step of the run, in milliseconds, without its waits for models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_ms: Option<u64>,
    /// The last step of the run, in milliseconds, with its waits for models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_step_ms: Option<u64>,
    /// True if nobody pauses the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_pause: bool,
}

/// A run above another one, as far as it bounds what that may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Its agent.
    pub agent_name: String,
    /// The pin of its agent.
    pub pin: String,
    /// The narrowing of its request.
    #[serde(default, skip_serializing_if = "Narrowing::is_empty")]
    pub narrow: Narrowing,
    /// True if it goes on by itself: what it starts has no person who sees what it costs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub autonomous: bool,
}

impl Narrowing {
    /// True if it takes nothing away.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The same without the bounds of what the run spends: its functions, rules and tags, the times
    /// of its calls, and its pauses.
    #[must_use]
    pub fn rights(&self) -> Self {
        let Self { tools, deny, only_tags, deny_tags, timeouts, no_pause, .. } = self.clone();
        Self { tools, deny, only_tags, deny_tags, timeouts, no_pause, ..Self::default() }
    }
}

/// Prints it in one line: `only workspace/read; deny "http: *"; turns=3`.
impl fmt::Display for Narrowing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.tools.as_deref() {
            None => {}
            Some([]) => parts.push("no tools".to_owned()),
            Some(tools) => parts.push(format!("only {}", tools.join(", "))),
        }
        parts.extend(self.only_tags.as_ref().map(|tags| format!("only tags {}", tags.join(", "))));
        parts.extend(
            (!self.deny_tags.is_empty())
                .then(|| format!("deny tags {}", self.deny_tags.join(", "))),
        );
        parts.extend(self.deny.iter().map(|rule| format!("deny \"{rule}\"")));
        parts.extend(self.timeouts.iter().map(|(pattern, timeout)| {
            format!("{pattern} within {}", DurationDisplay(Duration::from_millis(*timeout)))
        }));
        parts.extend(self.turn_calls.map(|calls| format!("turn-calls={calls}")));
        parts.extend(self.tool_failures.map(|failures| format!("tool-failures={failures}")));
        parts.extend(self.turns.map(|turns| format!("turns={turns}")));
        parts.extend(self.tokens.map(|tokens| format!("tokens={tokens}")));
        parts.extend(self.prompt_tokens.map(|tokens| format!("prompt-tokens={tokens}")));
        parts.extend(self.completion_tokens.map(|tokens| format!("completion-tokens={tokens}")));
        parts.extend(self.cost_microusd.map(|cost| format!("usd={}", UsdDisplay(cost))));
        parts.extend(self.tool_calls.map(|calls| format!("tool-calls={calls}")));
        let wall = self.wall_ms.map(Duration::from_millis);
        parts.extend(wall.map(|wall| format!("wall={}", DurationDisplay(wall))));
        for (key, ms) in [("step", self.step_ms), ("last-step", self.last_step_ms)] {
            let time = ms.map(Duration::from_millis);
            parts.extend(time.map(|time| format!("{key}={}", DurationDisplay(time))));
        }
        parts.extend(self.no_pause.then(|| "no pause".to_owned()));
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_in_one_line_and_nothing_is_said_of_none() {
        let narrow = Narrowing {
            tools: Some(vec!["one/f".to_owned(), "two/*".to_owned()]),
            deny: vec!["http: *".to_owned()],
            turns: Some(3),
            tokens: Some(1_000),
            prompt_tokens: Some(900),
            completion_tokens: Some(100),
            cost_microusd: Some(1_500_000),
            tool_calls: Some(0),
            wall_ms: Some(1_500),
            only_tags: Some(vec!["look".to_owned()]),
            deny_tags: vec!["danger".to_owned()],
            timeouts: [("one/*".to_owned(), 2_000)].into(),
            turn_calls: Some(2),
            tool_failures: Some(1),
            step_ms: Some(3_000),
            last_step_ms: Some(2_500),
            no_pause: true,
        };
        let said = "only one/f, two/*; only tags look; deny tags danger; deny \"http: *\"; one/* \
                    within 2s; turn-calls=2; tool-failures=1; turns=3; tokens=1000; prompt-tokens=900; \
                    completion-tokens=100; usd=1.50; tool-calls=0; \
                    wall=1500ms; step=3s; last-step=2500ms; no pause";
        assert_eq!(narrow.to_string(), said);
        let none = Narrowing { tools: Some(Vec::new()), ..Narrowing::default() };
        assert_eq!((none.to_string().as_str(), none.is_empty()), ("no tools", false));
        assert_eq!(Narrowing::default().to_string(), "");
    }

    #[test]
    fn what_is_not_known_to_be_taken_away_is_not_read_over() {
        let read = |text: &str| serde_json::from_str::<Narrowing>(text);
        assert_eq!(read("{}").expect("nothing"), Narrowing::default());
        assert!(read(r#"{"denied": ["http: *"]}"#).is_err());
    }
}
