//! Text that is what it looks like.

/// The first character that does not stand for itself: control characters, those that change the
/// direction of what follows, and those that nobody sees and programs read. Line breaks and tabs are
/// such characters, too, unless `lines` are allowed.
#[must_use]
pub fn first_disguised(text: &str, lines: bool) -> Option<char> {
    let allowed = |one: char| lines && (one == '\n' || one == '\t');
    text.chars().find(|one| is_disguised(*one) && !allowed(*one))
}

fn is_disguised(one: char) -> bool {
    one.is_control()
        || matches!(
            one,
            '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_script_is_plain_and_what_disguises_it_is_found() {
        for text in ["", "Größe, 大きさ, حجم, 👩\u{200d}🚀", "a\u{300}"] {
            assert_eq!(first_disguised(text, false), None, "{text}");
        }
        assert_eq!(first_disguised("two\n\tlines", true), None);
        assert_eq!(first_disguised("two\nlines", false), Some('\n'));
        for one in ['\u{1b}', '\r', '\u{7f}', '\u{9b}', '\u{202e}', '\u{61c}', '\u{e0041}'] {
            assert_eq!(first_disguised(&format!("a{one}b"), true), Some(one), "{one:?}");
        }
    }
}
