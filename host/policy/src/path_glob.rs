//! Patterns over paths.

use std::fmt;

use globset::{GlobBuilder, GlobMatcher};

use super::error::is_hostile;
use super::names::{NameForms, caseless_pattern, folded};

/// Longest path that can be decided about, in bytes: the bound of `workspace-read` in the WIT.
pub const PATH_BYTES_MAX: usize = 4_096;

/// Most segments of a pattern. Matching keeps its states in the bits of one `u64`.
pub(crate) const GLOB_SEGMENTS_MAX: usize = 32;
/// Most bytes of a segment with wildcards.
const SEGMENT_BYTES_MAX: usize = 1 << 10;
/// Most lists of alternatives in a segment, within each other or not.
const BRACES_MAX: usize = 64;

/// A pattern over relative paths, segment by segment.
///
/// `*` stands for any characters of one segment, a leading dot included, `{a,b}` for one of
/// several texts, `[a-z]` for one ASCII character. `**` is a segment of its own and stands for
/// any number of segments, also none: `docs/**` is the folder `docs` and all below it, `**` is
/// everything, the workspace itself included. Case counts, but where a rule of files denies: there
/// a pattern means every name that some file system takes for one that it matches.
#[derive(Clone)]
pub(crate) struct PathGlob {
    text: String,
    segments: Vec<Segment>,
    /// The same for names that are folded.
    folded: Vec<Segment>,
}

#[derive(Clone)]
enum Segment {
    AnyDepth,
    Literal(String),
    Pattern { text: String, matcher: GlobMatcher },
}

/// Why a text is not a pattern, and what to write instead.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GlobError {
    pub(super) reason: String,
    pub(super) help: String,
}

impl PathGlob {
    pub(super) fn parse(text: &str) -> Result<Self, GlobError> {
        let bad = |reason: &str, help: String| Err(GlobError { reason: reason.to_owned(), help });
        if text.is_empty() {
            return bad("it is empty", "write \"**\" for everything".to_owned());
        }
        if text.starts_with('/') {
            let relative = match text.trim_start_matches('/') {
                "" => "**",
                relative => relative,
            };
            return bad(
                "it is absolute",
                format!("write \"{relative}\": paths start at the workspace"),
            );
        }
        if text.chars().any(is_hostile) {
            return bad("it contains a control character", "remove the character".to_owned());
        }
        if text.contains('\\') {
            return bad("it contains a backslash", "separate segments with `/`".to_owned());
        }
        if text.contains('?') {
            // The library's `?` is a byte, so a deny rule would miss a name outside ASCII.
            return bad("it contains `?`", "write `*`, which stands for any characters".to_owned());
        }
        let mut segments = Vec::new();
        for (index, segment) in text.split('/').enumerate() {
            let parsed = Segment::parse(segment, text, index)?;
            let repeated = matches!(parsed, Segment::AnyDepth)
                && matches!(segments.last(), Some(Segment::AnyDepth));
            if !repeated {
                segments.push(parsed);
            }
        }
        if segments.len() > GLOB_SEGMENTS_MAX {
            return bad("it has more than 32 segments", "end it sooner with `/**`".to_owned());
        }
        let folded = segments.iter().map(Segment::folded).collect();
        Ok(Self { text: text.to_owned(), segments, folded })
    }

    /// The same text for all patterns that are equal: segments of any depth do not repeat in it.
    pub(super) fn normal(&self) -> String {
        self.segments.iter().map(Segment::text).collect::<Vec<_>>().join("/")
    }

    /// Tells if it matches every path.
    pub(crate) fn is_everything(&self) -> bool {
        matches!(self.segments.as_slice(), [Segment::AnyDepth])
    }

    /// The folder `dir` if the pattern is `dir/**` with nothing but plain names in `dir`; the
    /// empty text for `**`.
    pub(crate) fn directory(&self) -> Option<String> {
        let (Segment::AnyDepth, names) = self.segments.split_last()? else {
            return None;
        };
        let names = names.iter().map(|segment| match segment {
            Segment::Literal(name) => Some(name.as_str()),
            Segment::AnyDepth | Segment::Pattern { .. } => None,
        });
        Some(names.collect::<Option<Vec<_>>>()?.join("/"))
    }

    /// The folder that everything it matches lies in: its plain names up to the first segment
    /// that is none, without that of a file.
    pub(super) fn base(&self) -> String {
        let names = self.segments.iter().map_while(|segment| match segment {
            Segment::Literal(name) => Some(name.as_str()),
            Segment::AnyDepth | Segment::Pattern { .. } => None,
        });
        let folders = self.segments.len() - 1;
        names.take(folders).collect::<Vec<_>>().join("/")
    }

    /// Tells if the pattern matches the path of these segments.
    pub(super) fn matches(&self, path: &[&str]) -> bool {
        self.states_after(path) & self.accepting() != 0
    }

    /// Tells if the pattern matches something strictly below the path of these segments.
    pub(super) fn may_match_below(&self, path: &[&str]) -> bool {
        // In every state but the accepting one there is a segment left to match.
        self.states_after(path) & !self.accepting() != 0
    }

    /// Tells if the pattern, as that of a rule of files that denies, means the path of these
    /// segments.
    pub(super) fn denies(&self, path: &[NameForms<'_>]) -> bool {
        self.denying_states_after(path) & self.accepting() != 0
    }

    /// Tells if it means the path and everything below it.
    pub(super) fn denies_all_below(&self, path: &[NameForms<'_>]) -> bool {
        matches!(self.segments.last(), Some(Segment::AnyDepth)) && self.denies(path)
    }

    /// Tells if it means the path or something below it.
    pub(super) fn denies_part(&self, path: &[NameForms<'_>]) -> bool {
        self.denying_states_after(path) != 0
    }

    /// Tells if every path that `other` matches is matched by this pattern. `false` may mean
    /// "not known": two patterns inside one segment are compared as text.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.covers_by(other, |ours, theirs| self.segments[ours].covers(&other.segments[theirs]))
    }

    /// Tells if this pattern, as that of a rule of files that denies, means every path that `other`
    /// matches. `false` may mean "not known".
    pub(super) fn denies_all_of(&self, other: &Self) -> bool {
        self.covers_by(other, |ours, theirs| {
            let their = &other.segments[theirs];
            // A folded segment may mean every name, and still only one.
            let is_name = !matches!(their, Segment::AnyDepth);
            self.segments[ours].covers(their)
                || (is_name && self.folded[ours].covers(&other.folded[theirs]))
        })
    }

    /// The same where `covers` tells by their indices if one segment covers another one.
    fn covers_by(&self, other: &Self, covers: impl Fn(usize, usize) -> bool) -> bool {
        let (ours, theirs) = (&self.segments, &other.segments);
        let width = theirs.len() + 1;
        // covered[o * width + t]: the rest of ours from `o` covers the rest of theirs from `t`.
        let mut covered = vec![false; (ours.len() + 1) * width];
        for o in (0..=ours.len()).rev() {
            for t in (0..=theirs.len()).rev() {
                let at = |o: usize, t: usize| covered[o * width + t];
                covered[o * width + t] = match (ours.get(o), theirs.get(t)) {
                    (None, None) => true,
                    (None, Some(_)) => false,
                    (Some(Segment::AnyDepth), None) => at(o + 1, t),
                    (Some(Segment::AnyDepth), Some(_)) => at(o + 1, t) || at(o, t + 1),
                    (Some(Segment::Literal(_) | Segment::Pattern { .. }), None) => false,
                    (Some(Segment::Literal(_) | Segment::Pattern { .. }), Some(_)) => {
                        covers(o, t) && at(o + 1, t + 1)
                    }
                };
            }
        }
        covered[0]
    }

    /// The states, one bit each, in which the pattern can be after these segments: bit `i` says
    /// that the segments from `i` on are still to be matched.
    fn states_after(&self, path: &[&str]) -> u64 {
        self.states(path, |index, name| self.segments[index].is_match(name))
    }

    /// The same for all names that some file system takes for these.
    fn denying_states_after(&self, path: &[NameForms<'_>]) -> u64 {
        self.states(path, |index, name| {
            name.is_short
                || self.segments[index].is_match(name.name)
                || self.folded[index].is_match(&name.folded)
                || self.folded[index].is_match(&name.caseless)
        })
    }

    fn states<N>(&self, path: &[N], is_match: impl Fn(usize, &N) -> bool) -> u64 {
        let mut states = self.skip_any_depth(1);
        for name in path {
            let mut next = 0;
            for (index, segment) in self.segments.iter().enumerate() {
                if states & (1 << index) == 0 {
                    continue;
                }
                next |= match segment {
                    Segment::AnyDepth => 1 << index,
                    Segment::Literal(_) | Segment::Pattern { .. } if is_match(index, name) => {
                        1 << (index + 1)
                    }
                    Segment::Literal(_) | Segment::Pattern { .. } => 0,
                };
            }
            states = self.skip_any_depth(next);
            if states == 0 {
                break;
            }
        }
        states
    }

    /// Adds the states reached by letting `**` stand for nothing.
    fn skip_any_depth(&self, mut states: u64) -> u64 {
        for (index, segment) in self.segments.iter().enumerate() {
            if matches!(segment, Segment::AnyDepth) && states & (1 << index) != 0 {
                states |= 1 << (index + 1);
            }
        }
        states
    }

    fn accepting(&self) -> u64 {
        1 << self.segments.len()
    }
}

/// Prints the pattern as written.
impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PathGlob").field(&self.text).finish()
    }
}

/// Two patterns are equal if they are the same segment by segment.
impl PartialEq for PathGlob {
    fn eq(&self, other: &Self) -> bool {
        let texts =
            |glob: &Self| glob.segments.iter().map(|s| s.text().to_owned()).collect::<Vec<_>>();
        texts(self) == texts(other)
    }
}

impl Eq for PathGlob {}

impl Segment {
    fn parse(segment: &str, whole: &str, index: usize) -> Result<Self, GlobError> {
        let bad = |reason: String, help: String| Err(GlobError { reason, help });
        match segment {
            "**" => return Ok(Self::AnyDepth),
            "" if whole.ends_with('/') => {
                let instead = whole.trim_end_matches('/');
                return bad("it ends with `/`".to_owned(), format!("write \"{instead}/**\""));
            }
            "" => {
                return bad(
                    "it has an empty segment".to_owned(),
                    "write one `/`, not two".to_owned(),
                );
            }
            "." if index == 0 && whole.len() > 2 => {
                return bad("it begins with `.`".to_owned(), format!("write \"{}\"", &whole[2..]));
            }
            "." => {
                return bad("it contains `.`".to_owned(), "write \"**\" for everything".to_owned());
            }
            ".." => {
                let help = "name folders below the workspace; set `workspace` to start elsewhere";
                return bad("it contains `..`".to_owned(), help.to_owned());
            }
            _ => {}
        }
        if segment.contains("**") {
            let reason = "`**` must stand alone between slashes".to_owned();
            return bad(reason, "write `*` inside a segment, `/**/` between segments".to_owned());
        }
        if !segment.contains(['*', '[', ']', '{', '}']) {
            return Ok(Self::Literal(segment.to_owned()));
        }
        if segment.contains("[!")
            || segment.contains("[^")
            || (segment.contains('[') && !segment.is_ascii())
        {
            let reason = "`[…]` may only list ASCII characters".to_owned();
            return bad(reason, "write `*`, or the names as in `{one,other}`".to_owned());
        }
        // Each level, and each character, is more of the library's to build; a name has 255 bytes.
        if segment.len() > SEGMENT_BYTES_MAX || braces_of(segment) > BRACES_MAX {
            let reason =
                format!("a segment has more than {SEGMENT_BYTES_MAX} bytes or {BRACES_MAX} `{{`");
            return bad(reason, "write several rules instead".to_owned());
        }
        match matcher(segment, false) {
            Ok(matcher) => Ok(Self::Pattern { text: segment.to_owned(), matcher }),
            Err(error) => {
                let help = "close every `[` and `{` within its segment; a literal one is `[[]`";
                bad(error.kind().to_string(), help.to_owned())
            }
        }
    }

    /// Tells if it matches this one name.
    fn is_match(&self, name: &str) -> bool {
        match self {
            Self::AnyDepth => true,
            Self::Literal(text) => text == name,
            Self::Pattern { matcher, .. } => matcher.is_match(name),
        }
    }

    /// The segment for names that are folded. One that is no pattern any more would stand for
    /// every name.
    fn folded(&self) -> Self {
        match self {
            Self::AnyDepth => Self::AnyDepth,
            Self::Literal(text) => Self::Literal(folded(text)),
            // Ranges stay as they are written: from `Z` to `a` is a part of none from `Z` to `A`.
            Self::Pattern { text, .. } => {
                let text = if text.is_ascii() { text.clone() } else { caseless_pattern(text) };
                match matcher(&text, true) {
                    Ok(matcher) => Self::Pattern { text, matcher },
                    Err(_) => Self::AnyDepth,
                }
            }
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::AnyDepth => "**",
            Self::Literal(text) | Self::Pattern { text, .. } => text,
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::AnyDepth, _) => true,
            (_, Self::AnyDepth) => false,
            (Self::Pattern { text, .. }, _) if text == "*" => true,
            (Self::Pattern { matcher, .. }, Self::Literal(name)) => matcher.is_match(name),
            (Self::Literal(_) | Self::Pattern { .. }, Self::Literal(_) | Self::Pattern { .. }) => {
                self.text() == other.text()
            }
        }
    }
}

fn braces_of(segment: &str) -> usize {
    segment.bytes().filter(|byte| *byte == b'{').count()
}

fn matcher(text: &str, any_case: bool) -> Result<GlobMatcher, globset::Error> {
    let mut builder = GlobBuilder::new(text);
    builder.literal_separator(true).backslash_escape(false).case_insensitive(any_case);
    Ok(builder.build()?.compile_matcher())
}

/// The segments of a path of the workspace, none for the empty path; or what is wrong with it.
///
/// The path comes from a guest: it is relative, separated by `/`, without `.`, `..`, empty
/// segments and NUL, at most [`PATH_BYTES_MAX`] bytes.
pub(super) fn split_path(path: &str) -> Result<Vec<&str>, &'static str> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    if path.len() > PATH_BYTES_MAX {
        return Err("the path is longer than 4096 bytes");
    }
    if path.starts_with('/') {
        return Err("the path is absolute");
    }
    if path.contains('\0') {
        return Err("the path contains NUL");
    }
    let segments: Vec<&str> = path.split('/').collect();
    if segments.iter().any(|segment| matches!(*segment, "" | "." | "..")) {
        return Err("the path contains `.`, `..` or an empty segment");
    }
    Ok(segments)
}
