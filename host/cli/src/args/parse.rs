//! Values as they are typed.

use std::ops::RangeInclusive;
use std::time::Duration;

use taskrun_journal::answers::Answers;
use taskrun_journal::money::parse_usd;
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::time::Timestamp;
use taskrun_policy::{COMPONENTS_KEPT_MIN, TREE_DEPTH_MAX, TREE_RUNS_MAX, TREE_SLOTS_MAX, size};

/// Fewest bytes that a store may have, as in less nothing could be kept.
const STORE_BYTES_MIN: u64 = 64 << 10;
/// A shorter one could pass between two signs of life of a busy machine.
const LEASE_MIN: Duration = Duration::from_millis(500);
/// Runs of a host that died wait as long.
const LEASE_MAX: Duration = Duration::from_secs(60 * 60);

/// `30s`, `20m`, `1h 30m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a duration as 500ms, 30s, 20m or 1h30m"))
}

/// A word that names something: an empty one would name the same thing for everybody.
pub(super) fn some_text(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("it is empty".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// A lease: long enough that a host can give several signs of life in it.
pub(super) fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    match (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        true => Ok(lease),
        false => Err("write a lease of 500ms to 1h".to_owned()),
    }
}

/// The most bytes of a store: so many that something can be kept in it.
pub(super) fn store_max(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes >= STORE_BYTES_MIN => Ok(bytes),
        _ => Err("write 64KiB or more: in less no run can be kept".to_owned()),
    }
}

/// The time for which components are kept that nobody wants: no shorter than a policy may state it.
pub(super) fn components_kept(text: &str) -> Result<Duration, String> {
    let kept = duration(text)?;
    match kept >= COMPONENTS_KEPT_MIN {
        true => Ok(kept),
        false => Err("write 1h or longer: hosts say only now and then what they use".to_owned()),
    }
}

/// Reads `key=value`.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    key_and_value(text).ok_or_else(|| "write a label as key=value".to_owned())
}

/// The same of what is no label.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    key_and_value(text).ok_or_else(|| "write it as key=value".to_owned())
}

fn key_and_value(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    let key = key.trim();
    (!key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
}

/// `key=value` of a question to the policy.
pub(super) fn argument(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    match key.trim() {
        "" => Err("write an argument as key=value".to_owned()),
        _ if key.len() == text.len() => Err(format!("write it with a value, as {key}=VALUE")),
        key => Ok((key.to_owned(), value.to_owned())),
    }
}

/// `tool/function=10s`, or `10s` for all.
pub(super) fn tool_timeout(text: &str) -> Result<(String, Duration), String> {
    let (pattern, timeout) = text.rsplit_once('=').unwrap_or(("*", text));
    Ok((pattern.trim().to_owned(), duration(timeout.trim())?))
}

/// The limits of a run, where they are narrower than its agent's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Turns of the run.
    pub turns: Option<u32>,
    /// Tokens of all its model completions.
    pub tokens: Option<u64>,
    /// Tokens that models read.
    pub prompt_tokens: Option<u64>,
    /// Tokens that models wrote.
    pub completion_tokens: Option<u64>,
    /// Money, in millionths of a US dollar.
    pub cost_microusd: Option<u64>,
    /// Tool calls of the run.
    pub tool_calls: Option<u32>,
    /// Time for which it runs.
    pub wall: Option<Duration>,
    /// Tool calls of a turn.
    pub turn_calls: Option<u32>,
    /// Failed tool calls in a row.
    pub tool_failures: Option<u32>,
    /// Time of a plan step.
    pub step: Option<Duration>,
    /// Time of the last step.
    pub last_step: Option<Duration>,
}

/// Gives a key its value, once.
fn set<T>(slot: &mut Option<T>, key: &str, value: Result<T, String>) -> Result<(), String> {
    let value = value.map_err(|error| format!("{key}: {error}"))?;
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{key} stands there twice")),
    }
}

fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{value:?} is no number that fits"))
}

/// A number that a policy could state for the same.
fn within<T>(value: &str, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let number: T = number(value)?;
    match range.contains(&number) {
        true => Ok(number),
        false => Err(format!("write {} to {}", range.start(), range.end())),
    }
}

/// `depth=2,runs=128,slots=8`, each at most once, in the ranges that a policy has for them.
pub(super) fn tree(text: &str) -> Result<TreeBounds, String> {
    let mut tree = TreeBounds::default();
    for pair in text.split(',') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (key.trim(), value.trim());
        match key {
            "depth" => set(&mut tree.depth, key, within(value, &(0..=TREE_DEPTH_MAX)))?,
            "runs" => set(&mut tree.runs, key, within(value, &(1..=TREE_RUNS_MAX)))?,
            "slots" => set(&mut tree.slots, key, within(value, &(1..=TREE_SLOTS_MAX)))?,
            _ => return Err(format!("known are depth, runs and slots, not {key:?}")),
        }
    }
    Ok(tree)
}

/// `turns=3,tokens=1000,usd=0.50,tool-calls=5,wall=10m`, each at most once.
pub(super) fn budget(text: &str) -> Result<Budget, String> {
    let mut budget = Budget::default();
    for pair in text.split(',') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (key.trim(), value.trim());
        match key {
            "turns" => set(&mut budget.turns, key, number(value))?,
            "tokens" => set(&mut budget.tokens, key, number(value))?,
            "prompt-tokens" => set(&mut budget.prompt_tokens, key, number(value))?,
            "completion-tokens" => set(&mut budget.completion_tokens, key, number(value))?,
            "usd" => set(&mut budget.cost_microusd, key, parse_usd(value).map_err(str::to_owned))?,
            "tool-calls" => set(&mut budget.tool_calls, key, number(value))?,
            "wall" => set(&mut budget.wall, key, duration(value))?,
            "turn-calls" => set(&mut budget.turn_calls, key, number(value))?,
            "tool-failures" => set(&mut budget.tool_failures, key, number(value))?,
            "step" => set(&mut budget.step, key, duration(value))?,
            "last-step" => set(&mut budget.last_step, key, duration(value))?,
            _ => {
                return Err(format!(
                    "known are turns, tokens, prompt-tokens, completion-tokens, usd, tool-calls, wall, \
                     turn-calls, tool-failures, step and last-step, not {key:?}"
                ));
            }
        }
    }
    Ok(budget)
}

/// A point in time, or how long ago it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// That long before now.
    Ago(Duration),
    /// At this time.
    At(Timestamp),
}

impl Since {
    /// The point in time.
    #[must_use]
    pub(crate) fn before(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Ago(ago) => Timestamp(now.0.saturating_sub(taskrun_journal::time::millis(ago))),
            Self::At(time) => time,
        }
    }
}

/// `1h`, or `2026-01-31T12:00:00Z`.
pub(super) fn since(text: &str) -> Result<Since, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return Ok(Since::Ago(ago));
    }
    let time = text.parse::<jiff::Timestamp>().ok();
    time.and_then(|time| u64::try_from(time.as_millisecond()).ok())
        .map(|ms| Since::At(Timestamp(ms)))
        .ok_or_else(|| "write how long ago, as 1h, or a time, as 2026-01-31T12:00:00Z".to_owned())
}

/// The answerer of a run's questions: `inbox`, `refuse`, `refuse:WHY`, `fixed:TEXT`.
pub(super) fn answers(text: &str) -> Result<Answers, String> {
    Answers::named(text).ok_or_else(|| "write inbox, refuse, refuse:WHY or fixed:TEXT".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_ages_and_as_points() {
        assert_eq!(since("1h").map(|s| s.before(Timestamp(3_600_001))), Ok(Timestamp(1)));
        assert_eq!(since("1970-01-01T00:00:01Z"), Ok(Since::At(Timestamp(1_000))));
        assert!(since("yesterday").is_err());
    }

    #[test]
    fn components_are_kept_for_an_hour_at_least() {
        assert_eq!(components_kept("1h"), Ok(Duration::from_secs(3_600)));
        for short in ["59m 59s", "1s", "0s"] {
            assert!(components_kept(short).is_err(), "{short:?}");
        }
    }

    #[test]
    fn a_store_and_a_tree_have_the_least_and_the_most_that_is_sensible() {
        assert_eq!(store_max("64KiB"), Ok(64 << 10));
        for little in ["0B", "1B", "63KiB"] {
            assert!(store_max(little).is_err_and(|fault| fault.contains("64KiB")), "{little:?}");
        }
        let most = TreeBounds { depth: Some(8), runs: Some(4_096), slots: Some(64) };
        assert_eq!(tree("depth=8,runs=4096,slots=64"), Ok(most));
        for (wrong, says) in [
            ("depth=99", "depth: write 0 to 8"),
            ("runs=0", "runs: write 1 to 4096"),
            ("slots=65", "slots: write 1 to 64"),
        ] {
            assert_eq!(tree(wrong), Err(says.to_owned()));
        }
    }

    #[test]
    fn a_budget_says_each_thing_once() {
        let all = budget(
            "turns=3,tokens=1000,prompt-tokens=900,completion-tokens=100,usd=0.5,tool-calls=0,\
             turn-calls=2,tool-failures=1, wall=10m,step=3s,last-step=4s",
        );
        let expected = Budget {
            turns: Some(3),
            tokens: Some(1_000),
            prompt_tokens: Some(900),
            completion_tokens: Some(100),
            cost_microusd: Some(500_000),
            tool_calls: Some(0),
            wall: Some(Duration::from_secs(600)),
            turn_calls: Some(2),
            tool_failures: Some(1),
            step: Some(Duration::from_secs(3)),
            last_step: Some(Duration::from_secs(4)),
        };
        assert_eq!(all, Ok(expected));
        for wrong in ["", "turns", "turns=", "turns=-1", "turns=1,turns=2", "wall=5", "money=1"] {
            assert!(budget(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_word_that_names_something_is_not_blank() {
        assert_eq!(some_text(" a b "), Ok(" a b ".to_owned()));
        for blank in ["", " ", "\n"] {
            assert!(some_text(blank).is_err(), "{blank:?}");
        }
    }

    #[test]
    fn labels_need_a_key() {
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(label("=b").is_err());
        assert!(label("a").is_err());
        assert_eq!(pair("a= b"), Ok(("a".to_owned(), " b".to_owned())));
        assert!(pair(" =b").is_err());
    }
}
