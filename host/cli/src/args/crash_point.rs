//! Named points at which a host kills itself, for the crash tests.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Kinds of events that a host writes, each with a point before and one after its append.
const KINDS: &[&str] = &[
    "lost",
    "assistant_chunk",
    "assistant_message",
    "tool_call_scheduled",
    "tool_result",
    "tool_call_repeated",
    "model_answered",
    "clock_read",
    "asked",
    "plan_decided",
    "finalize_requested",
    "blocked",
    "finalizing",
    "finalizer_started",
    "finished",
];

/// What a host persists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persisted {
    /// It takes runs.
    Claim,
    /// It appends an event of this kind, with whatever else is in the append.
    Append(&'static str),
}

/// On which side of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The write is not made.
    Before,
    /// It is made, and nobody hears of it.
    After,
}

/// A point at which a host dies: `claim.before`, `append.tool_result.after:3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// The write.
    pub persisted: Persisted,
    /// Before or after it.
    pub side: Side,
    /// At the how manieth such write, from 1.
    pub nth: NonZeroU32,
}

impl CrashPoint {
    /// Every point, each the first time.
    pub fn all() -> impl Iterator<Item = Self> {
        let appends = KINDS.iter().map(|kind| Persisted::Append(kind));
        std::iter::once(Persisted::Claim).chain(appends).flat_map(|persisted| {
            [Side::Before, Side::After].map(|side| Self { persisted, side, nth: NonZeroU32::MIN })
        })
    }

    /// The point without its number.
    #[must_use]
    pub fn name(&self) -> String {
        let side = match self.side {
            Side::Before => "before",
            Side::After => "after",
        };
        match self.persisted {
            Persisted::Claim => format!("claim.{side}"),
            Persisted::Append(kind) => format!("append.{kind}.{side}"),
        }
    }
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name(), self.nth)
    }
}

impl FromStr for CrashPoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, nth) = text.split_once(':').unwrap_or((text, "1"));
        let nth = nth.parse().map_err(|_| format!("{nth:?} is not a number from 1"))?;
        let point = Self::all().find(|point| point.name() == name);
        point.map(|point| Self { nth, ..point }).ok_or_else(|| {
            let known: Vec<String> = Self::all().map(|point| point.name()).collect();
            format!("unknown point; there are: {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::event::Event;

    use super::*;

    #[test]
    fn points_are_read_as_they_are_shown() {
        for point in CrashPoint::all() {
            let third = CrashPoint { nth: NonZeroU32::new(3).expect("not zero"), ..point };
            assert_eq!(third.to_string().parse(), Ok(third));
            assert_eq!(point.name().parse(), Ok(point));
        }
        assert!("append.lost.before:0".parse::<CrashPoint>().is_err());
        assert!("append.nothing.before".parse::<CrashPoint>().is_err());
    }

    #[test]
    fn points_are_about_kinds_that_exist() {
        assert!(KINDS.iter().all(|kind| Event::KINDS.contains(kind)));
    }
}
