//! Text of guests made fit for a terminal.

use std::borrow::Cow;

/// Whether a character can do anything to a terminal but be shown: controls, and Unicode's
/// invisible marks for direction and joining.
fn is_hostile(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// For one line: every control character is shown as its escape, line breaks too.
#[must_use]
pub fn escaped_line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// For several lines: line breaks and tabs stay.
#[must_use]
pub fn escaped_block(text: &str) -> Cow<'_, str> {
    escape(text, |character| matches!(character, '\n' | '\t'))
}

fn escape(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |character| is_hostile(character) && !stays(character);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\n' | '\t' | '\r' if is_escaped(character) => {
                escaped.extend(character.escape_default())
            }
            other if is_escaped(other) => escaped.extend(other.escape_unicode()),
            other => escaped.push(other),
        }
    }
    Cow::Owned(escaped)
}

/// One line of at most `chars_max` characters; white space is collapsed, what is cut is `…`.
#[must_use]
pub fn excerpt(text: &str, chars_max: usize) -> String {
    let mut flat = String::new();
    for word in text.split_whitespace() {
        if flat.len() > 4 * chars_max {
            break;
        }
        if !flat.is_empty() {
            flat.push(' ');
        }
        flat.push_str(word);
    }
    let flat = escaped_line(&flat);
    if flat.chars().count() <= chars_max {
        return flat.into_owned();
    }
    let mut cut: String = flat.chars().take(chars_max.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_guest_reaches_the_terminal_as_a_command() {
        assert_eq!(escaped_line("a\x1b[31mb\nc"), "a\\u{1b}[31mb\\nc");
        assert_eq!(escaped_block("a\x07\nb\tc"), "a\\u{7}\nb\tc");
        assert_eq!(escaped_line("\u{202e}x\u{9b}"), "\\u{202e}x\\u{9b}");
        assert!(matches!(escaped_block("plain\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn excerpts_are_one_line() {
        assert_eq!(excerpt("a\n  b", 10), "a b");
        assert_eq!(excerpt("abcdef", 4), "abc…");
        assert_eq!(excerpt(&"long word ".repeat(10_000), 12), "long word l…");
    }
}
