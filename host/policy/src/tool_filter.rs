//! The functions that the narrowing of a request leaves.

use taskrun_journal::narrowing::Narrowing;
use taskrun_journal::tool::ToolSpec;

use crate::pattern::Pattern;

/// The part of a [`Narrowing`] that is about functions, read once for all of them.
#[derive(Debug)]
pub struct ToolFilter<'n> {
    only: Option<Vec<Pattern>>,
    only_tags: Option<&'n [String]>,
    deny_tags: &'n [String],
}

impl<'n> ToolFilter<'n> {
    /// That of a narrowing.
    #[must_use]
    pub fn of(narrow: &'n Narrowing) -> Self {
        let patterns =
            |texts: &Vec<String>| texts.iter().map(|text| Pattern::of_tool(text)).collect();
        Self {
            only: narrow.tools.as_ref().map(patterns),
            only_tags: narrow.only_tags.as_deref(),
            deny_tags: &narrow.deny_tags,
        }
    }

    /// Tells if every function passes.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.only.is_none() && self.only_tags.is_none() && self.deny_tags.is_empty()
    }

    /// Tells if a function passes, which is described under its qualified name. A tag that the
    /// tool claims takes away and gives nothing.
    #[must_use]
    pub fn leaves(&self, function: &ToolSpec) -> bool {
        let named = |patterns: &Vec<Pattern>| patterns.iter().any(|one| one.matches(function));
        self.only.as_ref().is_none_or(named)
            && self.only_tags.is_none_or(|tags| function.is_stated_as(tags))
            && !function.is_tagged(self.deny_tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskrun_journal::tool::ToolHints;

    fn function(tags_stated: bool) -> ToolSpec {
        ToolSpec {
            name: "t/f".to_owned(),
            title: None,
            description: String::new(),
            input_schema: "{}".to_owned(),
            output_schema: None,
            hints: ToolHints::default(),
            timeout: None,
            tags: vec!["look".to_owned()],
            stated_tags: if tags_stated { vec!["look".to_owned()] } else { Vec::new() },
        }
    }

    #[test]
    fn a_function_has_to_pass_names_and_tags() {
        let texts =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let none = Narrowing::default();
        let tools = |all: &[&str]| Narrowing { tools: Some(texts(all)), ..Narrowing::default() };
        let only = |all: &[&str]| Narrowing { only_tags: Some(texts(all)), ..Narrowing::default() };
        let deny = |all: &[&str]| Narrowing { deny_tags: texts(all), ..Narrowing::default() };
        for (narrow, claimed, stated) in [
            (none.clone(), true, true),
            (tools(&["u/*", "t/f"]), true, true),
            (tools(&["u/*"]), false, false),
            (tools(&[]), false, false),
            (only(&["look", "more"]), false, true),
            (only(&["more"]), false, false),
            (deny(&["look"]), false, false),
            (deny(&["more"]), true, true),
            (Narrowing { deny_tags: texts(&["look"]), ..tools(&["t/f"]) }, false, false),
            (Narrowing { only_tags: Some(texts(&["more"])), ..tools(&["t/f"]) }, false, false),
        ] {
            let filter = ToolFilter::of(&narrow);
            assert_eq!(filter.leaves(&function(false)), claimed, "{narrow}");
            assert_eq!(filter.leaves(&function(true)), stated, "{narrow}");
            assert_eq!(filter.is_open(), narrow == none, "{narrow}");
        }
    }
}
