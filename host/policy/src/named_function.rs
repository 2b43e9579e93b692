//! Functions of tools that rules of an agent name each by itself. A rule about a function that its
//! tool does not have would guard nothing, so hosts hold these against the tools they load.

use toml::Spanned;
use toml::de::DeValue;

use crate::location::Location;
use crate::pattern::Pattern;
use crate::read::Section;

/// A function that a rule of an agent names by itself, and not by the beginning of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFunction {
    /// The key of the rule: `ask`, `policy.allow`, `policy.block` or `timeouts`.
    pub key: &'static str,
    /// Its qualified name, as in `mail/send`.
    pub name: String,
    /// The place of the rule in the policy file.
    pub location: Location,
}

/// The functions that the rules of an agent's table name, in the order of these keys. All that is
/// wrong with the rules in themselves is reported by those who read them.
pub(super) fn named_functions(section: &Section<'_, '_>) -> Vec<NamedFunction> {
    let asked = texts(section.value("ask")).filter_map(|(text, start)| {
        let name = text.strip_prefix("tool:")?;
        Some(("ask", name.trim(), start))
    });
    let policy = section.value("policy").and_then(|policy| policy.get_ref().as_table());
    let listed = [("policy.allow", "allow"), ("policy.block", "block")];
    let listed = listed.into_iter().flat_map(|(label, key)| {
        let list = policy.and_then(|policy| policy.get(key));
        texts(list).map(move |(text, start)| (label, text, start))
    });
    let timeouts = section.value("timeouts").and_then(|timeouts| timeouts.get_ref().as_table());
    let timed = timeouts.into_iter().flat_map(|timeouts| timeouts.keys());
    let timed = timed.map(|key| ("timeouts", &**key.get_ref(), key.span().start));
    let all = asked.chain(listed).chain(timed);
    let named = all.filter_map(|(key, text, start)| {
        let name = Pattern::parse(text).name()?.to_owned();
        Some(NamedFunction { key, name, location: section.problems.source.locate(start) })
    });
    named.collect()
}

/// The strings of a list, each with the byte at which it begins.
fn texts<'t>(list: Option<&'t Spanned<DeValue<'t>>>) -> impl Iterator<Item = (&'t str, usize)> {
    let items = list.and_then(|list| list.get_ref().as_array());
    let items = items.into_iter().flat_map(|items| items.iter());
    items.filter_map(|item| Some((item.get_ref().as_str()?, item.span().start)))
}
