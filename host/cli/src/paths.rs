//! Paths as people read them.

use std::path::Path;

/// A path as a person would type it: relative to the working directory where it is below that.
#[must_use]
pub(crate) fn shown(path: &Path) -> String {
    let relative = std::env::current_dir()
        .ok()
        .and_then(|here| path.strip_prefix(&here).ok().map(Path::to_owned))
        .filter(|relative| !relative.as_os_str().is_empty());
    relative.as_deref().unwrap_or(path).display().to_string()
}

/// The same for paths inside a text of this program, such as places in a policy. A folder of that name
/// in the middle of a path, or in an address, is another one.
#[must_use]
pub(crate) fn shown_in(text: &str) -> String {
    match std::env::current_dir() {
        Ok(here) if here.parent().is_some() => within(&format!("{}/", here.display()), text),
        Ok(_) | Err(_) => text.to_owned(),
    }
}

/// True unless there is no file at a path: one at which nobody may look is there.
#[must_use]
pub(crate) fn is_there(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

/// The text without this folder, which has a slash at its end, where a path begins with it and goes on.
fn within(folder: &str, text: &str) -> String {
    let begins = |before: &str| {
        let last = before.chars().next_back();
        last.is_none_or(|last| last.is_whitespace() || "\"'`([{<".contains(last))
    };
    let goes_on = |after: &str| {
        let next = after.chars().next();
        next.is_some_and(|next| !next.is_whitespace() && !"/\"'`)]}>,;:".contains(next))
    };
    let (mut shown, mut end) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices(folder) {
        shown.push_str(&text[end..at]);
        let after = at + folder.len();
        end = if begins(&text[..at]) && goes_on(&text[after..]) { after } else { at };
    }
    shown.push_str(&text[end..]);
    shown
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn paths_in_a_text_are_shortened_where_they_begin_and_nothing_else_is() {
        for (text, shown) in [
            ("denied (/here/taskrun.toml:3:1)", "denied (taskrun.toml:3:1)"),
            ("/here/a and \"/here/b\", `/here/c`", "a and \"b\", `c`"),
            ("\n[/here/a/here/b]", "\n[a/here/b]"),
        ] {
            assert_eq!(within("/here/", text), shown);
        }
        for same in [
            "https://example.com/here/report.pdf",
            "/var/here/old",
            "file:///here/x",
            "/here/",
            "in /here/, or /here",
            "/here//x",
            "x=/here/y",
        ] {
            assert_eq!(within("/here/", same), same);
        }
    }
}
