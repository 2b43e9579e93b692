//! Paths as `workspace-read` defines them.

use taskrun_policy::{PATH_BYTES_MAX, folded};

use crate::bindings::interfaces::workspace_read::FileError;

/// Longest component: what file systems take.
const NAME_BYTES_MAX: usize = 255;

/// The beginning of the names of files that are being written and have not replaced the old one
/// yet. Guests neither see nor name them.
pub(super) const TEMPORARY: &str = ".taskrun-tmp-";

/// A path of the right form: it names something below the workspace, or the workspace itself,
/// whatever the file system holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RelativePath<'a>(&'a str);

impl<'a> RelativePath<'a> {
    /// Checks a guest's path.
    ///
    /// # Errors
    /// [`FileError::InvalidPath`].
    pub(crate) fn new(text: &'a str) -> Result<Self, FileError> {
        let bad = |reason: &str| Err(FileError::InvalidPath(reason.to_owned()));
        if text.len() > PATH_BYTES_MAX {
            return bad("the path is longer than 4096 bytes");
        }
        if text.starts_with('/') {
            return bad("the path is absolute");
        }
        let path = Self(text);
        match path.components().find_map(problem) {
            Some(reason) => bad(reason),
            None => Ok(path),
        }
    }

    /// Its components; none for the workspace itself.
    pub(crate) fn components(self) -> impl DoubleEndedIterator<Item = &'a str> {
        // The empty text would be one empty component.
        self.0.split('/').filter(move |_| !self.0.is_empty())
    }

    /// The directory it is in and its last component; `None` for the workspace itself.
    pub(crate) fn split_last(self) -> Option<(Self, &'a str)> {
        match self.0.rsplit_once('/') {
            Some((above, name)) => Some((Self(above), name)),
            None if self.0.is_empty() => None,
            None => Some((Self(""), self.0)),
        }
    }

    /// It and every directory above it but the workspace itself, the uppermost first.
    pub(crate) fn prefixes(self) -> impl Iterator<Item = &'a str> {
        let ends = self.0.match_indices('/').map(|(end, _)| end);
        let whole = (!self.0.is_empty()).then_some(self.0.len());
        ends.chain(whole).map(move |end| &self.0[..end])
    }

    /// As the guest wrote it.
    pub(crate) fn as_str(self) -> &'a str {
        self.0
    }
}

/// The fault of a path's component. Backslashes and colons lead elsewhere on some systems.
fn problem(component: &str) -> Option<&'static str> {
    match component {
        "" => Some("the path has an empty component"),
        "." | ".." => Some("the path contains `.` or `..`"),
        _ if component.contains('\0') => Some("the path contains NUL"),
        _ if component.contains('\\') => Some("the path contains a backslash"),
        _ if component.len() > NAME_BYTES_MAX => {
            Some("a component of the path is longer than 255 bytes")
        }
        _ if is_temporary(component) => Some("names that begin so are the host's own"),
        _ => None,
    }
}

/// True if a name is, or may lead to, that of a file which the host is just writing.
pub(super) fn is_temporary(name: &str) -> bool {
    folded(name).starts_with(&folded(TEMPORARY))
}

/// True if a guest may see a directory's entry of this name.
pub(super) fn is_visible(name: &str) -> bool {
    problem(name).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_right_form_are_taken_apart() {
        let components = |text| RelativePath::new(text).unwrap().components().collect::<Vec<_>>();
        assert!(components("").is_empty());
        assert_eq!(components("a"), ["a"]);
        assert_eq!(components("a/..b/c d/\u{e4}"), ["a", "..b", "c d", "\u{e4}"]);
        let path = RelativePath::new("a/b/c").unwrap();
        assert_eq!(path.prefixes().collect::<Vec<_>>(), ["a", "a/b", "a/b/c"]);
        assert_eq!(RelativePath::new("").unwrap().prefixes().count(), 0);
        let (above, name) = path.split_last().unwrap();
        assert_eq!((above.as_str(), name), ("a/b", "c"));
    }

    #[test]
    fn everything_else_is_refused() {
        let long = "x".repeat(256);
        let very_long = "x/".repeat(2_049);
        let texts = [
            "/",
            "/etc/passwd",
            "..",
            "a/..",
            "../a",
            "a/../b",
            ".",
            "./a",
            "a/.",
            "a//b",
            "a/",
            "//a",
            "a\0b",
            "a\\..\\b",
            "\\",
            ".taskrun-tmp-1",
            "a/.taskrun-tmp-",
            "a/.Taskrun-TMP-1",
            &long,
            &very_long,
        ];
        for text in texts {
            let refused = matches!(RelativePath::new(text), Err(FileError::InvalidPath(_)));
            assert!(refused, "{text:?}");
        }
    }
}
