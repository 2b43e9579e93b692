//! The delivery of an outcome as it is typed.

use taskrun_journal::delivery::{DeliverySettings, Strategy};
use taskrun_journal::time::millis;

use super::parse::duration;

/// The word of no strategy at all: nobody is told.
const NONE: &str = "none";

/// `immediate`, `wait-for-idle,buffer=1s,notify=lead`.
pub(super) fn delivery(text: &str) -> Result<DeliverySettings, String> {
    let mut parts = text.split(',');
    let word = parts.next().unwrap_or_default().trim();
    let mut strategy = match (word, Strategy::of_word(word)) {
        (NONE, _) => None,
        (_, Some(strategy)) => Some(strategy),
        (_, None) => {
            let known = Strategy::WORDS.join(", ");
            return Err(format!("known are {known} and {NONE}, not {word:?}"));
        }
    };
    let mut notify = None;
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let (key, value) = (key.trim(), value.trim());
        match (key, &mut strategy) {
            ("notify", Some(_)) if !value.is_empty() => notify = Some(value.to_owned()),
            (
                "buffer",
                Some(Strategy::WaitForIdle { buffer_ms, .. } | Strategy::Queued { buffer_ms, .. }),
            ) => *buffer_ms = millis(duration(value)?),
            (
                "timeout",
                Some(
                    Strategy::WaitForIdle { timeout_ms, .. } | Strategy::Queued { timeout_ms, .. },
                ),
            ) => *timeout_ms = millis(duration(value)?),
            ("interrupt", Some(Strategy::WaitForIdle { interrupt, .. })) if value.is_empty() => {
                *interrupt = true;
            }
            ("separator", Some(Strategy::Queued { separator, .. })) => {
                // As it was typed, with its spaces.
                part.split_once('=').map_or("", |(_, value)| value).clone_into(separator);
            }
            _ => return Err(format!("{word} takes no {part:?}")),
        }
    }
    Ok(DeliverySettings { strategy, notify, prompt: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_a_word_and_what_that_takes() {
        let settings = |text| delivery(text).expect("accepted");
        assert_eq!(settings("none").strategy, None);
        assert_eq!(settings("context-only"), DeliverySettings::default());
        let told = settings("immediate, notify=lead");
        assert_eq!((told.strategy, told.notify), (Some(Strategy::Immediate), Some("lead".into())));
        let idle = Strategy::WaitForIdle { buffer_ms: 2_000, timeout_ms: 60_000, interrupt: true };
        let read = settings("wait-for-idle,buffer=2s,timeout=1m,interrupt");
        assert_eq!(read.strategy, Some(idle));
        let queued =
            Strategy::Queued { buffer_ms: 1_000, timeout_ms: 15_000, separator: " | ".to_owned() };
        assert_eq!(settings("queued,separator= | ").strategy, Some(queued));
        for wrong in ["", "sometimes", "immediate,buffer=1s", "none,notify=lead", "queued,x=1"] {
            assert!(delivery(wrong).is_err(), "{wrong}");
        }
    }
}
