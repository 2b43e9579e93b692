//! Time and randomness, as the controller sees them.
//!
//! Both come through traits so that whole runs replay and tests need not wait. No other place
//! reads a clock.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since 1970-01-01T00:00:00Z. Shown as RFC 3339 in UTC with three
/// decimals; one after the year 9999, such as that of a clock which counts microseconds, as its
/// number and `ms`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time `later` after this one, or the last representable one.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(millis(later)))
    }

    /// The time that a text in RFC 3339 names; `None` if it names none, or one before 1970.
    #[must_use]
    pub fn from_rfc3339(text: &str) -> Option<Self> {
        let time: jiff::Timestamp = text.parse().ok()?;
        u64::try_from(time.as_millisecond()).ok().map(Self)
    }

    /// The time that was shown as `text`, or that it names in RFC 3339.
    fn from_shown(text: &str) -> Option<Self> {
        Self::from_rfc3339(text).or_else(|| {
            let time = text.strip_suffix("ms")?.parse().ok().map(Self);
            time.filter(|time| time.to_string() == text)
        })
    }

    /// The time from `earlier` to this one; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = i64::try_from(self.0).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_millisecond(ms) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

/// Serialises a [`Timestamp`] as RFC 3339, for what people and programs read.
pub mod rfc3339 {
    use serde::Serializer;

    use super::Timestamp;

    /// A time that is always there.
    ///
    /// # Errors
    /// Those of the serialiser.
    pub fn serialize<S: Serializer>(time: &Timestamp, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(time)
    }

    /// A time that may be absent.
    pub mod option {
        use serde::{Deserialize, Deserializer, Serializer, de};

        use super::Timestamp;

        /// Writes the time, or null.
        ///
        /// # Errors
        /// Those of the serialiser.
        pub fn serialize<S: Serializer>(
            time: &Option<Timestamp>,
            out: S,
        ) -> Result<S::Ok, S::Error> {
            match time {
                Some(time) => out.collect_str(time),
                None => out.serialize_none(),
            }
        }

        /// Reads back what [`serialize`] wrote, also a time that RFC 3339 has no text for.
        ///
        /// # Errors
        /// Those of the deserialiser, or if it is no time.
        pub fn deserialize<'de, D: Deserializer<'de>>(
            input: D,
        ) -> Result<Option<Timestamp>, D::Error> {
            let text = Option::<String>::deserialize(input)?;
            text.map(|text| {
                let time = Timestamp::from_shown(&text);
                time.ok_or_else(|| de::Error::custom(format_args!("{text:?} is no time")))
            })
            .transpose()
        }
    }
}

/// Whole milliseconds of a duration, saturating.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The only source of time in the controller.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The time of day. May go backwards when somebody sets the machine's clock.
    fn now(&self) -> Timestamp;

    /// Time since some fixed point in the life of this process; never goes backwards.
    fn monotonic(&self) -> Duration;

    /// Returns when [`Self::monotonic`] shows `at` or more. A time that was worked out before is
    /// kept so also where the clock is moved between that and the wait.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait and nothing else.
    async fn sleep_until(&self, at: Duration);

    /// Returns when `duration` has passed since the call, and not since the first poll: what is
    /// bounded by it may do much when it is polled before it.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the wait and nothing else.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.sleep_until(self.monotonic().saturating_add(duration))
    }
}

/// The only source of randomness in the controller.
pub trait Random: Send + Sync {
    /// Fills `bytes` with numbers good for keys.
    fn fill(&self, bytes: &mut [u8]);
}

/// A random number of 64 bits.
#[must_use]
pub fn random_u64(random: &dyn Random) -> u64 {
    let mut bytes = [0; 8];
    random.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_utc_with_milliseconds() {
        assert_eq!(Timestamp(1_700_000_000_007).to_string(), "2023-11-14T22:13:20.007Z");
        assert_eq!(Timestamp(1_700_000_000_000).to_string(), "2023-11-14T22:13:20.000Z");
    }

    #[test]
    fn a_time_that_is_shown_is_read_back_whatever_clock_it_is_of() {
        let last = 253_402_207_200_000;
        assert_eq!(Timestamp(last).to_string(), "9999-12-30T22:00:00.000Z");
        assert_eq!(Timestamp(last + 1).to_string(), "253402207200001ms");
        let in_microseconds = 1_700_000_000_000_000;
        for ms in [0, 7, last, last + 1, in_microseconds, i64::MAX as u64 + 1, u64::MAX] {
            let time = Timestamp(ms);
            assert_eq!(Timestamp::from_shown(&time.to_string()), Some(time));
        }
        for other in ["", "ms", "7ms", "+253402207200001ms", "253402207200001", "yesterday"] {
            assert_eq!(Timestamp::from_shown(other), None, "{other:?}");
        }
        assert_eq!(Timestamp::from_rfc3339("253402207200001ms"), None, "nobody asks for that");
    }
}
