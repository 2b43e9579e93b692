//! The times at which a heart beats.

use std::time::Duration;

use croner::parser::{CronParser, Seconds, Year};
use croner::{Cron, errors::CronError};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Zoned};
use taskrun_journal::time::{Timestamp, millis};

/// When a heart beats: the same times for every host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeatTimes {
    /// At the multiples of a time since 1970, whole milliseconds and not zero.
    Every(Duration),
    /// By the clock and calendar of a time zone.
    Cron(Box<CronTimes>),
}

/// Times by the clock and calendar of a time zone. Each time of the clock comes once: one that summer
/// time skips as much later as it skips, one that it brings twice the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronTimes {
    pattern: String,
    cron: Cron,
    zone_name: String,
    zone: TimeZone,
}

/// The mistake in the pattern or the zone of such times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CronFault {
    /// Of the pattern, in words.
    Pattern(String),
    /// No time zone of this name is known to the machine.
    Zone,
}

/// The zone unless another one is named.
pub const ZONE_DEFAULT: &str = "UTC";
/// Fields of a pattern: minute, hour, day of the month, month, day of the week.
const FIELDS: usize = 5;
/// Longer than any step that summer time makes.
const STEP_MAX: SignedDuration = SignedDuration::from_hours(3);
/// Most times that are looked at for one: the minutes of two such steps, and some more.
const LOOKS_MAX: usize = 400;

impl CronTimes {
    /// The times of a pattern of five fields, in the zone of this name.
    ///
    /// # Errors
    /// [`CronFault`]; of the pattern also if none of its times ever comes.
    pub fn new(pattern: &str, zone_name: &str) -> Result<Self, CronFault> {
        let fields = pattern.split_whitespace().count();
        if fields != FIELDS {
            let fault = format!("it has {fields} fields, not {FIELDS}");
            return Err(CronFault::Pattern(fault));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed);
        let cron = parser.build().parse(pattern);
        let fault = |error: CronError| CronFault::Pattern(error.to_string());
        let cron = cron.map_err(fault)?;
        let zone = match zone_name {
            ZONE_DEFAULT => TimeZone::UTC,
            name => TimeZone::get(name).map_err(|_| CronFault::Zone)?,
        };
        let times =
            Self { pattern: pattern.to_owned(), cron, zone_name: zone_name.to_owned(), zone };
        match times.next_after(Timestamp(0)) {
            Some(_) => Ok(times),
            None => Err(CronFault::Pattern("its time never comes".to_owned())),
        }
    }

    /// The pattern as the policy has it.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The name of the zone.
    #[must_use]
    pub fn zone_name(&self) -> &str {
        &self.zone_name
    }

    /// The clock of the zone, a step earlier or later, as if it were in a zone without summer time:
    /// there every time of the clock comes once.
    fn clock(&self, now: Timestamp, step: SignedDuration) -> Option<Zoned> {
        let now = jiff::Timestamp::from_millisecond(i64::try_from(now.0).ok()?).ok()?;
        let local = now.checked_add(step).ok()?.to_zoned(self.zone.clone()).datetime();
        local.to_zoned(TimeZone::UTC).ok()
    }

    /// The moment of a time of the clock.
    fn moment(&self, clock: &Zoned) -> Option<Timestamp> {
        let moment = self.zone.to_ambiguous_zoned(clock.datetime()).compatible().ok()?;
        u64::try_from(moment.timestamp().as_millisecond()).ok().map(Timestamp)
    }

    fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        let mut clock = self.clock(now, -STEP_MAX)?;
        for _ in 0..LOOKS_MAX {
            clock = self.cron.find_next_occurrence(&clock, false).ok()?;
            let moment = self.moment(&clock);
            if moment.is_some_and(|moment| moment > now) {
                return moment;
            }
        }
        None
    }

    fn last_until(&self, now: Timestamp) -> Option<Timestamp> {
        let mut clock = self.clock(now, STEP_MAX)?;
        for _ in 0..LOOKS_MAX {
            clock = self.cron.find_previous_occurrence(&clock, false).ok()?;
            let moment = self.moment(&clock)?;
            if moment <= now {
                return Some(moment);
            }
        }
        None
    }
}

impl BeatTimes {
    /// The first time after a moment.
    #[must_use]
    pub fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(interval) => {
                let interval = interval_ms(*interval);
                Some(Timestamp((now.0 / interval + 1).checked_mul(interval)?))
            }
            Self::Cron(times) => times.next_after(now),
        }
    }

    /// The last time that has come at a moment.
    #[must_use]
    pub fn last_until(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(interval) => {
                let interval = interval_ms(*interval);
                Some(Timestamp(now.0 / interval * interval))
            }
            Self::Cron(times) => times.last_until(now),
        }
    }

    /// The name of one of these times, the same on every host.
    #[must_use]
    pub fn name(&self, time: Timestamp) -> String {
        match self {
            Self::Every(interval) => (time.0 / interval_ms(*interval)).to_string(),
            Self::Cron(_) => format!("at {}", time.0),
        }
    }
}

fn interval_ms(interval: Duration) -> u64 {
    millis(interval).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let moment: jiff::Timestamp = text.parse().expect("a time");
        Timestamp(u64::try_from(moment.as_millisecond()).expect("after 1970"))
    }

    fn said(time: Timestamp) -> String {
        let moment = i64::try_from(time.0).expect("in range");
        jiff::Timestamp::from_millisecond(moment).expect("in range").to_string()
    }

    fn cron(pattern: &str, zone: &str) -> BeatTimes {
        BeatTimes::Cron(Box::new(CronTimes::new(pattern, zone).expect(pattern)))
    }

    /// The times between two moments, which are those that are last when each has come.
    fn between(times: &BeatTimes, from: &str, to: &str) -> Vec<String> {
        let (mut now, to, mut all) = (at(from), at(to), Vec::new());
        while let Some(next) = times.next_after(now).filter(|next| *next <= to) {
            assert_eq!(times.last_until(next), Some(next));
            assert_eq!(times.last_until(Timestamp(next.0 + 1)), Some(next));
            all.push(said(next));
            now = next;
        }
        all
    }

    #[test]
    fn times_come_by_the_clock_of_the_zone() {
        let weekdays = cron("0 9 * * 1-5", "Europe/Berlin");
        let week = between(&weekdays, "2026-06-05T12:00:00Z", "2026-06-09T12:00:00Z");
        assert_eq!(week, ["2026-06-08T07:00:00Z", "2026-06-09T07:00:00Z"]);
        let winter = between(&weekdays, "2026-12-01T00:00:00Z", "2026-12-01T23:00:00Z");
        assert_eq!(winter, ["2026-12-01T08:00:00Z"]);
        let utc =
            between(&cron("*/20 8 * * *", "UTC"), "2026-06-05T07:00:00Z", "2026-06-05T12:00:00Z");
        assert_eq!(utc.len(), 3);
    }

    #[test]
    fn an_hour_that_summer_time_skips_or_doubles_comes_once() {
        let night = cron("30 2 * * *", "Europe/Berlin");
        let skipped = between(&night, "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z");
        assert_eq!(skipped, ["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"]);
        let doubled = between(&night, "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z");
        assert_eq!(doubled, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
        let hourly = cron("0 * * * *", "Europe/Berlin");
        let short_day = between(&hourly, "2026-03-28T22:59:00Z", "2026-03-29T21:59:00Z");
        assert_eq!(short_day.len(), 23);
        let long_day = between(&hourly, "2026-10-24T21:59:00Z", "2026-10-25T22:59:00Z");
        assert_eq!(long_day.len(), 24);
        // One that is looked for within the step is found, too.
        let late = night.next_after(at("2026-03-29T01:10:00Z"));
        assert_eq!(late, Some(at("2026-03-29T01:30:00Z")));
        let over = night.next_after(at("2026-10-25T01:10:00Z"));
        assert_eq!(over, Some(at("2026-10-26T01:30:00Z")));
    }

    #[test]
    fn every_time_of_an_interval_has_one_name() {
        let times = BeatTimes::Every(Duration::from_secs(60));
        assert_eq!(times.next_after(Timestamp(60_000)), Some(Timestamp(120_000)));
        assert_eq!(times.last_until(Timestamp(119_999)), Some(Timestamp(60_000)));
        assert_eq!(times.name(Timestamp(119_999)), times.name(Timestamp(60_000)));
    }

    #[test]
    fn what_is_no_pattern_of_five_fields_or_never_comes_is_refused() {
        for pattern in
            ["", "* * * *", "* * * * * *", "61 * * * *", "@daily", "0 0 30 2 *", "a b c d e"]
        {
            let fault = CronTimes::new(pattern, ZONE_DEFAULT).expect_err(pattern);
            assert!(matches!(fault, CronFault::Pattern(_)), "{pattern}: {fault:?}");
        }
        assert_eq!(CronTimes::new("0 9 * * *", "Berlin"), Err(CronFault::Zone));
    }
}
