//! The patterns of which Anthropic can make a grammar
//! (<https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations>).

/// Most digits of the numbers in a quantifier: "simple" ones are taken, and none with a large range.
const COUNT_DIGITS_MAX: usize = 2;

/// Tells if a pattern has nothing in it but what the provider names: anchors at its ends, characters,
/// classes, groups, and quantifiers. It may take others, such as those with alternatives, but one
/// that it does not take has the whole question refused.
pub(super) fn is_plain(pattern: &str) -> bool {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let mut rest = pattern.strip_suffix('$').unwrap_or(pattern);
    while !rest.is_empty() {
        match after_piece(rest) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    true
}

/// The pattern behind its first piece and the quantifier of that; `None` if they are not plain.
fn after_piece(pattern: &str) -> Option<&str> {
    let (first, rest) = split_first(pattern)?;
    match first {
        // No quantifier follows, and nothing that begins like one, as look-around does.
        '(' => Some(rest),
        // Repeating groups by numbers multiplies what is in them.
        ')' => Some(after_sign(rest)),
        '\\' => after_quantifier(after_escape(rest)?),
        '[' => after_quantifier(after_class(rest)?),
        '*' | '+' | '?' | '{' | '}' | ']' | '|' | '^' | '$' => None,
        _ => after_quantifier(rest),
    }
}

fn after_quantifier(pattern: &str) -> Option<&str> {
    let Some(counted) = pattern.strip_prefix('{') else { return Some(after_sign(pattern)) };
    let (counts, rest) = counted.split_once('}')?;
    let is_count = |count: &str| {
        (1..=COUNT_DIGITS_MAX).contains(&count.len()) && count.bytes().all(|b| b.is_ascii_digit())
    };
    let (least, most) = counts.split_once(',').unwrap_or((counts, counts));
    (is_count(least) && is_count(most)).then_some(rest)
}

fn after_sign(pattern: &str) -> &str {
    pattern.strip_prefix(['*', '+', '?']).unwrap_or(pattern)
}

/// The pattern behind what a backslash makes something else of: a sign, or the letter of a class.
fn after_escape(pattern: &str) -> Option<&str> {
    let (escaped, rest) = split_first(pattern)?;
    (escaped.is_ascii_punctuation() || matches!(escaped, 'd' | 's' | 'w')).then_some(rest)
}

/// The pattern behind a class, of which the opening bracket was read.
fn after_class(pattern: &str) -> Option<&str> {
    let mut rest = pattern.strip_prefix('^').unwrap_or(pattern);
    // Languages differ about classes that are empty.
    if rest.starts_with(']') {
        return None;
    }
    loop {
        let (first, after) = split_first(rest)?;
        rest = match first {
            ']' => return Some(after),
            '[' => return None,
            '\\' => after_escape(after)?,
            _ => after,
        };
    }
}

fn split_first(pattern: &str) -> Option<(char, &str)> {
    let mut chars = pattern.chars();
    Some((chars.next()?, chars.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_plain_if_the_provider_names_all_that_is_in_it() {
        let plain = [
            "",
            "^2",
            "^[A-Za-z_][\\w.-]*$",
            r"^\d{4}-\d{2}-\d{1,2}$",
            r"(a+)?b\s?.*",
            r"^[^\]\\/]{1,64}\.rs$",
            "größer als ([0-9])*",
        ];
        for pattern in plain {
            assert!(is_plain(pattern), "{pattern}");
        }
        let others = [
            r"\bone\b",
            r"\Bone",
            r"[\b]",
            "(?=one)two",
            "(?!one)two",
            "(?<=one)two",
            "(?<name>one)",
            "(?:one)",
            r"(one)\1",
            r"\p{L}+",
            r"\u0041",
            "one|two",
            "a$b",
            "a^b",
            "^a{1,1000}$",
            "^a{0,}$",
            "(a{50}){50}",
            "a+?",
            "a**",
            "[]",
            "[a",
            "a{",
            r"a\$",
            "[[:alpha:]]",
        ];
        for pattern in others {
            assert!(!is_plain(pattern), "{pattern}");
        }
    }
}
