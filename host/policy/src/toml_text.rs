//! Texts as a policy file has them.

use crate::error::is_hostile;

/// A text as a string of TOML, in quotes: a person can paste it into a policy, whatever stands in it.
#[must_use]
pub fn toml_string(text: &str) -> String {
    let mut string = String::with_capacity(text.len() + 2);
    string.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => string.extend(['\\', character]),
            '\t' => string.push_str("\\t"),
            _ if is_hostile(character) => {
                string.push_str(&format!("\\U{:08X}", u32::from(character)));
            }
            _ => string.push(character),
        }
    }
    string.push('"');
    string
}

#[cfg(test)]
mod tests {
    use super::toml_string;

    #[test]
    fn a_text_is_what_a_policy_reads_of_it() {
        for text in
            ["docs/**", "a\"b", "a\\b", "a\tb", "a\u{1b}b\u{7f}\u{202e}", "e\u{301}\u{a0}", "'''"]
        {
            let line = format!("text = {}", toml_string(text));
            let read: toml::Table = line.parse().expect("it is TOML");
            assert_eq!(read["text"].as_str(), Some(text), "{line}");
        }
        assert_eq!(toml_string("model: large"), "\"model: large\"");
    }
}
