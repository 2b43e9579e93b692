//! Words of commands that people are told, and paste into a shell.
//!
//! Some of them are a guest's, such as the id of what it asks, and others a folder or a session that
//! somebody named. Pasted, each is one word, and nothing of it is executed.

use std::borrow::Cow;
use std::path::Path;

use crate::output::escape::escaped_line;
use crate::paths::shown;

/// A word as a shell takes it, in quotes where it needs them. `None` for a text that no terminal shows
/// as it is, such as one with control characters: nobody could paste it.
#[must_use]
pub(crate) fn word(text: &str) -> Option<Cow<'_, str>> {
    match escaped_line(text) {
        Cow::Borrowed(text) => shlex::try_quote(text).ok(),
        Cow::Owned(_) => None,
    }
}

/// The last argument of a command, behind `--` where it looks like an option. In the place of one that
/// nobody could paste stands `name`, such as `SESSION`.
#[must_use]
pub(crate) fn argument(text: &str, name: &str) -> String {
    let dashes = if text.starts_with('-') { "-- " } else { "" };
    word(text).map_or_else(|| name.to_owned(), |word| format!("{dashes}{word}"))
}

/// An option with its value, for which `name` stands where nobody could paste it.
#[must_use]
pub(crate) fn option(option: &str, value: &str, name: &str) -> String {
    // What looks like an option is a value only there.
    let sign = if value.starts_with('-') { '=' } else { ' ' };
    let word = word(value);
    format!("{option}{sign}{}", word.as_deref().unwrap_or(name))
}

/// A path as an argument, as short as a person would type it; `name`, such as `FILE`, for one that
/// nobody could paste.
#[must_use]
pub(crate) fn path(path: &Path, name: &str) -> String {
    if path.to_str().is_none() {
        return name.to_owned();
    }
    let shown = shown(path);
    let shown = if shown.starts_with('-') { format!("./{shown}") } else { shown };
    word(&shown).map_or_else(|| name.to_owned(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_word_for_a_shell_whatever_stands_in_it() {
        let odd = [
            "$(touch PWN)",
            "w; touch PWN",
            "`touch PWN`",
            "a b",
            "q'x",
            "q\"x",
            "-x",
            "!!",
            "a\\",
            "~",
            "*",
            "#a",
            "",
            "ü",
        ];
        for text in odd {
            let word = word(text).expect("no control characters");
            let said = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {word}")])
                .output()
                .expect("a shell starts");
            assert_eq!(String::from_utf8_lossy(&said.stdout), text, "{word}");
        }
        for plain in ["confirm:1:a", "docs/a.md", "a_b-c@d+e"] {
            assert_eq!(word(plain).as_deref(), Some(plain));
        }
        for hidden in ["a\nb", "a\tb", "\u{1b}[2K", "\u{202e}x", "\u{200b}", "\0"] {
            assert_eq!(word(hidden), None, "{hidden:?}");
        }
    }

    #[test]
    fn what_looks_like_an_option_is_none_and_what_cannot_be_pasted_is_named() {
        assert_eq!(argument("my notes", "SESSION"), "'my notes'");
        assert_eq!(argument("-x", "SESSION"), "-- -x");
        assert_eq!(argument("a\nb", "SESSION"), "SESSION");
        assert_eq!(option("--session", "my notes", "SESSION"), "--session 'my notes'");
        assert_eq!(option("--session", "-x", "SESSION"), "--session=-x");
        assert_eq!(option("--session", "a\nb", "SESSION"), "--session SESSION");
        assert_eq!(path(Path::new("my proj/a"), "FILE"), "'my proj/a'");
        assert_eq!(path(Path::new("-x"), "FILE"), "./-x");
        assert_eq!(path(Path::new("a\nb"), "FILE"), "FILE");
    }
}
