//! `taskrun agent diff`.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};
use similar::TextDiff;
use taskrun_policy::Closure;
use taskrun_runtime::{AgentVersion, closure_now, closure_of_version};

use super::agent_versions::{KnownVersions, digits, short};
use crate::args::{AgentDiffArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::paint::{BAD, BOLD, DIM, GOOD, with};
use crate::output::versioned;

/// Fewest digits that may stand for a pin; fewer are more likely a mistake.
const DIGITS_MIN: usize = 4;
/// Lines without a difference around each that has one.
const CONTEXT_LINES: usize = 3;

#[derive(Serialize)]
struct Difference {
    agent_name: String,
    from: String,
    to: String,
    differs: bool,
    /// The parts of the closure that differ.
    parts: Vec<String>,
    /// A unified diff of both closures, as indented JSON.
    diff: String,
}

pub(super) async fn diff(context: &Context, args: &AgentDiffArgs) -> Outcome {
    let agent = args.agent.as_str();
    let known = KnownVersions::find(context, Some(agent)).await?;
    let from = named(&known, agent, &args.from)?;
    let to = match &args.to {
        Some(to) => named(&known, agent, to)?,
        None => current(&known, agent)?,
    };
    let (old, new) = (closure(&known, agent, from)?, closure(&known, agent, to)?);
    let difference = Difference::new(agent, (&from.pin, &old), (&to.pin, &new))?;
    print(context, &difference);
    Ok(Exit::Completed)
}

/// The version that a pin, or the beginning of its digits, stands for.
fn named<'k>(known: &'k KnownVersions, agent: &str, text: &str) -> Outcome<&'k AgentVersion> {
    let list = format!("list the versions of {agent} with `taskrun agent versions {agent}`");
    let wanted = digits(text);
    let is_of_agent = text.split_once('@').is_none_or(|(name, _)| name == agent);
    let is_meant = |version: &&AgentVersion| {
        is_of_agent && wanted.len() >= DIGITS_MIN && digits(&version.pin).starts_with(wanted)
    };
    let found: Vec<&AgentVersion> = known.versions.iter().filter(is_meant).collect();
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let message = format!("no version {text:?} of agent {agent} is known here");
            let hint = format!("{list}, and give at least {DIGITS_MIN} digits of one");
            Err(Failure::usage("unknown-pin", message).hint(hint))
        }
        several => {
            let message = format!("{text:?} is the beginning of {} versions", several.len());
            let mut failure = Failure::usage("ambiguous", message).hint("give more of its digits");
            failure.causes = several.iter().map(|version| version.pin.clone()).collect();
            Err(failure)
        }
    }
}

fn current<'k>(known: &'k KnownVersions, agent: &str) -> Outcome<&'k AgentVersion> {
    known.versions.iter().find(|version| version.is_current).ok_or_else(|| {
        let message = format!("agent {agent} has no current version");
        Failure::usage("unknown-pin", message).hint(format!(
            "the policy does not have it, or one of its components cannot be read; name a second \
             version from `taskrun agent versions {agent}`"
        ))
    })
}

fn closure(known: &KnownVersions, agent: &str, version: &AgentVersion) -> Outcome<Closure> {
    let now = known.policy.as_ref().filter(|_| version.is_current);
    let now = now.and_then(|policy| closure_now(policy, policy.agents.get(agent)?));
    // The files may have changed since the versions were looked at.
    if let Some(now) = now.filter(|now| digits(&now.pin()) == digits(&version.pin)) {
        return Ok(now);
    }
    let kept = match known.storage.data_dir() {
        Some(dir) => closure_of_version(dir, &version.pin),
        None => Err("nothing is kept here".to_owned()),
    };
    kept.map_err(|why| {
        let message = format!("what version {} of agent {agent} was is not known", version.pin);
        let mut failure = Failure::usage("pin-not-kept", message);
        failure.causes.push(why);
        failure.hint("see what else is damaged or missing with `taskrun doctor --check`")
    })
}

impl Difference {
    fn new(agent: &str, from: (&str, &Closure), to: (&str, &Closure)) -> Outcome<Self> {
        let parts = changed_parts(from.1, to.1)?;
        let (old, new) = (lines(content(from.1)?)?, lines(content(to.1)?)?);
        let header = |pin: &str| format!("{agent}@{}", short(pin));
        let diff = TextDiff::from_lines(&old, &new)
            .unified_diff()
            .context_radius(CONTEXT_LINES)
            .header(&header(from.0), &header(to.0))
            .to_string();
        Ok(Self {
            agent_name: agent.to_owned(),
            from: from.0.to_owned(),
            to: to.0.to_owned(),
            differs: !parts.is_empty(),
            parts,
            diff,
        })
    }
}

/// The parts of two closures that differ.
///
/// # Errors
/// If one of them cannot be read.
pub(super) fn changed_parts(old: &Closure, new: &Closure) -> Outcome<Vec<String>> {
    let (old, new) = (content(old)?, content(new)?);
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    Ok(keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).cloned().collect())
}

fn content(closure: &Closure) -> Outcome<Map<String, Value>> {
    serde_json::from_str(closure.text()).map_err(|error| unread(&error))
}

/// The parts one below the other, and each of their values on a line.
fn lines(content: Map<String, Value>) -> Outcome<String> {
    let text = serde_json::to_string_pretty(&Value::Object(content));
    text.map(|text| text + "\n").map_err(|error| unread(&error))
}

fn unread(error: &serde_json::Error) -> Box<Failure> {
    Failure::unexpected("a closure is not what it was written as").because(error)
}

fn print(context: &Context, difference: &Difference) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table if difference.differs => {
            difference.diff.lines().for_each(|line| printer.line(painted(line)));
        }
        OutputFormat::Table => printer.talk("both are the same version"),
        OutputFormat::Json => printer.json(&versioned(difference)),
        OutputFormat::Ndjson => printer.json_line(&versioned(difference)),
        OutputFormat::Name => difference.parts.iter().for_each(|part| printer.line(part)),
    }
}

fn painted(line: &str) -> String {
    let style = match line.as_bytes() {
        [b'-', b'-', b'-', ..] | [b'+', b'+', b'+', ..] => BOLD,
        [b'-', ..] => BAD,
        [b'+', ..] => GOOD,
        [b'@', ..] => DIM,
        [..] => return line.to_owned(),
    };
    with(style, line)
}
