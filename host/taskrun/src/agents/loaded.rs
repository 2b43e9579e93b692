//! Tools as an agent has them, before its patterns say which of their functions it may call.

use std::sync::Arc;

use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{
    AGENTS, CallTimeouts, HOST, HostFunction, InterruptionPolicy, Limits, Location, NamedFunction,
    Pattern,
};

use crate::host_tools::{Callee, HostTools};
use crate::ports::tool::Tool;

/// A tool loaded for one agent.
pub struct LoadedTool {
    /// Its name in the policy.
    pub name: String,
    /// Its component under the agent's grants.
    pub tool: Arc<dyn Tool>,
    /// Limits of a call.
    pub limits: Limits,
    /// The treatment of a call that was cut off.
    pub interrupted: InterruptionPolicy,
    /// Tags of all its functions, where the policy states them; they replace what the tool says.
    pub tags: Option<Vec<String>>,
    /// Time-outs of calls of single functions, by their qualified names, instead of `call` of the
    /// limits.
    pub timeouts: CallTimeouts,
}

/// Why an agent's tools do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolsError {
    /// A pattern names a function that the tool does not have.
    #[error("tool {tool} has no function {function:?}; it has: {known}")]
    UnknownFunction {
        /// The tool.
        tool: String,
        /// The function.
        function: String,
        /// Functions it has.
        known: String,
    },
    /// A rule about calls names a function that the tool does not have, so that it holds none.
    #[error("`{key}` ({location}): {unknown}")]
    Rule {
        /// The key of the rule.
        key: &'static str,
        /// Its place in the policy.
        location: Location,
        /// The fault: [`Self::UnknownFunction`].
        unknown: Box<Self>,
    },
    /// The schema of a function's arguments is none.
    #[error("the input schema of {name} is not a usable JSON schema: {detail}")]
    Schema {
        /// Qualified name.
        name: String,
        /// The fault, in words.
        detail: String,
    },
    /// The schema of a function's results is none.
    #[error("the output schema of {name} is not a usable JSON schema: {detail}")]
    OutputSchema {
        /// Qualified name.
        name: String,
        /// The fault, in words.
        detail: String,
    },
}

impl LoadedTool {
    /// An agent as a tool: `agent/NAME`.
    #[must_use]
    pub fn of_callee(Callee { name, description }: &Callee, limits: &Limits) -> Self {
        let tool = HostTools::of_agent(name, description.as_deref());
        Self::of_host(AGENTS, Arc::new(tool), limits)
    }

    /// The tools of the host for an agent with these members: `host/NAME`.
    #[must_use]
    pub fn of_functions(functions: &[HostFunction], members: &[Callee], limits: &Limits) -> Self {
        Self::of_host(HOST, Arc::new(HostTools::new(functions, members)), limits)
    }

    /// A tool that is the host itself.
    pub(super) fn of_host(name: &str, tool: Arc<dyn Tool>, limits: &Limits) -> Self {
        Self {
            timeouts: CallTimeouts::default(),
            name: name.to_owned(),
            tool,
            limits: limits.clone(),
            interrupted: InterruptionPolicy::default(),
            tags: Some(vec![name.to_owned()]),
        }
    }

    /// Its functions that any of the patterns means.
    ///
    /// # Errors
    /// [`ToolsError::UnknownFunction`].
    pub(super) fn selected<'t>(
        &'t self,
        patterns: &[Pattern],
    ) -> Result<Vec<&'t ToolSpec>, ToolsError> {
        let specs = self.tool.specs();
        let prefix = format!("{}/", self.name);
        let named = patterns.iter().filter_map(Pattern::name);
        let mut functions = named.filter_map(|name| name.strip_prefix(&prefix));
        if let Some(error) = functions.find_map(|function| self.missing(function)) {
            return Err(error);
        }
        let is_meant = |spec: &&ToolSpec| {
            let name = format!("{prefix}{}", spec.name);
            patterns.iter().any(|pattern| pattern.matches_name(&name))
        };
        Ok(specs.iter().filter(is_meant).collect())
    }

    /// The error of naming a function, if the tool does not have it.
    fn missing(&self, function: &str) -> Option<ToolsError> {
        let specs = self.tool.specs();
        if specs.iter().any(|spec| spec.name == function) {
            return None;
        }
        let known: Vec<_> = specs.iter().map(|spec| &*spec.name).collect();
        Some(ToolsError::UnknownFunction {
            tool: self.name.clone(),
            function: function.to_owned(),
            known: known.join(", "),
        })
    }

    /// The description of one of its functions, under its qualified name.
    pub(super) fn qualified(&self, spec: &ToolSpec) -> ToolSpec {
        ToolSpec {
            name: format!("{}/{}", self.name, spec.name),
            stated_tags: self.tags.clone().unwrap_or_default(),
            tags: self.tags.clone().unwrap_or_else(|| spec.tags.clone()),
            ..spec.clone()
        }
    }
}

/// Checks that tools have the functions that the rules of an agent name of them.
///
/// # Errors
/// [`ToolsError::Rule`], if one does not.
pub fn check_rules(named: &[NamedFunction], tools: &[LoadedTool]) -> Result<(), ToolsError> {
    for rule in named {
        let Some((tool, function)) = rule.name.split_once('/') else { continue };
        let loaded = tools.iter().find(|loaded| loaded.name == tool);
        if let Some(unknown) = loaded.and_then(|loaded| loaded.missing(function)) {
            let (location, unknown) = (rule.location.clone(), Box::new(unknown));
            return Err(ToolsError::Rule { key: rule.key, location, unknown });
        }
    }
    Ok(())
}

/// The descriptions of the functions that an agent may call, under their qualified names and in the
/// order of these: those of `tools` that any of the patterns means, and all that are `of_host`. Their
/// schemas are not read, and have to be known as usable.
///
/// # Errors
/// [`ToolsError::UnknownFunction`], if a pattern names a function that does not exist.
pub fn functions(
    patterns: &[Pattern],
    tools: &[LoadedTool],
    of_host: &[LoadedTool],
) -> Result<Vec<ToolSpec>, ToolsError> {
    let mut all = Vec::new();
    for loaded in tools {
        all.extend(loaded.selected(patterns)?.into_iter().map(|spec| loaded.qualified(spec)));
    }
    for loaded in of_host {
        all.extend(loaded.tool.specs().iter().map(|spec| loaded.qualified(spec)));
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}
