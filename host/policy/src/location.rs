//! Where in a policy file something stands.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A place in a policy file, as an editor counts: line and column from 1, the column in
/// characters, not bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The policy file, as it was named when it was loaded.
    pub file: Arc<Path>,
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}

/// Prints `file:line:column`, which terminals and editors turn into a link.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file.display(), self.line, self.column)
    }
}

/// The text of a policy file, and where its lines begin. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) file: Arc<Path>,
    pub(super) text: Arc<str>,
    line_starts: Arc<[usize]>,
}

impl Source {
    pub(super) fn new(text: &str, file: &Path) -> Self {
        let line_starts = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(newline, _)| newline + 1))
            .collect();
        Self { file: file.into(), text: text.into(), line_starts }
    }

    /// The place of a byte offset. One past the end, or inside a character, counts as the
    /// nearest place before it.
    pub(super) fn locate(&self, offset: usize) -> Location {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        // The first line starts at 0, so at least one start is not after `offset`.
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let column = self.text[self.line_starts[line - 1]..offset].chars().count() + 1;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Location { file: Arc::clone(&self.file), line: number(line), column: number(column) }
    }
}
