//! The bounds of one event of an export, as a line of JSON.

/// Most bytes of an event. The longest results and decisions that a policy allows take a quarter of it.
const EVENT_BYTES_MAX: u64 = 128 << 20;
/// Values of JSON that any event may have, and the bytes of a line for each further one. Until its kind
/// is known an event is a tree of values, of which each takes some dozens of bytes however short it is:
/// of a line of numbers alone, that would be thirty times its length.
const VALUES_MAX: usize = 1_000_000;
const BYTES_OF_VALUE: usize = 64;

/// The things of which an event has more than it may, and the limit on them.
pub(super) type Excess = (&'static str, u64);

/// The bytes of a line that have to be read to see that it is too long.
pub(super) const READ_MAX: u64 = EVENT_BYTES_MAX + 1;

/// Looks at the line of an event, which may be somebody else's, before it is read as JSON.
///
/// # Errors
/// [`Excess`].
pub(super) fn check(line: &[u8]) -> Result<(), Excess> {
    if line.len() as u64 > EVENT_BYTES_MAX {
        return Err(("bytes in an event", EVENT_BYTES_MAX));
    }
    let most = VALUES_MAX + line.len() / BYTES_OF_VALUE;
    match values(line) > most {
        true => Err(("values in an event", most as u64)),
        false => Ok(()),
    }
}

/// The values and names in a text of JSON, but for the first: before each of the others stands one of
/// four signs.
fn values(json: &[u8]) -> usize {
    let (mut is_text, mut is_escaped, mut count) = (false, false, 0);
    for &byte in json {
        match (is_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_text = !is_text,
            (false, b',' | b':' | b'[' | b'{') => count += 1,
            (true | false, _) => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_and_texts_are_not_looked_into() {
        for (json, count) in [
            ("7", 0),
            ("[]", 1),
            ("[1,2]", 2),
            (r#"{"a":1,"b":[{}]}"#, 6),
            (r#""[,\",:{""#, 0),
            (r#"["\\",1]"#, 2),
        ] {
            assert_eq!(values(json.as_bytes()), count, "{json}");
        }
    }

    #[test]
    fn a_line_is_long_or_has_many_values_within_bounds() {
        let longest = usize::try_from(EVENT_BYTES_MAX).expect("it is in memory");
        assert_eq!(check(&vec![0; longest + 1]), Err(("bytes in an event", EVENT_BYTES_MAX)));
        let numbers = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        assert_eq!(check(numbers(VALUES_MAX).as_bytes()), Ok(()));
        let (what, _) = check(numbers(VALUES_MAX * 11 / 10).as_bytes()).expect_err("too many");
        assert_eq!(what, "values in an event");
    }
}
