//! Names of tools as providers take them.
//!
//! Our names have a slash, `tool/function`, which no provider allows in the name of a function.
//! `tool/function` becomes `tool__function` where that can be read in one way only and is short
//! enough, and otherwise a readable beginning with a digest behind it. The same name always
//! becomes the same, whatever else is in the request, so that conversations stay as they are.
//! Tools of the host have the names under which models know them: `host/ask_user` is `ask_user`.
//! An agent as a tool bears its own name: `agent/writer` is `writer`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use taskrun_journal::completion::{CompletionRequest, ModelError};
use taskrun_journal::message::{AVAILABLE_TOOLS, Message, Part, ToolAnswer};
use taskrun_journal::tool::ToolSpec;
use taskrun_policy::{AGENTS, HOST, HostFunction};

/// Longest name of a function that every provider takes.
const WIRE_BYTES_MAX: usize = 64;
/// Hexadecimal digits of a digest, 64 bits: two names with the same are not to be found.
const DIGEST_DIGITS: usize = 16;
/// Readable characters before a digest.
const READABLE_BYTES: usize = 40;

/// The way back from a provider's names to ours, for one request.
#[derive(Debug, Default)]
pub(crate) struct Names {
    ours: BTreeMap<String, String>,
}

impl Names {
    /// Of the tools of a request and those that its conversation has called.
    ///
    /// # Errors
    /// If two of them would be called the same.
    pub(crate) fn of(request: &CompletionRequest) -> Result<Self, ModelError> {
        let mut names = Self::default();
        for tool in &request.tools {
            names.add(&tool.name)?;
        }
        for call in request.messages.iter().flat_map(Message::tool_uses) {
            names.add(&call.name)?;
        }
        Ok(names)
    }

    fn add(&mut self, name: &str) -> Result<(), ModelError> {
        let known = self.ours.insert(to_wire(name), name.to_owned());
        match known.filter(|known| known != name) {
            None => Ok(()),
            Some(other) => Err(ModelError::InvalidRequest(format!(
                "the tools {other:?} and {name:?} have the same name for the provider"
            ))),
        }
    }

    /// Our name for what a model calls. What was not in the request stays as it is: whether there
    /// is such a tool is for others to decide.
    pub(crate) fn to_ours(&self, wire: &str) -> String {
        self.ours.get(wire).cloned().unwrap_or_else(|| wire.to_owned())
    }
}

/// A provider's name for one of ours.
pub(crate) fn to_wire(name: &str) -> String {
    let plain = match name.split_once('/') {
        // No tool of a component has a name without a slash.
        Some((HOST, function)) => Some(function.to_owned()),
        Some((AGENTS, agent)) if is_free(agent) => Some(agent.to_owned()),
        Some((tool, function)) => {
            let one_way = !tool.contains("__")
                && !function.contains("__")
                && !tool.ends_with('_')
                && !function.starts_with('_');
            one_way.then(|| format!("{tool}__{function}"))
        }
        // A name of a guest's own making gives way to a tool of the host.
        None => is_free(name).then(|| name.to_owned()),
    };
    let fits = |plain: &String| {
        (1..=WIRE_BYTES_MAX).contains(&plain.len())
            && plain.starts_with(|first: char| first.is_ascii_alphabetic())
            && plain.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    plain.filter(fits).unwrap_or_else(|| shortened(name))
}

/// True if a name that stands alone is no name of a tool of the host, and none with a tool before it.
fn is_free(name: &str) -> bool {
    !name.contains("__") && HostFunction::parse(name).is_none()
}

fn shortened(name: &str) -> String {
    let digest = &blake3::hash(name.as_bytes()).to_hex()[..DIGEST_DIGITS];
    // With a hyphen for everything else there is no `__` in it, which the plain form always has.
    let readable: String = name
        .chars()
        .take(READABLE_BYTES)
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    format!("t-{readable}-{digest}")
}

/// The request as a provider is given it: where the error of a call lists tools that can be called,
/// those that are shown have the names under which they are.
pub(crate) fn with_wire_names(request: &CompletionRequest) -> Cow<'_, CompletionRequest> {
    let lists = |answer: &ToolAnswer| answer.is_error && answer.content.contains(AVAILABLE_TOOLS);
    let has_list = |message: &Message| {
        message.parts.iter().any(|part| matches!(part, Part::ToolAnswer(answer) if lists(answer)))
    };
    if !request.messages.iter().any(has_list) {
        return Cow::Borrowed(request);
    }
    let mut named = request.clone();
    for message in &mut named.messages {
        // What is taken to be changed is copied.
        if !has_list(message) {
            continue;
        }
        for part in &mut message.parts {
            if let Part::ToolAnswer(answer) = part
                && lists(answer)
            {
                answer.content = text_with_wire_names(&answer.content, &request.tools);
            }
        }
    }
    Cow::Owned(named)
}

/// The text of an error, which its tool may have written: only the names of these tools are others.
fn text_with_wire_names(text: &str, tools: &[ToolSpec]) -> String {
    let named = |word: &str| match tools.iter().any(|tool| tool.name == word) {
        true => to_wire(word),
        false => word.to_owned(),
    };
    let line = |line: &str| match line.strip_prefix(AVAILABLE_TOOLS) {
        Some(names) => {
            let names: Vec<String> = names.split(", ").map(named).collect();
            format!("{AVAILABLE_TOOLS}{}", names.join(", "))
        }
        None => line.to_owned(),
    };
    text.split('\n').map(line).collect::<Vec<String>>().join("\n")
}

/// The tool that a result in a conversation is of: the last one that was called under its id.
pub(crate) fn name_of_call<'m>(before: &'m [Message], tool_call_id: &str) -> Option<&'m str> {
    before.iter().rev().flat_map(|message| message.parts.iter().rev()).find_map(|part| match part {
        Part::ToolUse(call) if call.tool_call_id == tool_call_id => Some(call.name.as_str()),
        Part::ToolUse(_)
        | Part::Text(_)
        | Part::Thinking(_)
        | Part::ToolAnswer(_)
        | Part::Json(_)
        | Part::Media(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_that_look_alike_stay_different() {
        let all = [
            "a/b",
            "a_/b",
            "a/_b",
            "a__b/c",
            "a/b__c",
            "a__b",
            "a-b",
            "a/b-c",
            "a-b/c",
            "workspace/read",
        ];
        let wire: BTreeSet<String> = all.iter().map(|name| to_wire(name)).collect();
        assert_eq!(wire.len(), all.len(), "{wire:?}");
        assert!(wire.contains("workspace__read"), "{wire:?}");
    }

    #[test]
    fn t_067_tools_of_the_host_have_the_names_that_models_know() {
        for function in taskrun_policy::HostFunction::ALL {
            assert_eq!(to_wire(&function.qualified()), function.as_str());
        }
        let alike =
            ["host/ask_user", "hosts/ask_user", "host-ask_user/f", "a/ask_user", "ask_user"];
        let wire: BTreeSet<String> = alike.iter().map(|name| to_wire(name)).collect();
        assert_eq!(wire.len(), alike.len(), "{wire:?}");
    }

    #[test]
    fn c_060_an_agent_as_a_tool_bears_its_own_name_unless_a_tool_of_the_host_does() {
        assert_eq!(to_wire("agent/writer"), "writer");
        let alike = ["agent/ask_user", "host/ask_user", "agent/a__b", "a/b", "agents/writer"];
        let wire: BTreeSet<String> = alike.iter().map(|name| to_wire(name)).collect();
        assert_eq!(wire.len(), alike.len(), "{wire:?}");
        assert!(!wire.contains("writer"), "{wire:?}");
        let mut names = Names::default();
        names.add("agent/writer").expect("the first of the name");
        assert_eq!(names.to_ours("writer"), "agent/writer");
        // One that a guest made up is not taken for the agent.
        names.add("writer").expect_err("the second of the name");
    }

    #[test]
    fn every_name_becomes_one_that_providers_take() {
        let long = format!("{}/{}", "a".repeat(64), "b".repeat(64));
        let longer = format!("{}/{}", "a".repeat(64), "b".repeat(63));
        assert_ne!(to_wire(&long), to_wire(&longer));
        for name in [&*long, "ünï/çode", "", "/", "9/1", "a b"] {
            let wire = to_wire(name);
            assert!(wire.len() <= WIRE_BYTES_MAX, "{wire}");
            assert!(wire.starts_with(|c: char| c.is_ascii_alphabetic()), "{wire}");
            assert!(wire.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
        }
    }

    #[test]
    fn what_was_not_offered_comes_back_as_it_is() {
        assert_eq!(Names::default().to_ours("shell__run"), "shell__run");
    }
}
