//! Agents, tools and models of a policy by the names that people type.

use taskrun_policy::{AgentPolicy, ModelPolicy, Policy, ToolPolicy};

use crate::failure::{Failure, Outcome};
use crate::paths::shown;

/// An agent of a policy.
///
/// # Errors
/// If there is none of that name; then with the nearest one.
pub(crate) fn agent_of<'p>(policy: &'p Policy, name: &str) -> Outcome<&'p AgentPolicy> {
    policy
        .agents
        .get(name)
        .ok_or_else(|| unknown("agent", name, policy.agents.keys().map(String::as_str), policy))
}

/// A tool of a policy.
///
/// # Errors
/// If there is none of that name; then with the nearest one.
pub(crate) fn tool_of<'p>(policy: &'p Policy, name: &str) -> Outcome<&'p ToolPolicy> {
    policy
        .tools
        .get(name)
        .ok_or_else(|| unknown("tool", name, policy.tools.keys().map(String::as_str), policy))
}

/// A model of a policy.
///
/// # Errors
/// If there is none of that name; then with the nearest one.
pub(crate) fn model_of<'p>(policy: &'p Policy, name: &str) -> Outcome<&'p ModelPolicy> {
    policy
        .models
        .get(name)
        .ok_or_else(|| unknown("model", name, policy.models.keys().map(String::as_str), policy))
}

fn unknown<'k>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'k str>,
    policy: &Policy,
) -> Box<Failure> {
    let near = nearest(name, known);
    let list = format!("list the {what}s with `taskrun {what} ls`");
    let hint = near.map_or(list.clone(), |near| format!("did you mean {near}? {list}"));
    let message = format!("there is no {what} {name:?} in {}", shown(&policy.path));
    let code = match what {
        "agent" => "unknown-agent",
        "model" => "unknown-model",
        _ => "unknown-tool",
    };
    Failure::usage(code, message).hint(hint)
}

/// The known word that `name` is most likely a misspelling of.
pub(crate) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let name: String = name.chars().take(64).flat_map(char::to_lowercase).collect();
    let changes_max = (name.chars().count() / 3).max(1);
    known
        .map(|word| (strsim::damerau_levenshtein(&name, word), word))
        .filter(|(changes, word)| *changes <= changes_max || word.contains(&name) && name.len() > 2)
        .min_by_key(|(changes, _)| *changes)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        let known = ["readonly_researcher", "note_writer"];
        assert_eq!(nearest("readonly_reseacher", known.into_iter()), Some("readonly_researcher"));
        assert_eq!(nearest("researcher", known.into_iter()), Some("readonly_researcher"));
        assert_eq!(nearest("x", known.into_iter()), None);
    }
}
