//! Numbers as values: `1`, `1.0` and `1e0` are one.

use std::cmp::Ordering;

use serde_json::Number;

/// Largest power of ten that two numbers are brought to for a remainder.
const EXPONENT_MAX: u32 = 30;

/// True if it has no fraction.
pub(super) fn is_whole(number: &Number) -> bool {
    number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|f| f.fract() == 0.0)
}

/// Which is larger.
pub(super) fn compare(one: &Number, other: &Number) -> Ordering {
    match (whole(one), whole(other)) {
        (Some(one), Some(other)) => one.cmp(&other),
        _ => {
            let float = |number: &Number| number.as_f64().unwrap_or(f64::NAN);
            float(one).partial_cmp(&float(other)).unwrap_or(Ordering::Equal)
        }
    }
}

/// Exactly, where it is a whole number that 128 bits hold.
fn whole(number: &Number) -> Option<i128> {
    let float = || {
        let float = number.as_f64()?;
        #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and small")]
        (float.fract() == 0.0 && float.abs() < 1e30).then_some(float as i128)
    };
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)).or_else(float)
}

/// True if it is a multiple of the other, as the two are written in decimal: `0.3` is one of `0.1`.
pub(super) fn is_multiple(number: &Number, of: &Number) -> bool {
    if let (Some(number), Some(of)) = (decimal(number), decimal(of)) {
        let exponent = number.1.min(of.1);
        let scaled = |(digits, own): (i128, i32)| {
            let by = u32::try_from(own - exponent).ok().filter(|by| *by <= EXPONENT_MAX)?;
            digits.checked_mul(10_i128.checked_pow(by)?)
        };
        if let (Some(number), Some(of)) = (scaled(number), scaled(of)) {
            return of != 0 && number % of == 0;
        }
    }
    let (number, of) = (number.as_f64().unwrap_or(f64::NAN), of.as_f64().unwrap_or(f64::NAN));
    number % of == 0.0
}

/// Its digits and the power of ten that they stand for.
fn decimal(number: &Number) -> Option<(i128, i32)> {
    let text = number.to_string();
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (&*text, 0),
    };
    let (before, after) = digits.split_once('.').unwrap_or((digits, ""));
    let after = after.trim_end_matches('0');
    let places = i32::try_from(after.len()).ok()?;
    let digits: i128 = format!("{before}{after}").parse().ok()?;
    Some((digits, exponent.checked_sub(places)?))
}

/// A text that is the same for equal numbers.
pub(super) fn canonical(number: &Number, text: &mut String) {
    use std::fmt::Write;
    match whole(number) {
        Some(whole) => write!(text, "{whole}").expect("a text grows"),
        None => {
            let float = number.as_f64().unwrap_or(f64::NAN);
            write!(text, "{float:?}").expect("a text grows");
        }
    }
}

/// True if it is more than zero.
pub(super) fn is_positive(number: &Number) -> bool {
    number.as_f64().is_some_and(|float| float > 0.0)
}
