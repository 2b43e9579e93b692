//! Values as they are typed.

use std::time::Duration;

use taskrun::time::Timestamp;

/// `30s`, `20m`, `1h 30m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write a duration as 500ms, 30s, 20m or 1h30m"))
}

/// `key=value`.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        Some(_) | None => Err("write a label as key=value".to_owned()),
    }
}

/// A point in time, or how long ago it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// That long before now.
    Ago(Duration),
    /// Then.
    At(Timestamp),
}

impl Since {
    /// The point in time.
    #[must_use]
    pub fn before(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Ago(ago) => Timestamp(now.0.saturating_sub(taskrun::time::millis(ago))),
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
    fn labels_need_a_key() {
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(label("=b").is_err());
        assert!(label("a").is_err());
    }
}
