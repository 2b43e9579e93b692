//! The reason that a component was not compiled, or not looked at to the end, kept beside the native
//! code of others: the next request is answered at once.

use std::time::Duration;

use taskrun_journal::time::Timestamp;

use crate::cache::Entry;
use crate::error::LoadError;
use crate::worker::Task;

/// The time for which it is remembered that a component took too much, or that the compiler panicked
/// at it: either may have met a limit of the machine, such as that of a container, which an operator
/// raises.
pub(crate) const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Most bytes of a compiler's error, or of the words of its panic; they may quote the component.
pub(crate) const TEXT_BYTES_MAX: usize = 4 << 10;

/// The reason that a component was not compiled, or not looked at to the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The compiler does not accept it, or the engine the code that the compiler makes of it. These
    /// versions of them never will.
    Invalid(String),
    /// It took more time or memory than it may.
    OverLimit {
        /// The time at which it is tried again.
        until: Timestamp,
    },
    /// The compiler panicked.
    Panicked {
        /// The time at which it is tried again.
        until: Timestamp,
    },
}

impl Refusal {
    /// True while it still counts.
    pub(crate) fn counts(&self, now: Timestamp) -> bool {
        match self {
            Self::Invalid(_) => true,
            // A time further away than it is ever set is that of a clock which was wrong.
            Self::OverLimit { until } | Self::Panicked { until } => {
                now < *until && *until <= now.plus(KEPT)
            }
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Invalid(text) => {
                let text = taskrun_journal::text::cut(text, TEXT_BYTES_MAX);
                [b"i", text.as_bytes()].concat()
            }
            Self::OverLimit { until } => [&b"l"[..], &until.0.to_le_bytes()].concat(),
            Self::Panicked { until } => [&b"p"[..], &until.0.to_le_bytes()].concat(),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (b'i', text) => Some(Self::Invalid(String::from_utf8(text.to_vec()).ok()?)),
            (kind @ (b'l' | b'p'), until) => {
                let until = Timestamp(u64::from_le_bytes(until.try_into().ok()?));
                Some(match kind {
                    b'l' => Self::OverLimit { until },
                    _ => Self::Panicked { until },
                })
            }
            _ => None,
        }
    }
}

impl From<Refusal> for LoadError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(text) => Self::from_compiler_text(&text),
            Refusal::OverLimit { until } => Self::CompileRefused { after: until },
            Refusal::Panicked { until } => Self::CompilerPanicked { after: until },
        }
    }
}

/// The entry for a refusal of what would be kept as `wanted`: under other limits it may succeed.
pub(crate) fn entry(wanted: Entry, task: Task) -> Entry {
    let mut hasher = blake3::Hasher::new();
    hasher.update(wanted.compatibility.as_bytes());
    hasher.update(&task.cpu_seconds_max().to_le_bytes());
    hasher.update(&task.memory_bytes_max().to_le_bytes());
    for bound in crate::config::pool_bounds() {
        hasher.update(&bound.to_le_bytes());
    }
    Entry { component: wanted.component, compatibility: hasher.finalize() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_as_it_was_written() {
        let now = Timestamp(1_000);
        let invalid = Refusal::Invalid("type mismatch".to_owned());
        let over = Refusal::OverLimit { until: now.plus(KEPT) };
        let panicked = Refusal::Panicked { until: now.plus(KEPT) };
        for refusal in [invalid, over, panicked] {
            assert!(refusal.counts(now));
            assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
        }
        for bytes in [&b""[..], b"x", b"l", b"l1234567", b"p1234567", b"i\xff"] {
            assert_eq!(Refusal::decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn what_took_too_much_is_tried_again_some_day() {
        let over = Refusal::OverLimit { until: Timestamp(1_000) };
        assert!(over.counts(Timestamp(999)));
        assert!(!over.counts(Timestamp(1_000)));
        let of_a_wrong_clock = Refusal::OverLimit { until: Timestamp(u64::MAX) };
        assert!(!of_a_wrong_clock.counts(Timestamp(999)));
        let long = Refusal::Invalid("\u{e4}".repeat(TEXT_BYTES_MAX));
        assert!(long.encode().len() <= TEXT_BYTES_MAX + 1);
        assert!(Refusal::decode(&long.encode()).is_some());
    }
}
