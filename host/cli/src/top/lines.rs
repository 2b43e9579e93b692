//! Text broken into the lines of a screen.

use unicode_width::UnicodeWidthChar;

/// The lines of a text where a line has so many columns, at least two. A line of the text that is
/// longer is broken where it is full. The text is fit for a terminal already.
pub(super) fn lines(text: &str, columns: u16) -> Vec<String> {
    let columns = usize::from(columns).max(2);
    let mut lines = Vec::new();
    for whole in text.split('\n') {
        let (mut line, mut width) = (String::new(), 0);
        for character in whole.chars() {
            let wide = character.width().unwrap_or(0);
            if width + wide > columns {
                lines.push(std::mem::take(&mut line));
                width = 0;
            }
            line.push(character);
            width += wide;
        }
        lines.push(line);
    }
    lines
}

/// The end of a line that fits into so many columns.
pub(super) fn end_of_line(line: &str, columns: u16) -> &str {
    let (mut from, mut width) = (line.len(), 0);
    for (at, character) in line.char_indices().rev() {
        width += character.width().unwrap_or(0);
        if width > usize::from(columns) {
            break;
        }
        from = at;
    }
    &line[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_broken_where_the_screen_is_full() {
        assert_eq!(lines("abcdef\n\ng", 4), ["abcd", "ef", "", "g"]);
        assert_eq!(lines("漢字漢", 5), ["漢字", "漢"]);
        assert_eq!(lines("漢", 0), ["漢"], "no screen is too narrow for it to end");
    }

    #[test]
    fn of_a_line_that_is_too_long_the_end_is_shown() {
        assert_eq!(end_of_line("abcdef", 3), "def");
        assert_eq!(end_of_line("漢字", 3), "字");
        assert_eq!(end_of_line("", 3), "");
    }
}
