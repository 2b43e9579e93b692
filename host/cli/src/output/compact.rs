//! JSON of guests inside of the program's own.

use serde_json::value::RawValue;

/// The JSON of a text without the white space between its tokens, so that it stays in the one line
/// that it is part of; digits and the order of keys are as they were. `None` if it is no JSON.
#[must_use]
pub(crate) fn compact(text: &str) -> Option<Box<RawValue>> {
    let json: &RawValue = serde_json::from_str(text).ok()?;
    let mut compact = String::with_capacity(json.get().len());
    let (mut in_string, mut escaped) = (false, false);
    for character in json.get().chars() {
        if in_string {
            compact.push(character);
            match character {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => in_string = false,
                _ => {}
            }
        } else if !character.is_ascii_whitespace() {
            in_string = character == '"';
            compact.push(character);
        }
    }
    RawValue::from_string(compact).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_white_space_between_tokens_goes() {
        let table = [
            ("[1,\n{\"v\" : 1}\r\n]", "[1,{\"v\":1}]"),
            ("\t\"a \\\" b\\\\\"\n", "\"a \\\" b\\\\\""),
            (
                "{ \"b\": 1e400, \"a\": 123456789012345678901234567890 }",
                "{\"b\":1e400,\"a\":123456789012345678901234567890}",
            ),
            ("null", "null"),
        ];
        for (text, expected) in table {
            assert_eq!(compact(text).expect("JSON").get(), expected, "{text}");
        }
        assert!(compact("{not json").is_none());
        assert!(compact("1 2").is_none());
    }
}
