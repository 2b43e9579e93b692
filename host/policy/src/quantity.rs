//! Sizes and durations as a policy writes them: a whole number and its unit, `64MiB`, `10s`.

use std::time::Duration;

use taskrun_journal::quantity::{DURATION_UNITS, SIZE_UNITS};

/// Why a text is not a quantity, and what to write instead.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QuantityError {
    pub(super) reason: String,
    pub(super) help: String,
}

/// Bytes of a size such as `64MiB`.
pub(super) fn parse_size(text: &str) -> Result<u64, QuantityError> {
    parse(text, &SIZE_UNITS, "64MiB")
}

/// Bytes of a size as policies write them, such as `64MiB`, for other places where people write
/// sizes.
///
/// # Errors
/// The mistake in it, and the remedy.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|bad| format!("{}; {}", bad.reason, bad.help))
}

/// A duration such as `10s`, whole milliseconds.
pub(super) fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    parse(text, &DURATION_UNITS, "10s").map(Duration::from_millis)
}

fn parse(text: &str, units: &[(&str, u64)], example: &str) -> Result<u64, QuantityError> {
    let names = units.iter().map(|(unit, _)| *unit).collect::<Vec<_>>().join(", ");
    let bad = |reason: &str, instead: Option<String>| QuantityError {
        reason: reason.to_owned(),
        help: match instead {
            Some(instead) => format!("write \"{instead}\""),
            None => format!("write a whole number and one of {names}, as in \"{example}\""),
        },
    };
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    if digits.is_empty() {
        return Err(bad("it does not begin with a digit", None));
    }
    let Some((_, factor)) = units.iter().find(|(known, _)| *known == unit) else {
        let bare = unit.trim();
        let meant = units.iter().find(|(known, _)| {
            let stem = known.trim_end_matches("iB");
            let (bare, stem) = (bare.to_lowercase(), stem.to_lowercase());
            bare == known.to_lowercase() || bare == stem || bare == format!("{stem}b")
        });
        let reason = match unit {
            "" => "it has no unit",
            _ if bare.len() != unit.len() => "there is a space in it",
            _ if unit.starts_with(['.', ',', '_']) => "it is not a whole number",
            _ => "it has no such unit",
        };
        return Err(bad(
            reason,
            meant.filter(|_| !bare.is_empty()).map(|(u, _)| format!("{digits}{u}")),
        ));
    };
    let value = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor));
    value.ok_or_else(|| bad("it is too large", None))
}
