//! The tool by which a run that goes on by itself says when its next round begins.

use std::time::Duration;

use serde_json::{Map, Value, json};
use taskrun_journal::autonomy::{Autonomy, CONTINUATION_BYTES_MAX, MARK_BYTES_MAX, Mark, Schedule};
use taskrun_journal::text::cut;
use taskrun_journal::time::Timestamp;
use taskrun_policy::{BeatTimes, CronFault, CronTimes};

use super::own::{arguments, marked, text};
use super::value;
use crate::ports::tool::ToolReply;

/// The time zone of a pattern that names none.
const ZONE_DEFAULT: &str = "UTC";
/// Most bytes of a pattern, or of the name of a zone.
const PATTERN_BYTES_MAX: usize = 256;
/// Most times of a pattern that are counted: in a year there are half a million minutes.
const COUNTED_MAX: usize = 1_000;

pub(super) const SCHEDULE: &str = "Says when your next round begins, instead of at once. Give exactly one of wake_at, wake_in_sec \
     and cron, then answer. Of several calls in a round the last one counts.";

/// The bounds of the deferrals of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferralBounds {
    /// A time that is further away is refused.
    most: Duration,
    /// A time that is further away is cut to this.
    longest: Option<Duration>,
}

impl DeferralBounds {
    /// Those of a run; `None` if it may schedule nothing.
    pub(super) fn of(autonomy: &Autonomy) -> Option<Self> {
        let most = Duration::from_millis(autonomy.max_defer_ms?);
        Some(Self { most, longest: autonomy.longest_defer_ms.map(Duration::from_millis) })
    }

    /// The answer to a call that is made at this time.
    pub(super) fn answer(&self, payload: &str, now: Timestamp) -> ToolReply {
        match self.schedule(&arguments(payload, "wake_at"), now) {
            Ok((schedule, is_cut)) => {
                let cut = if is_cut { ", as late as this run may be" } else { "" };
                let words = format!("deferred until {}{cut}", schedule.at);
                marked(&words, Mark::Schedule(schedule))
            }
            Err(why) => value(&json!(format!("rejected: {why}"))),
        }
    }

    fn schedule(
        &self,
        given: &Map<String, Value>,
        now: Timestamp,
    ) -> Result<(Schedule, bool), String> {
        let (wanted, cron) = time(given, now)?;
        // A time that is over is now.
        let wanted = wanted.max(now);
        if wanted.since(now) > self.most {
            let most = words(self.most);
            return Err(format!("{wanted} is further away than {most}, which is the most"));
        }
        let last = self.longest.map_or(wanted, |longest| now.plus(longest));
        let prompt = text(given, "next_prompt").map(str::to_owned);
        if prompt.as_ref().is_some_and(|prompt| prompt.len() > CONTINUATION_BYTES_MAX) {
            return Err(format!("next_prompt has more than {CONTINUATION_BYTES_MAX} bytes"));
        }
        let detail = text(given, "detail").map(|text| cut(text, MARK_BYTES_MAX).to_owned());
        let at = wanted.min(last);
        Ok((Schedule { at, prompt, detail, cron }, at < wanted))
    }
}

/// The time that a call asks for, with pattern and zone where it is the next one of such.
fn time(
    given: &Map<String, Value>,
    now: Timestamp,
) -> Result<(Timestamp, Option<[String; 2]>), String> {
    let is_given = |name: &str| given.get(name).is_some_and(|value| !value.is_null());
    let all = ["wake_at", "wake_in_sec", "cron"];
    if all.iter().filter(|name| is_given(name)).count() != 1 {
        return Err("exactly one of wake_at, wake_in_sec and cron is required".to_owned());
    }
    if is_given("wake_at") {
        let at = text(given, "wake_at").and_then(Timestamp::from_rfc3339);
        let at = at.ok_or("wake_at is no time as in 2026-01-31T09:00:00Z (RFC 3339)")?;
        return Ok((at, None));
    }
    if is_given("wake_in_sec") {
        let seconds = given.get("wake_in_sec").and_then(Value::as_f64).filter(|s| *s > 0.0);
        let seconds = seconds.ok_or("wake_in_sec has to be a number greater than 0")?;
        let after = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        return Ok((now.plus(after), None));
    }
    let pattern = text(given, "cron").filter(|text| text.len() <= PATTERN_BYTES_MAX);
    let pattern = pattern.ok_or("cron is no pattern as in \"0 9 * * 1-5\"")?;
    let zone = text(given, "zone").unwrap_or(ZONE_DEFAULT);
    let times = cron(pattern, zone)?;
    let at = times.next_after(now).ok_or("the time of cron never comes")?;
    Ok((at, Some([pattern.to_owned(), zone.to_owned()])))
}

fn cron(pattern: &str, zone: &str) -> Result<BeatTimes, String> {
    match CronTimes::new(pattern, zone) {
        Ok(times) => Ok(BeatTimes::Cron(Box::new(times))),
        Err(CronFault::Pattern(fault)) => Err(format!("cron: {fault}")),
        Err(CronFault::Zone) => Err(format!("there is no time zone {zone:?}")),
    }
}

/// The number of times of a pattern after one moment and not after another, in words such as
/// `3 further times`; `None` without any.
pub(crate) fn passed(
    [pattern, zone]: &[String; 2],
    after: Timestamp,
    until: Timestamp,
) -> Option<String> {
    let times = cron(pattern, zone).ok()?;
    let next = |at: &Timestamp| times.next_after(*at).filter(|at| *at <= until);
    match std::iter::successors(next(&after), next).take(COUNTED_MAX + 1).count() {
        0 => None,
        1 => Some("1 further time".to_owned()),
        count if count > COUNTED_MAX => Some(format!("more than {COUNTED_MAX} further times")),
        count => Some(format!("{count} further times")),
    }
}

/// A time in words: `5 min`, `3 h 5 min`, `2 d 1 h`.
pub(crate) fn words(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60 % 60, seconds / 3_600 % 24, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// The schema of its arguments.
pub(super) fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "wake_at": { "type": "string", "description": "The time, in RFC 3339." },
            "wake_in_sec": { "type": "number", "description": "Seconds from now, more than 0." },
            "cron": {
                "type": "string",
                "description": "The next time of a pattern: minute, hour, day of the month, month, \
                                day of the week.",
            },
            "zone": { "type": "string", "description": "Time zone of cron, UTC if not given." },
            "next_prompt": { "type": "string", "description": "What you are told then." },
            "detail": { "type": "string", "description": "Why, for whoever looks at it." },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn said(bounds: DeferralBounds, payload: &Value) -> (String, Option<Schedule>) {
        match bounds.answer(&payload.to_string(), NOW) {
            ToolReply::Marked(value, Mark::Schedule(schedule)) => (value.value, Some(schedule)),
            ToolReply::Value(value) => (value.value, None),
            ToolReply::Marked(..) | ToolReply::Park(_) => panic!("another answer"),
        }
    }

    #[test]
    fn c_053_exactly_one_time_is_taken_and_it_is_made_absolute() {
        let bounds = DeferralBounds { most: Duration::from_secs(86_400), longest: None };
        let at = |payload: Value| said(bounds, &payload).1.map(|schedule| schedule.at);
        let plus = |seconds: u64| Some(NOW.plus(Duration::from_secs(seconds)));
        assert_eq!(at(json!({ "wake_in_sec": 60 })), plus(60));
        assert_eq!(at(json!({ "wake_at": NOW.plus(Duration::from_secs(5)).to_string() })), plus(5));
        assert_eq!(at(json!({ "wake_at": "2020-01-01T00:00:00Z" })), plus(0), "it is over");
        // 2027-01-15T08:00:00Z
        assert_eq!(at(json!({ "cron": "0 9 * * *" })), plus(3_600));
        assert_eq!(at(json!({ "cron": "0 12 * * *", "zone": "Asia/Tokyo" })), plus(68_400));
        let rejected = [
            (json!({}), "exactly one"),
            (json!({ "wake_in_sec": 1, "cron": "0 9 * * *" }), "exactly one"),
            (json!({ "wake_in_sec": 0 }), "greater than 0"),
            (json!({ "wake_in_sec": "soon" }), "greater than 0"),
            (json!({ "wake_at": "tomorrow" }), "RFC 3339"),
            (json!({ "cron": "never" }), "cron:"),
            (json!({ "cron": "0 9 * * *", "zone": "Moon" }), "no time zone"),
            (json!({ "wake_in_sec": 90_000 }), "further away than 1 d 0 h"),
            (json!({ "wake_in_sec": 1e300 }), "further away"),
        ];
        for (payload, why) in rejected {
            let (words, schedule) = said(bounds, &payload);
            assert!(words.contains("rejected: ") && words.contains(why), "{payload}: {words}");
            assert_eq!(schedule, None);
        }
    }

    #[test]
    fn c_054_what_is_beyond_the_bound_of_a_request_is_cut() {
        let minute = Duration::from_secs(60);
        let bounds = DeferralBounds { most: 60 * minute, longest: Some(5 * minute) };
        let (words, schedule) = said(bounds, &json!({ "wake_in_sec": 3_600, "next_prompt": "x" }));
        let schedule = schedule.expect("it is taken");
        assert_eq!(schedule.at, NOW.plus(5 * minute));
        assert_eq!(schedule.prompt.as_deref(), Some("x"));
        assert!(words.contains("as late as this run may be"), "{words}");
    }

    #[test]
    fn times_of_a_pattern_that_have_passed_are_counted() {
        let hourly = ["0 * * * *".to_owned(), "UTC".to_owned()];
        let hours = |n: u64| NOW.plus(Duration::from_secs(n * 3_600));
        let passed = |until: u64| passed(&hourly, hours(1), hours(until));
        assert_eq!(passed(1), None);
        assert_eq!(passed(2).as_deref(), Some("1 further time"));
        assert_eq!(passed(4).as_deref(), Some("3 further times"));
        assert_eq!(passed(1_001).as_deref(), Some("1000 further times"));
        assert_eq!(passed(1_002).as_deref(), Some("more than 1000 further times"));
        assert_eq!(passed(40_000).as_deref(), Some("more than 1000 further times"));
    }
}
