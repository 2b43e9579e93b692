//! Named points at which a host kills itself.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use taskrun_journal::event::Event;

const THIRD: NonZeroU32 = NonZeroU32::new(3).unwrap();

/// Kinds of events that a host writes, each with a point before and one after its append.
const KINDS: &[&str] = &[
    "lost",
    "assistant_chunk",
    "assistant_message",
    "tool_call_scheduled",
    "tool_result",
    "tool_call_repeated",
    "tool_call_parked",
    "child_run_linked",
    "host_answered",
    "memory_appended",
    "clock_read",
    "step_failed",
    "inbox_shown",
    "asked",
    "plan_decided",
    "finalize_requested",
    "blocked",
    "finalizing",
    "finalizer_started",
    "finished",
];

/// The kind of the event with which a round ends.
const ROUND_ENDED: &str = "round_ended";

/// A write of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persisted {
    /// It takes runs.
    Claim,
    /// It appends an event of this kind, with whatever else is in the append.
    Append(&'static str),
    /// It appends the end of a round with which the run leaves something behind.
    Checkpoint,
}

/// The side of the write on which the host dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The write is not made.
    Before,
    /// It is made, and nobody hears of it.
    After,
}

/// A point at which a host dies: `claim.before`, `append.tool_result.after:3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CrashPoint {
    /// The write.
    pub(crate) persisted: Persisted,
    /// Before or after it.
    pub(crate) side: Side,
    /// The number of the write at which it dies, from 1.
    pub(crate) nth: NonZeroU32,
}

impl CrashPoint {
    /// Every point to which the mixed load comes, each the first time.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let appends = KINDS.iter().map(|kind| Persisted::Append(kind));
        std::iter::once(Persisted::Claim).chain(appends).flat_map(Self::around)
    }

    /// Those to which runs come that go on by themselves: around the end of a round, and between the two
    /// around one that leaves something behind.
    pub(crate) fn of_rounds() -> [Self; 4] {
        let [before, after] = Self::around(Persisted::Append(ROUND_ENDED));
        let [before_fold, after_fold] = Self::around(Persisted::Checkpoint);
        [before, before_fold, after_fold, after]
    }

    fn around(persisted: Persisted) -> [Self; 2] {
        [Side::Before, Side::After].map(|side| Self { persisted, side, nth: NonZeroU32::MIN })
    }

    fn every() -> impl Iterator<Item = Self> {
        Self::all().chain(Self::of_rounds())
    }

    /// The point without its number.
    pub(crate) fn name(&self) -> String {
        let side = match self.side {
            Side::Before => "before",
            Side::After => "after",
        };
        match self.persisted {
            Persisted::Claim => format!("claim.{side}"),
            Persisted::Append(kind) => format!("append.{kind}.{side}"),
            Persisted::Checkpoint => format!("checkpoint.{side}"),
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
        let point = Self::every().find(|point| point.name() == name);
        point.map(|point| Self { nth, ..point }).ok_or_else(|| {
            let known: Vec<String> = Self::every().map(|point| point.name()).collect();
            format!("unknown point; there are: {}", known.join(", "))
        })
    }
}

/// Holds the points to their own spelling, and to events that exist.
///
/// # Errors
/// The point that is not read as it is shown, or that no event comes to.
pub(crate) fn prove() -> Result<(), String> {
    for point in CrashPoint::every() {
        let third = CrashPoint { nth: THIRD, ..point };
        if third.to_string().parse() != Ok(third) || point.name().parse() != Ok(point) {
            return Err(format!("{third} is not read as it is shown"));
        }
    }
    for wrong in ["append.lost.before:0", "append.nothing.before"] {
        if wrong.parse::<CrashPoint>().is_ok() {
            return Err(format!("{wrong} is no point"));
        }
    }
    match KINDS.iter().chain([&ROUND_ENDED]).find(|kind| !Event::KINDS.contains(kind)) {
        Some(kind) => Err(format!("no event is a {kind}")),
        None => Ok(()),
    }
}
