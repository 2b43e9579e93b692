//! Patterns over the functions that agents may call: the only place that compares them with names.
//!
//! A function has a qualified name, `tool/function`, or `agent/NAME` for an agent that is called
//! as a tool. Lists of tools, rules about consent, time-outs and the narrowing of a request all
//! say by patterns which functions they mean; each of them allows some of the forms.

use std::fmt;

use taskrun_journal::tool::ToolSpec;

/// The word before the name of an agent that is called as a tool: `agent/NAME`. No component is
/// named so.
pub const AGENTS: &str = "agent";

/// A pattern over functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// The function of this qualified name.
    Name(String),
    /// All functions whose qualified names begin so: `workspace/` of `workspace/*`, nothing of
    /// `*`.
    Beginning(String),
    /// All functions with this tag, stated by the policy or claimed by the tool: for rules that
    /// take away, not for those that allow.
    Tag(String),
}

impl Pattern {
    /// All functions, written `*`.
    #[must_use]
    pub fn any() -> Self {
        Self::Beginning(String::new())
    }

    /// All functions of a tool, written `tool/*`.
    #[must_use]
    pub fn all_of(tool: &str) -> Self {
        Self::Beginning(format!("{tool}/"))
    }

    /// Reads a name, or the beginning of names with a `*` behind it.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(beginning) => Self::Beginning(beginning.to_owned()),
            None => Self::Name(text.to_owned()),
        }
    }

    /// Reads `tool/function`, or `tool/*` for all of a tool. No other text has a star in it: it is
    /// the name of a function that no tool has.
    #[must_use]
    pub(crate) fn of_tool(text: &str) -> Self {
        match text.strip_suffix("/*") {
            Some(tool) => Self::all_of(tool),
            None => Self::Name(text.to_owned()),
        }
    }

    /// The qualified name, if the pattern is one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Beginning(_) | Self::Tag(_) => None,
        }
    }

    /// Tells if the pattern means a function, which is described under its qualified name.
    #[must_use]
    pub(crate) fn matches(&self, function: &ToolSpec) -> bool {
        match self {
            Self::Name(_) | Self::Beginning(_) => self.matches_name(&function.name),
            Self::Tag(tag) => function.is_tagged(std::slice::from_ref(tag)),
        }
    }

    /// Tells if the pattern means the function of this qualified name by its name alone, which a
    /// tag never does.
    #[must_use]
    pub fn matches_name(&self, name: &str) -> bool {
        match self {
            Self::Name(known) => known == name,
            Self::Beginning(beginning) => name.starts_with(beginning.as_str()),
            Self::Tag(_) => false,
        }
    }

    /// Tells if the pattern means every function that another one means by its name.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Beginning(ours), Self::Beginning(theirs)) => theirs.starts_with(ours.as_str()),
            (_, Self::Name(theirs)) => self.matches_name(theirs),
            (Self::Tag(ours), Self::Tag(theirs)) => ours == theirs,
            (Self::Name(_), Self::Beginning(_) | Self::Tag(_))
            | (Self::Beginning(_), Self::Tag(_))
            | (Self::Tag(_), Self::Beginning(_)) => false,
        }
    }

    /// Tells if a function may have a name that both patterns mean: of two beginnings, or of a
    /// name and a beginning, one then covers the other.
    #[must_use]
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// The weight of the pattern where several mean one function: a name has more than any
    /// beginning, and a long beginning more than a short one.
    pub(crate) fn precision(&self) -> (bool, usize) {
        match self {
            Self::Name(name) => (true, name.len()),
            Self::Beginning(beginning) => (false, beginning.len()),
            Self::Tag(_) => (false, 0),
        }
    }
}

/// Prints it as written: `workspace/list`, `workspace/*`, `*`, `tag: danger`.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Beginning(beginning) => write!(f, "{beginning}*"),
            Self::Tag(tag) => write!(f, "tag: {tag}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_journal::tool::ToolHints;

    fn function(name: &str, tags: &[&str]) -> ToolSpec {
        ToolSpec {
            name: name.to_owned(),
            title: None,
            description: String::new(),
            input_schema: "{}".to_owned(),
            output_schema: None,
            hints: ToolHints::default(),
            timeout: None,
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            stated_tags: Vec::new(),
        }
    }

    #[test]
    fn a_pattern_is_a_function_all_of_a_tool_a_beginning_or_everything() {
        for (pattern, name, expected) in [
            ("one/f", "one/f", true),
            ("one/f", "one/g", false),
            ("one/f", "one/ff", false),
            ("one/ff", "one/f", false),
            ("one/*", "one/f", true),
            ("one/*", "oner/f", false),
            ("one/*", "one", false),
            ("one/re*", "one/read", true),
            ("one/re*", "one/re", true),
            ("one/re*", "one/list", false),
            ("on*", "one/f", true),
            ("*", "one/f", true),
            ("agent/*", "agent/researcher", true),
            ("agent/*", "agents/f", false),
            ("agent/researcher", "agent/researcher", true),
            ("", "one/f", false),
        ] {
            let read = Pattern::parse(pattern);
            assert_eq!(read.matches_name(name), expected, "{pattern:?} {name:?}");
            assert_eq!(read.matches(&function(name, &["one/f"])), expected, "{pattern:?} {name:?}");
            assert_eq!(read.to_string(), pattern);
        }
    }

    #[test]
    fn where_only_functions_of_tools_are_named_no_other_star_means_anything() {
        for (pattern, name, expected) in [
            ("one/f", "one/f", true),
            ("one/*", "one/f", true),
            ("one/f", "one/g", false),
            ("one/*", "oner/f", false),
            ("*", "one/f", false),
            ("*/*", "one/f", false),
            ("one/f*", "one/ff", false),
            ("", "one/f", false),
        ] {
            let read = Pattern::of_tool(pattern);
            assert_eq!(read.matches_name(name), expected, "{pattern:?} {name:?}");
            assert_eq!(read.to_string(), pattern);
        }
    }

    #[test]
    fn a_tag_means_functions_that_have_it_and_no_name() {
        let tag = Pattern::Tag("danger".to_owned());
        assert!(tag.matches(&function("one/f", &["look", "danger"])));
        assert!(!tag.matches(&function("danger", &["look"])));
        assert!(!tag.matches_name("danger"));
        assert_eq!(tag.to_string(), "tag: danger");
    }

    #[test]
    fn of_two_patterns_one_covers_the_other_or_they_share_no_name() {
        let tag = |tag: &str| Pattern::Tag(tag.to_owned());
        for (ours, theirs, covers, covered) in [
            ("one/f", "one/f", true, true),
            ("one/*", "one/f", true, false),
            ("one/*", "one/re*", true, false),
            ("*", "one/*", true, false),
            ("*", "one/f", true, false),
            ("one/*", "one/*", true, true),
            ("one/f", "one/g", false, false),
            ("one/re*", "one/f", false, false),
            ("one/*", "oner/*", false, false),
        ] {
            let (one, other) = (Pattern::parse(ours), Pattern::parse(theirs));
            assert_eq!(one.covers(&other), covers, "{ours} {theirs}");
            assert_eq!(other.covers(&one), covered, "{theirs} {ours}");
            assert_eq!(one.overlaps(&other), covers || covered, "{ours} {theirs}");
            assert_eq!(other.overlaps(&one), covers || covered, "{theirs} {ours}");
        }
        assert!(tag("a").covers(&tag("a")) && !tag("a").covers(&tag("b")));
        for pattern in [Pattern::any(), Pattern::parse("a")] {
            assert!(!pattern.covers(&tag("a")) && !tag("a").covers(&pattern), "{pattern}");
        }
    }

    #[test]
    fn a_name_is_more_precise_than_a_beginning_and_a_long_beginning_than_a_short_one() {
        let in_order = ["*", "one/*", "one/read*", "one/r"].map(Pattern::parse);
        for pair in in_order.windows(2) {
            assert!(pair[0].precision() < pair[1].precision(), "{} {}", pair[0], pair[1]);
        }
        assert!(Pattern::Tag("one".to_owned()).precision() < in_order[1].precision());
    }
}
