//! Text of guests made fit for a terminal.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

/// Spaces in place of a tab, whose width is the terminal's to choose.
const TAB: &str = "    ";

/// True if a character can do anything to a terminal but be shown: controls, and Unicode's
/// invisible marks for direction, joining and language.
fn is_hostile(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
            | '\u{e0100}'..='\u{e01ef}')
}

/// For one line: every control character is shown as its escape, line breaks too.
#[must_use]
pub(crate) fn escaped_line(text: &str) -> Cow<'_, str> {
    escape(text, |_| None)
}

/// For several lines: line breaks stay, tabs become spaces.
#[must_use]
pub(crate) fn escaped_block(text: &str) -> Cow<'_, str> {
    escape(text, |rest| match rest.chars().next() {
        Some('\n') => Some(("\n", 1)),
        Some('\t') => Some((TAB, 1)),
        Some(_) | None => None,
    })
}

/// For several lines that this program made, with text of others in it: its own styles stay.
#[must_use]
pub(crate) fn escaped_page(text: &str) -> Cow<'_, str> {
    escape(text, |rest| match rest.chars().next() {
        Some('\n') => Some(("\n", 1)),
        Some('\t') => Some((TAB, 1)),
        Some('\u{1b}') => style(rest).map(|style| (style, style.len())),
        Some(_) | None => None,
    })
}

/// The style that a text begins with: `ESC [`, numbers, `m`.
fn style(text: &str) -> Option<&str> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let end = numbers.find(|c: char| !(c.is_ascii_digit() || c == ';'))?;
    numbers[end..].starts_with('m').then(|| &text[..2 + end + 1])
}

/// For a block whose first line stands behind something else: the further lines are indented, so
/// that none of them looks like one of the program's own.
#[must_use]
pub(crate) fn indented(text: &str, indent: &str) -> String {
    escaped_block(text.trim_end_matches('\n')).replace('\n', &format!("\n{indent}"))
}

/// A block as Markdown quotes it: whatever stands in it is no heading of the page around it.
#[must_use]
pub(crate) fn quoted(text: &str) -> String {
    let escaped = escaped_block(text);
    let lines: Vec<String> =
        escaped.lines().map(|line| format!("> {line}").trim_end().to_owned()).collect();
    lines.join("\n")
}

/// A block as Markdown fences code, in more backticks than any line of it begins with.
#[must_use]
pub(crate) fn fenced(text: &str, language: &str) -> String {
    let escaped = escaped_block(text.trim_end_matches('\n'));
    let longest = escaped
        .lines()
        .map(|line| line.trim_start().chars().take_while(|c| *c == '`').count())
        .max()
        .unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{escaped}\n{fence}")
}

/// JSON that says the same without a character that could do anything to a terminal. Outside of its
/// strings there is none but line breaks.
#[must_use]
pub(crate) fn escaped_json(json: &str) -> Cow<'_, str> {
    let stays = |character: char| !is_hostile(character) || matches!(character, '\n' | '\t' | '\r');
    if json.chars().all(stays) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    let mut units = [0; 2];
    for character in json.chars() {
        if stays(character) {
            escaped.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut units) {
            escaped.push_str(&format!("\\u{unit:04x}"));
        }
    }
    Cow::Owned(escaped)
}

/// Escapes what is hostile, but for that in whose place `other` gives something, and of how many
/// bytes.
fn escape<'t>(text: &'t str, other: impl Fn(&'t str) -> Option<(&'t str, usize)>) -> Cow<'t, str> {
    let Some(first) = text.find(is_hostile) else { return Cow::Borrowed(text) };
    let mut escaped = String::with_capacity(text.len() + 16);
    let (shown, mut rest) = text.split_at(first);
    escaped.push_str(shown);
    while let Some(character) = rest.chars().next() {
        if let Some((instead, bytes)) = other(rest) {
            escaped.push_str(instead);
            rest = &rest[bytes..];
        } else {
            match character {
                '\n' | '\t' | '\r' => escaped.extend(character.escape_default()),
                _ => escaped.extend(character.escape_unicode()),
            }
            rest = &rest[character.len_utf8()..];
        }
        let next = rest.find(is_hostile).unwrap_or(rest.len());
        escaped.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    Cow::Owned(escaped)
}

/// The beginning of a block, of at most `chars_max` characters, escaped; what is cut is `…`.
#[must_use]
pub(crate) fn excerpt_block(text: &str, chars_max: usize) -> String {
    let mut cut: String = text.chars().take(chars_max).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    escaped_block(&cut).into_owned()
}

/// One line of at most `chars_max` characters; white space is collapsed, what is cut is `…`.
#[must_use]
pub(crate) fn excerpt(text: &str, chars_max: usize) -> String {
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

/// The same in at most so many columns of a terminal, of which some characters take two.
#[must_use]
pub(crate) fn fitted(text: &str, columns_max: usize) -> String {
    let line = excerpt(text, columns_max);
    if line.width() <= columns_max {
        return line;
    }
    let ends: Vec<usize> = line.char_indices().map(|(at, one)| at + one.len_utf8()).collect();
    // One column is left for the mark.
    let fits = ends.partition_point(|end| line[..*end].width() < columns_max);
    let end = fits.checked_sub(1).map_or(0, |last| ends[last]);
    format!("{}…", &line[..end])
}

#[cfg(test)]
mod tests {
    use taskrun_fixtures::corpus::{Edit, edited};

    use super::*;

    /// One of each kind of character that is not to reach a terminal.
    const HOSTILE: &str = "\u{1b}\u{7}\u{8}\r\u{7f}\u{9b}\u{61c}\u{180e}\u{200b}\u{200f}\u{2028}\u{2029}\
         \u{202a}\u{202e}\u{2060}\u{2066}\u{206a}\u{206f}\u{feff}\u{fff9}\u{e0001}\u{e0041}\u{e007f}\
         \u{e0100}";

    #[test]
    fn nothing_of_a_guest_reaches_the_terminal_as_a_command() {
        assert_eq!(escaped_line("a\x1b[31mb\nc"), "a\\u{1b}[31mb\\nc");
        assert_eq!(escaped_block("a\x07\nb\tc"), "a\\u{7}\nb    c");
        assert_eq!(escaped_line("\u{202e}x\u{9b}"), "\\u{202e}x\\u{9b}");
        assert!(matches!(escaped_block("plain"), Cow::Borrowed(_)));
        for escaped in [escaped_line(HOSTILE), escaped_block(HOSTILE), escaped_page(HOSTILE)] {
            assert!(!escaped.contains(is_hostile), "{escaped:?}");
            assert!(escaped.contains("\\u{61c}\\u{180e}"), "{escaped:?}");
        }
    }

    #[test]
    fn of_escapes_a_page_keeps_styles_only() {
        let page = "\x1b[1m# a\x1b[0m\n\x1b[38;5;3mb\x1b[0m";
        assert_eq!(escaped_page(page), page);
        for (command, shown) in [
            ("\x1b[2K", "\\u{1b}[2K"),
            ("\x1b]8;;x\x07", "\\u{1b}]8;;x\\u{7}"),
            ("\x1b[1;1H", "\\u{1b}[1;1H"),
            ("\x1b[", "\\u{1b}["),
            ("\x1b", "\\u{1b}"),
            ("\x1b[?25l", "\\u{1b}[?25l"),
        ] {
            assert_eq!(escaped_page(command), shown);
        }
    }

    #[test]
    fn lines_of_a_guest_stand_apart_from_those_of_the_program() {
        assert_eq!(indented("a\nhint: b\n", "    "), "a\n    hint: b");
        assert_eq!(quoted("a\n\n## evil\n"), "> a\n>\n> ## evil");
        assert_eq!(fenced("x", "json"), "```json\nx\n```");
        assert_eq!(fenced("x\n```\n## evil\n ````\n", ""), "`````\nx\n```\n## evil\n ````\n`````");
    }

    #[test]
    fn json_says_the_same_without_what_is_hostile() {
        let text = format!("{HOSTILE} and \u{1f600}, ä");
        let json = serde_json::to_string_pretty(&[&text]).expect("a text");
        let escaped = escaped_json(&json);
        let shown = |character: char| !is_hostile(character) || character == '\n';
        assert!(escaped.chars().all(shown), "{escaped:?}");
        let back: Vec<String> = serde_json::from_str(&escaped).expect("JSON");
        assert_eq!(back, [text]);
    }

    #[test]
    fn excerpts_are_one_line() {
        assert_eq!(excerpt("a\n  b", 10), "a b");
        assert_eq!(excerpt("abcdef", 4), "abc…");
        assert_eq!(excerpt(&"long word ".repeat(10_000), 12), "long word l…");
    }

    #[test]
    fn a_line_is_fitted_by_the_columns_that_its_characters_take() {
        assert_eq!(fitted("a\n  b", 3), "a b");
        assert_eq!(fitted("abcdef", 4), "abc…");
        assert_eq!(fitted("漢字漢字", 8), "漢字漢字");
        assert_eq!(fitted("漢字漢字", 7), "漢字漢…");
        assert_eq!(fitted("漢字漢字", 6), "漢字…");
        assert_eq!(fitted("漢字漢字", 4), "漢…");
        assert_eq!(fitted("漢", 1), "…");
    }

    /// Fails if a text is a command to a terminal by one of the ways to it.
    fn commands_nothing(text: &str) {
        let lines = [escaped_line(text).into_owned(), excerpt(text, 40), excerpt(text, 1_000)];
        for one in lines.into_iter().chain([fitted(text, 40)]) {
            assert!(!one.contains(is_hostile), "{text:?}");
        }
        assert!(fitted(text, 40).width() <= 40, "{text:?}");
        // Styles are all that a page may have.
        let page = escaped_page(text);
        let mut rest = &*page;
        while let Some(at) = rest.find(|c| c != '\n' && is_hostile(c)) {
            let style = style(&rest[at..]);
            rest = &rest[at + style.unwrap_or_else(|| panic!("{text:?}")).len()..];
        }
        let indented = indented(text, "  ");
        assert!(indented.lines().skip(1).all(|line| line.starts_with("  ")), "{text:?}");
        let blocks = [escaped_block(text).into_owned(), quoted(text), fenced(text, "x"), indented];
        for block in blocks {
            assert!(!block.contains(|c| c != '\n' && is_hostile(c)), "{text:?}");
        }
        assert!(quoted(text).lines().all(|line| line.starts_with('>')), "{text:?}");
        let json = serde_json::to_string(text).expect("text is JSON");
        let escaped = escaped_json(&json);
        assert!(!escaped.contains(is_hostile), "{text:?}");
        assert_eq!(serde_json::from_str::<String>(&escaped).ok().as_deref(), Some(text));
    }

    /// Text of everything that could upset a terminal, and of what is made of it.
    #[test]
    fn fuzz_nothing_that_is_shown_commands_a_terminal() {
        bolero::check!().with_type::<Vec<(u8, char)>>().for_each(|picks| {
            let piece = |(pick, character): &(u8, char)| match pick % 8 {
                0 => "\u{1b}[2J".to_owned(),
                1 => "\u{1b}]52;c;YQ==\u{7}".to_owned(),
                2 => "\u{9b}1m\r".to_owned(),
                3 => "\n".to_owned(),
                4 => char::from_u32(0x2000 + u32::from(*pick)).unwrap_or('a').to_string(),
                5 => char::from_u32(0xe0000 + u32::from(*pick)).unwrap_or('a').to_string(),
                _ => character.to_string(),
            };
            commands_nothing(&picks.iter().map(piece).collect::<String>());
        });
    }

    /// Texts that are known to forge what a terminal or a page shows, a JSON string in each line.
    const FORGERIES: &str = include_str!("forgeries.jsonl");

    fn forgeries() -> Vec<String> {
        let text = |line| serde_json::from_str(line).expect("a JSON string");
        FORGERIES.lines().map(text).collect()
    }

    #[test]
    fn each_forgery_has_something_that_is_hostile_or_a_line_of_its_own() {
        for text in forgeries() {
            assert!(text.contains(is_hostile), "{text:?}");
            commands_nothing(&text);
        }
    }

    #[test]
    fn fuzz_no_forgery_with_changes_commands_a_terminal() {
        const PIECES: [&str; 12] = [
            "\u{1b}",
            "\u{9b}",
            "\u{9d}",
            "\u{7}",
            "\r",
            "\n",
            "\u{202e}",
            "\u{2066}",
            "\u{e0041}",
            "```",
            "# ",
            "\u{10ffff}",
        ];
        let forgeries = forgeries();
        bolero::check!().with_type::<(u8, Vec<Edit>)>().for_each(|(pick, edits)| {
            let text = &forgeries[usize::from(*pick) % forgeries.len()];
            commands_nothing(&edited(text, edits, &PIECES));
        });
    }
}
