//! The checks of runs that went on after a change.

use serde_json::{Value, json};

use super::scene::calls;
use super::{Ends, STATES, TAKEN};

/// A run that has ended, as JSON.
pub struct EndedRun {
    /// Of [`STATES`], the one in which the change found it.
    pub state: &'static str,
    /// The pin that it had then.
    pub pin: Value,
    /// The run, as `taskrun get` shows it.
    pub run: Value,
    /// Its journal, as `taskrun events` shows it.
    pub events: Vec<Value>,
}

impl EndedRun {
    /// Holds it to how it has to have gone on: it is what it was, asked nothing twice, and its calls came
    /// to these ends.
    ///
    /// # Panics
    /// If it did not.
    pub fn went_on(&self, ends: Ends) {
        let Self { state, pin, run, events } = self;
        assert!(STATES.contains(state), "{state}");
        let found = (&run["status"], &run["result"], &events[0]["spec"]["pin"]);
        assert_eq!(found, (&json!("completed"), &json!("thanks"), pin), "{state}: {run}");
        let is_as_wanted = |(found, wanted): (&String, &str)| match wanted {
            TAKEN => ["denied", "tool-unavailable"].contains(&found.as_str()),
            wanted => found == wanted,
        };
        let found = self.ends();
        let all = found.iter().zip(ends).all(is_as_wanted);
        assert!(all, "{state}: {found:?}, not {ends:?}: {events:#?}");
        // A call that had begun ends as it was begun.
        let begun = match *state {
            "waits for a child" => Some("played"),
            "is in the middle of a call" => Some("slept"),
            _ => None,
        };
        if let Some(wanted) = begun {
            assert_eq!(self.end_of("c"), wanted, "{state}: {events:#?}");
        }
        assert_eq!(self.count("replay_diverged"), 0, "{state}: {events:#?}");
        // The host died in the middle of these, and of nothing else that may be done again.
        let is_repeated = usize::from(*state == "is in the middle of a call");
        assert_eq!(self.count("tool_call_repeated"), is_repeated, "{state}: {events:#?}");
        let is_asked = usize::from(["waits for an answer", "waits for consent"].contains(state));
        let asked = (self.count("asked"), self.count("answered"));
        assert_eq!(asked, (is_asked, is_asked), "{state}: {events:#?}");
    }

    /// The number of events of a kind.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        self.events.iter().filter(|event| event["kind"] == kind).count()
    }

    /// The ends of its calls, as far as it made them: the one that waits for consent is the last.
    #[must_use]
    pub fn ends(&self) -> Vec<String> {
        let mut ends: Vec<_> = calls().iter().map(|(id, _, _)| self.end_of(id)).collect();
        if self.state == "waits for consent" {
            ends.push(self.end_of("c"));
        }
        ends
    }

    /// The end of a call: its text, or the code of its failure.
    fn end_of(&self, id: &str) -> String {
        let is_it = |event: &&Value| {
            event["kind"] == "tool_result" && event["output"]["tool_call_id"] == id
        };
        let results: Vec<&Value> = self.events.iter().filter(is_it).collect();
        assert_eq!(results.len(), 1, "{id}: {:#?}", self.events);
        let outcome = &results[0]["output"]["outcome"];
        if let Some(code) = outcome.pointer("/failure/error/code").and_then(Value::as_str) {
            return code.to_owned();
        }
        let value = outcome["value"].as_str().unwrap_or_else(|| panic!("{outcome}"));
        let value: Value = serde_json::from_str(value).expect("JSON");
        // A text, or the lines of a file.
        let text = value.as_str().or_else(|| value["text"].as_str()?.strip_prefix("1: "));
        text.unwrap_or_else(|| panic!("{value}")).trim_end().to_owned()
    }
}
