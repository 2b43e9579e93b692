//! Places of entries under `tools`, for people who are told which one counts.

use toml::de::DeTable;

use crate::error::Problems;
use crate::location::Location;
use crate::parse_callees::means_callee;
use crate::parse_host_tools::means_host_tool;
use crate::pattern::Pattern;
use crate::policy::Policy;
use crate::read::Section;

/// An entry under `tools` of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolEntry {
    /// As written.
    pub text: String,
    /// Its place in the policy file.
    pub location: Location,
}

impl Policy {
    /// The first entry under `tools` of an agent that means the function, or the agent as a tool, of
    /// this qualified name. It is looked up in the text of the policy;
    /// [`AgentPolicy`](crate::AgentPolicy) says what may be called.
    #[must_use]
    pub fn tool_entry(&self, agent: &str, name: &str) -> Option<ToolEntry> {
        let problems = Problems::new(&self.source);
        let (document, _) = DeTable::parse_recoverable(&self.source.text);
        let root = Section::root(&problems, document.get_ref());
        let mut sections = root.named("agent", "an agent").into_iter();
        let (_, section) = sections.find(|(known, _)| known == agent)?;
        let means = |text: &str| {
            means_callee(text, name)
                .or_else(|| means_host_tool(text, name))
                .unwrap_or_else(|| Pattern::of_tool(text).matches_name(name))
        };
        let entry = section.strings("tools").into_iter().find(|text| means(text.value))?;
        let location = self.source.locate(entry.span.start);
        Some(ToolEntry { text: entry.value.to_owned(), location })
    }
}
