//! Durations, ages and sizes for people.

use std::time::Duration;

use taskrun_journal::media::Media;
use taskrun_journal::run::Run;
use taskrun_journal::time::Timestamp;

use super::escape::escaped_line;

/// `12ms`, `3.4s`, `2m05s`, `3h12m`, `4d06h`.
#[must_use]
pub(crate) fn duration(duration: Duration) -> String {
    let (ms, s) = (duration.as_millis(), duration.as_secs());
    match s {
        _ if ms < 1_000 => format!("{ms}ms"),
        0..60 => format!("{}.{}s", s, ms % 1_000 / 100),
        60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{:02}m", s / 3_600, s % 3_600 / 60),
        86_400.. => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// An age in whole units: `0s`, `59s`, `2m`, `3h`, `4d`.
#[must_use]
pub(crate) fn age(age: Duration) -> String {
    let s = age.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3_600 => format!("{}m", s / 60),
        3_600..86_400 => format!("{}h", s / 3_600),
        86_400.. => format!("{}d", s / 86_400),
    }
}

/// A time to come, in the nearest whole unit: `59s`, `2m`, and `1h` for 59 minutes and a half.
#[must_use]
pub(crate) fn ahead(time: Duration) -> String {
    let s = time.as_secs() + u64::from(time.subsec_millis() >= 500);
    let nearest = |unit: u64| (s + unit / 2) / unit;
    let (minutes, hours) = (nearest(60), nearest(3_600));
    if s < 60 {
        format!("{s}s")
    } else if minutes < 60 {
        format!("{minutes}m")
    } else if hours < 24 {
        format!("{hours}h")
    } else {
        format!("{}d", nearest(86_400))
    }
}

/// When something is due, seen from now: `due in 6h`, `due since 2m`.
#[must_use]
pub(crate) fn due(due: Timestamp, now: Timestamp) -> String {
    match due > now {
        true => format!("due in {}", ahead(due.since(now))),
        false => format!("due since {}", age(now.since(due))),
    }
}

/// `512 B`, `4.0 KiB`, `64 MiB`.
#[must_use]
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1 << 10 {
        return format!("{bytes} B");
    }
    let mut tenths = u128::from(bytes) * 10 / 1_024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1_024;
        unit += 1;
    }
    let name = UNITS[unit];
    if tenths % 10 == 0 || tenths >= 1_000 {
        format!("{} {name}", tenths / 10)
    } else {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

/// `1 turn`, `2 turns`.
#[must_use]
pub(crate) fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// An image: its type, its size, and the name by which `taskrun get --artifact` gives it.
pub(crate) fn image(image: &Media) -> String {
    format!("{}, {}, {}", escaped_line(&image.media_type), bytes(image.size), image.hash)
}

/// The images of a run's answer, each in a line that says how it is had.
pub(crate) fn answer_images(run: &Run) -> impl Iterator<Item = String> {
    run.state.reply.images().iter().map(|one| {
        let kind = escaped_line(&one.media_type);
        let size = bytes(one.size);
        format!("{kind}, {size}: `taskrun get {} --artifact {}`", run.id(), one.hash)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let table = [
            (0, "0ms"),
            (999, "999ms"),
            (1_050, "1.0s"),
            (59_990, "59.9s"),
            (125_000, "2m05s"),
            (3_600_000, "1h00m"),
            (90_000_000, "1d01h"),
        ];
        for (ms, expected) in table {
            assert_eq!(duration(Duration::from_millis(ms)), expected);
        }
    }

    #[test]
    fn times_to_come_are_said_in_the_nearest_unit() {
        let table = [
            (0, "0s"),
            (59_400, "59s"),
            (59_600, "1m"),
            (3_569_000, "59m"),
            (3_598_000, "1h"),
            (7_500_000, "2h"),
            (86_398_000, "1d"),
            (172_798_000, "2d"),
        ];
        for (ms, expected) in table {
            assert_eq!(ahead(Duration::from_millis(ms)), expected, "{ms}");
        }
        assert_eq!(due(Timestamp(3_600_000), Timestamp(1_500)), "due in 1h");
        assert_eq!(due(Timestamp(1_500), Timestamp(3_600_000)), "due since 59m");
    }

    #[test]
    fn sizes_are_short() {
        let table = [
            (0, "0 B"),
            (1_024, "1 KiB"),
            (1_536, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            (123_456_789, "117 MiB"),
        ];
        for (size, expected) in table {
            assert_eq!(bytes(size), expected);
        }
    }
}
