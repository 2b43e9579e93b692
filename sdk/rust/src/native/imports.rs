//! The functions of the host's interfaces, under the names and with the types of the bindings.

pub(crate) mod clock {
    use crate::bindings::agent::taskrun::plugin::clock::WaitError;
    use crate::native::host;

    /// The time of day, in milliseconds since 1970.
    #[must_use]
    pub fn now() -> u64 {
        host(|host| host.now_ms)
    }

    /// Waits; the stand-in does not, and puts its clock forward.
    ///
    /// # Errors
    ///
    /// The run is asked to be canceled meanwhile. A wait that begins after that is as usual.
    pub fn sleep(duration_ms: u64) -> Result<(), WaitError> {
        host(|host| {
            let end = host.now_ms.saturating_add(duration_ms);
            let is_known = host.is_cancel_requested();
            match host.cancel_at_ms.filter(|at| !is_known && *at < end) {
                Some(at) => {
                    host.now_ms = at;
                    Err(WaitError::Canceled)
                }
                None => {
                    host.now_ms = end;
                    Ok(())
                }
            }
        })
    }
}

pub(crate) mod random {
    use crate::native::host;

    const BYTES_MAX: u32 = 65_536;

    /// `len` random bytes, at most 65,536.
    #[must_use]
    pub fn bytes(len: u32) -> Vec<u8> {
        host(|host| {
            (0..len.min(BYTES_MAX))
                .map(|_| {
                    // SplitMix64: any seed will do, and the numbers look random.
                    host.random_seed = host.random_seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mut z = host.random_seed;
                    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                    (z ^ (z >> 31)).to_le_bytes()[0]
                })
                .collect()
        })
    }
}

pub(crate) mod log {
    use crate::{bindings::agent::taskrun::plugin::log::Level, native::host, types::Label};

    /// Writes a line into the run's log.
    pub fn log(level: Level, message: &str, fields: &[Label]) {
        eprintln!("{level:?}: {message} {fields:?}");
        host(|host| host.log.push((level, message.to_owned(), fields.to_vec())));
    }
}

pub(crate) mod metrics {
    use crate::{native::host, types::Label};

    /// Adds to a counter.
    pub fn add(name: &str, delta: u64, _labels: &[Label]) {
        host(|host| {
            let sum = host.counters.entry(name.to_owned()).or_default();
            *sum = sum.saturating_add(delta);
        });
    }

    /// Records a measurement.
    pub fn record_value(name: &str, value: f64, _labels: &[Label]) {
        host(|host| host.values.entry(name.to_owned()).or_default().push(value));
    }
}

pub(crate) mod run {
    use crate::bindings::agent::taskrun::plugin::run::Remaining;
    use crate::{
        native::host,
        types::{RunContext, ToolSpec},
    };

    /// The run this call belongs to.
    #[must_use]
    pub fn context() -> RunContext {
        host(|host| host.context.clone())
    }

    /// The rest of its budget at this moment.
    #[must_use]
    pub fn budget() -> Remaining {
        host(|host| host.remaining)
    }

    /// The tools that the agent may use, sorted by name.
    #[must_use]
    pub fn tools() -> Vec<ToolSpec> {
        host(|host| {
            let mut tools = host.tools.clone();
            tools.sort_by(|a, b| a.name.cmp(&b.name));
            tools
        })
    }

    /// Part of a result that is left out of the conversation.
    ///
    /// # Errors
    ///
    /// If no result has that hash.
    pub fn read_result(hash: &str, offset: u64, max: u32) -> Result<Vec<u8>, String> {
        host(|host| {
            let whole = host.results.get(hash).ok_or("no result of this run has that hash")?;
            let from = usize::try_from(offset).map_or(whole.len(), |from| from.min(whole.len()));
            let most = if max == 0 { whole.len() } else { max as usize };
            Ok(whole[from..].iter().take(most).copied().collect())
        })
    }
}

pub(crate) mod cancellation {
    use crate::native::host;

    /// True if the run is being canceled.
    #[must_use]
    pub fn requested() -> bool {
        host(|host| host.is_cancel_requested())
    }
}

pub(crate) mod events {
    use crate::{
        native::{Event, host},
        types::{Label, Thinking, Usage},
    };

    fn tell(event: Event) {
        host(|host| host.events.push(event));
    }

    /// Tells a piece of the answer under construction.
    pub fn assistant_chunk(text: &str) {
        tell(Event::Chunk(text.to_owned()));
    }

    /// Tells a whole message on the way to the answer.
    pub fn assistant_message(text: &str) {
        tell(Event::Message(text.to_owned()));
    }

    /// Tells a fragment of a tool call's arguments.
    pub fn tool_call_args_delta(tool_call_id: &str, name: &str, delta: &str) {
        tell(Event::ArgsDelta(tool_call_id.to_owned(), name.to_owned(), delta.to_owned()));
    }

    /// Tells a block of a model's reasoning.
    pub fn planner_thinking_block(block: &Thinking) {
        tell(Event::Thinking(block.clone()));
    }

    /// Tells a remark of the planner itself.
    pub fn planner_thought(note: &str, labels: &[Label]) {
        tell(Event::Thought(note.to_owned(), labels.to_vec()));
    }

    /// Tells tokens consumed at a model that the host does not know of.
    pub fn usage_delta(usage: Usage) {
        tell(Event::Usage(usage));
    }
}

pub(crate) mod state {
    use crate::bindings::agent::taskrun::plugin::state::StateError;
    use crate::native::host;

    /// The value last set.
    #[must_use]
    pub fn get(key: &str) -> Option<String> {
        host(|host| host.state.get(key).cloned())
    }

    /// Keeps a value, or removes the key.
    ///
    /// # Errors
    ///
    /// When there are 1,000 keys already.
    pub fn set(key: &str, value: Option<&str>) -> Result<(), StateError> {
        const KEYS_MAX: usize = 1_000;
        host(|host| {
            let Some(value) = value else {
                host.state.remove(key);
                return Ok(());
            };
            if host.state.len() >= KEYS_MAX && !host.state.contains_key(key) {
                return Err(StateError::Limit(format!("at most {KEYS_MAX} keys")));
            }
            host.state.insert(key.to_owned(), value.to_owned());
            Ok(())
        })
    }

    /// All keys, sorted.
    #[must_use]
    pub fn keys() -> Vec<String> {
        host(|host| host.state.keys().cloned().collect())
    }
}

pub(crate) mod reminders {
    use crate::{
        bindings::agent::taskrun::plugin::reminders::{ReminderError, ReminderSpec},
        native::host,
    };

    /// Adds or replaces a note.
    ///
    /// # Errors
    ///
    /// None here; the host has bounds.
    pub fn add(reminder: &ReminderSpec) -> Result<(), ReminderError> {
        host(|host| host.reminders.insert(reminder.id.clone(), reminder.clone()));
        Ok(())
    }

    /// Removes a note.
    pub fn remove(id: &str) {
        host(|host| host.reminders.remove(id));
    }
}

pub(crate) use super::ask::{conversation, http, memory, memory_write, model, prompts};
pub(crate) use super::controller;
pub(crate) use super::workspace::{workspace_read, workspace_write};
