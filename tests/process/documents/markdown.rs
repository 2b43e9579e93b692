//! Markdown as far as the documents of this repository use it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A document of the repository.
pub(super) struct Document {
    /// Its path from the root of the repository, such as `docs/policy.md`.
    pub(super) path: PathBuf,
    /// Lines of it, those of fenced blocks apart.
    pub(super) prose: Vec<String>,
    pub(super) blocks: Vec<Block>,
}

/// A fenced block.
pub(super) struct Block {
    pub(super) language: String,
    /// Its lines, each with a line feed.
    pub(super) text: String,
}

/// A heading and what stands under it.
pub(super) struct Section<'d> {
    /// Number of its `#`.
    pub(super) level: usize,
    /// As written, without the `#`.
    pub(super) title: &'d str,
    /// The lines up to the next heading of this or a higher level.
    pub(super) lines: &'d [String],
}

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

impl Document {
    /// Every Markdown file of the repository.
    pub(super) fn all() -> Vec<Self> {
        let mut paths = Vec::new();
        find(root(), &mut paths);
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// The one at this path from the root.
    pub(super) fn at(path: &str) -> Self {
        Self::read(&root().join(path))
    }

    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("a document");
        let path = path.strip_prefix(root()).expect("below the root").to_owned();
        let (mut prose, mut blocks) = (Vec::new(), Vec::new());
        let mut open: Option<Block> = None;
        for line in text.lines() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    let language = language.to_owned();
                    open = Some(Block { language, text: String::new() });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.text.extend([line, "\n"]),
                (None, None) => prose.push(line.to_owned()),
            }
        }
        assert!(open.is_none(), "{}: a block has no end", path.display());
        Self { path, prose, blocks }
    }

    /// The blocks in a language.
    pub(super) fn blocks_in(&self, language: &str) -> impl Iterator<Item = &str> {
        self.blocks.iter().filter(move |one| one.language == language).map(|one| one.text.as_str())
    }

    pub(super) fn sections(&self) -> Vec<Section<'_>> {
        sections(&self.prose)
    }

    /// The anchors that links may name, as forges make them of headings.
    pub(super) fn anchors(&self) -> Vec<String> {
        let mut seen: HashMap<String, usize> = HashMap::new();
        let anchors = self.sections().into_iter().map(|section| {
            let anchor = anchor(section.title);
            let before = seen.entry(anchor.clone()).or_default();
            *before += 1;
            if *before == 1 { anchor } else { format!("{anchor}-{}", *before - 1) }
        });
        anchors.collect()
    }
}

impl<'d> Section<'d> {
    /// The sections one level below.
    pub(super) fn parts(&self) -> impl Iterator<Item = Section<'d>> {
        let level = self.level + 1;
        sections(self.lines).into_iter().filter(move |part| part.level == level)
    }

    pub(super) fn text(&self) -> String {
        self.lines.join("\n")
    }
}

fn sections(lines: &[String]) -> Vec<Section<'_>> {
    let headings = lines.iter().enumerate().filter_map(|(at, line)| Some((at, heading(line)?)));
    let sections = headings.map(|(at, (level, title))| {
        let below = &lines[at + 1..];
        let ends = |line: &String| heading(line).is_some_and(|(other, _)| other <= level);
        let end = below.iter().position(ends).unwrap_or(below.len());
        Section { level, title, lines: &below[..end] }
    });
    sections.collect()
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let title = line.trim_start_matches('#');
    let level = line.len() - title.len();
    Some((level, title.strip_prefix(' ').filter(|_| level > 0)?))
}

fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

/// The texts between back-quotes in a line.
pub(super) fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The line without the texts between back-quotes.
pub(super) fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let is_made = name.starts_with('.')
            || name == "target"
            || name == "node_modules"
            // The demo copies documents without that to which they link.
            || path.join(".made-by-taskrun-demo").exists();
        if entry.file_type().expect("a type").is_dir() {
            if !is_made {
                find(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn anchors_are_those_of_forges() {
    assert_eq!(anchor("`[agent.NAME]`"), "agentname");
    assert_eq!(anchor("Both are *folds*: an ID's"), "both-are-folds-an-ids");
    assert_eq!(anchor("`tool_calls` of a run"), "tool_calls-of-a-run");
}
