//! The places of two agents' workspaces, one seen from the other, and the same file by both of
//! their paths.

use std::borrow::Cow;
use std::path::Path;

use super::grants::is_inside;

/// Where our workspace lies, seen from another one. Folders are separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WorkspaceRelation {
    /// It is the same.
    Same,
    /// It is this folder of theirs.
    Inside(String),
    /// It has theirs as this folder.
    Around(String),
    /// They have nothing in common, or nothing that a path can say.
    Apart,
}

/// A folder of ours, as they see it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FolderView<'p> {
    /// This path.
    At(Cow<'p, str>),
    /// Nothing of theirs, but it contains their workspace.
    Above,
    /// Nothing of theirs.
    Outside,
}

impl WorkspaceRelation {
    pub(super) fn of(ours: &Path, theirs: &Path) -> Self {
        let folder = |rest: &Path| {
            let names: Option<Vec<&str>> = rest.iter().map(|name| name.to_str()).collect();
            names.map(|names| names.join("/"))
        };
        if ours == theirs {
            return Self::Same;
        }
        match (ours.strip_prefix(theirs), theirs.strip_prefix(ours)) {
            (Ok(rest), _) => folder(rest).map_or(Self::Apart, Self::Inside),
            (_, Ok(rest)) => folder(rest).map_or(Self::Apart, Self::Around),
            (Err(_), Err(_)) => Self::Apart,
        }
    }

    /// A path of ours as they say it.
    pub(super) fn theirs<'p>(&self, path: &'p str) -> FolderView<'p> {
        match self {
            Self::Same => FolderView::At(Cow::Borrowed(path)),
            Self::Inside(folder) => FolderView::At(Cow::Owned(joined(folder, path))),
            Self::Around(folder) if is_inside(path, folder) => {
                FolderView::At(Cow::Borrowed(path[folder.len()..].trim_start_matches('/')))
            }
            Self::Around(folder) if is_inside(folder, path) => FolderView::Above,
            Self::Around(_) | Self::Apart => FolderView::Outside,
        }
    }

    /// A folder of theirs, which lies in ours, as we say it.
    pub(super) fn ours(&self, folder: &str) -> Option<String> {
        match self {
            Self::Same => Some(folder.to_owned()),
            Self::Inside(above) if is_inside(folder, above) => {
                Some(folder[above.len()..].trim_start_matches('/').to_owned())
            }
            Self::Around(above) => Some(joined(above, folder)),
            Self::Inside(_) | Self::Apart => None,
        }
    }
}

fn joined(folder: &str, path: &str) -> String {
    match path {
        "" => folder.to_owned(),
        _ => format!("{folder}/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(ours: &str, theirs: &str) -> WorkspaceRelation {
        WorkspaceRelation::of(Path::new(ours), Path::new(theirs))
    }

    #[test]
    fn a_path_is_said_in_the_words_of_the_other_workspace_and_back() {
        let at = |path: &'static str| FolderView::At(Cow::Borrowed(path));
        let cases = [
            ("/w", "/w", "a/b", at("a/b")),
            ("/w/sub/x", "/w", "a", at("sub/x/a")),
            ("/w/sub", "/w", "", at("sub")),
            ("/w", "/w/sub", "sub/a", at("a")),
            ("/w", "/w/sub", "sub", at("")),
            ("/w", "/w/sub", "", FolderView::Above),
            ("/w", "/w/sub/x", "sub", FolderView::Above),
            ("/w", "/w/sub", "subway/a", FolderView::Outside),
            ("/w", "/w/sub", "other", FolderView::Outside),
            ("/w/a", "/w/b", "x", FolderView::Outside),
            ("/w/ab", "/w/a", "x", FolderView::Outside),
        ];
        for (ours, theirs, path, expected) in cases {
            let place = place(ours, theirs);
            let seen = place.theirs(path);
            assert_eq!(seen, expected, "{path:?} of {ours} in {theirs}");
            if let FolderView::At(seen) = seen {
                assert_eq!(place.ours(&seen).as_deref(), Some(path), "{path:?} of {ours}");
            }
        }
        assert_eq!(place("/w/sub", "/w").ours("elsewhere"), None);
        assert_eq!(place("/w/a", "/w/b").ours("x"), None);
    }
}
