//! Sizes and durations as people read and write them: a whole number and its unit, `64MiB`, `10s`.

use std::fmt;
use std::time::Duration;

/// Units of sizes, each with its bytes.
pub const SIZE_UNITS: [(&str, u64); 4] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Units of durations, each with its milliseconds.
pub const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Prints a size as a policy would write it.
pub struct SizeDisplay(pub u64);

impl fmt::Display for SizeDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.0, &SIZE_UNITS)
    }
}

/// Prints a duration as a policy would write it.
pub struct DurationDisplay(pub Duration);

impl fmt::Display for DurationDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX), &DURATION_UNITS)
    }
}

fn show(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let largest =
        units.iter().rev().find(|(_, factor)| value >= *factor && value.is_multiple_of(*factor));
    let (unit, factor) = largest.unwrap_or(&units[0]);
    write!(f, "{}{unit}", value / factor)
}
