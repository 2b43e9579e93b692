//! `taskrun policy check`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use taskrun_journal::list::ListFilter;
use taskrun_journal::pin::{agent_of, has_digest};
use taskrun_journal::store::StoreError;
use taskrun_policy::{AgentPolicy, Policy, Upgrade};
use taskrun_runtime::{
    Loader, PinRuns, RunRules, Storage, check_models, check_subscribers, runs_by_pin,
};

use super::agent::{LoadCheck, check_one, summary};
use super::policy_tools::{check_unlisted, unusable};
use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, model_failure, subscribers_failure};
use crate::output::escape::escaped_line;
use crate::output::paint::{NOTE, with};
use crate::output::{human, versioned};
use crate::paths::{is_there, shown, shown_in};

/// A policy as it was found.
#[derive(Serialize)]
struct Report {
    policy: PathBuf,
    ok: bool,
    agents: Vec<AgentReport>,
    /// Those that no agent lists.
    tools: Vec<LoadCheck>,
    gone: Vec<GoneAgent>,
}

/// An agent of it.
#[derive(Serialize)]
struct AgentReport {
    #[serde(flatten)]
    check: LoadCheck,
    #[serde(skip_serializing_if = "Option::is_none")]
    pin: Option<String>,
    #[serde(flatten)]
    runs: Option<OpenRuns>,
}

/// The open runs of an agent.
#[derive(Clone, Copy, Default, Serialize)]
struct OpenRuns {
    #[serde(rename = "open_runs")]
    all: u64,
    #[serde(rename = "open_runs_of_other_pins")]
    of_other_pins: u64,
    /// Those of other pins that their host adopts by itself when they go on.
    #[serde(rename = "open_runs_to_adopt")]
    to_adopt: u64,
}

/// An agent that has open runs of the policy's file and is not in the policy.
#[derive(Serialize)]
pub(super) struct GoneAgent {
    pub(super) name: String,
    pub(super) open_runs: u64,
}

impl GoneAgent {
    /// The agent and its runs in a line.
    pub(super) fn text(&self) -> String {
        let Self { name, open_runs } = self;
        let (name, runs) = (escaped_line(name), human::count(*open_runs, "open run"));
        let begin = if *open_runs == 1 { "begins" } else { "begin" };
        format!("{name}: not in the policy; {runs} of it {begin} nothing")
    }
}

/// The numbers of open runs, by their pins, and of those without one by their agents; none where there
/// is no data directory, or none that can be written.
type OpenPins = Option<BTreeMap<String, PinRuns>>;

/// Checks the policy named, or the one in use.
///
/// # Errors
/// If anything of it cannot be used.
pub(super) async fn check(context: &Context, named: Option<&Path>) -> Outcome {
    let Checked { loader, report, failure } = look(context, named).await?;
    print(context, &loader, report);
    match failure {
        None => Ok(Exit::Completed),
        Some(failure) => Err(failure),
    }
}

/// A policy that was read, and everything that it names.
pub(super) struct Checked {
    pub(super) loader: Loader,
    report: Report,
    /// The fault of the first agent or tool that cannot be used.
    pub(super) failure: Option<Box<Failure>>,
}

/// Reads the policy in use, or the one that is named, and tries everything that it names.
///
/// # Errors
/// If the text, a prompt, a model or a subscriber cannot be used.
pub(super) async fn look(context: &Context, named: Option<&Path>) -> Outcome<Checked> {
    let own = named.map(|file| context.with_config(file));
    let context = own.as_ref().unwrap_or(context);
    let policy = context.whole_policy()?;
    if let Some(fault) = check_models(&policy).first() {
        return Err(model_failure(fault));
    }
    if let Some(failure) = subscribers_failure(&check_subscribers(&policy)) {
        return Err(failure);
    }
    let open = open_pins(context).await?;
    let loader = context.looking_loader(policy)?;
    let data_dir = context.data_dir()?;
    // Nothing is known where no file is kept.
    let file_of = |pin: &str| RunRules::file_of_pin(&data_dir, pin);
    let is_of = |file: &Path| stands_for(&loader.policy().path, named.is_some(), file);
    let is_of_file = |pin: &str| file_of(pin).is_some_and(|file| is_of(&file));
    let mut agents = Vec::new();
    let mut first: Option<Box<Failure>> = None;
    for agent in loader.policy().agents.values() {
        let pin = loader.pin(agent);
        let count = |open| open_runs(open, agent, pin.as_deref(), &is_of_file);
        let mut runs = open.as_ref().map(count);
        let note = runs.and_then(note);
        let (check, failure) = check_one(context, &loader, &agent.name, note.as_deref()).await;
        if let Some(runs) = runs.as_mut().filter(|_| !check.ok) {
            // A form that does not load is given to no run.
            runs.to_adopt = 0;
        }
        first = first.or(failure);
        agents.push(AgentReport { check, pin, runs });
    }
    let (tools, failure) = check_unlisted(context, &loader).await;
    first = first.or(failure);
    let gone = open.as_ref().map_or_else(Vec::new, |open| {
        // One that is there no more may be this one, in a project that was moved; a data directory
        // that is named may be that of several.
        let is_shared = context.globals.data_dir.is_some();
        let is_other = |file: PathBuf| (is_shared || is_there(&file)) && !is_of(&file);
        let is_of_other = |pin: &str| has_digest(pin) && file_of(pin).is_some_and(is_other);
        gone(open, loader.policy(), &is_of_other)
    });
    let counts = (agents.iter().filter(|agent| !agent.check.ok).count(), agents.len());
    let path = loader.policy().path.clone();
    let unusable = unusable(&tools);
    let report = Report { policy: path, ok: first.is_none(), agents, tools, gone };
    let failure = first.map(|first| {
        let mut failure = summary(&first, counts, "check again with `taskrun policy check`");
        if let Some(tools) = unusable {
            let agents = std::mem::take(&mut failure.message);
            failure.message = if counts.0 == 0 { tools } else { format!("{agents}, and {tools}") };
        }
        if failure.exit == Exit::Denied {
            // No use of a capability was denied: the policy lacks a line.
            failure.exit = Exit::Usage;
        }
        failure
    });
    Ok(Checked { loader, report, failure })
}

async fn open_pins(context: &Context) -> Outcome<OpenPins> {
    let dir = context.data_dir()?;
    if !dir.is_dir() {
        return Ok(None);
    }
    let opened = Storage::open_existing(&dir, context.storage_options());
    let storage = match opened {
        Ok(storage) => storage,
        // A store is locked in its folder while it is opened, and no policy is at fault there.
        Err(error @ StoreError::ReadOnly { .. }) => {
            let reason = format!("the data directory was not looked at for open runs: {error}");
            context.printer.say(shown_in(&reason));
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    context.tell_of_damage(&storage);
    let scope = context.principal().scope;
    Ok(Some(runs_by_pin(&storage, &scope, &ListFilter::open()).await?))
}

/// True if a policy that is checked is the one of this file: as it is, or as a draft beside it.
fn stands_for(policy: &Path, is_named: bool, file: &Path) -> bool {
    policy == file || (is_named && policy.parent() == file.parent())
}

/// The open runs of an agent, which has this pin. `is_of_file` tells if those with another pin are
/// of the file of the policy, so that its hosts may adopt them.
fn open_runs(
    open: &BTreeMap<String, PinRuns>,
    agent: &AgentPolicy,
    pin: Option<&str>,
    is_of_file: &dyn Fn(&str) -> bool,
) -> OpenRuns {
    let of_agent = open.iter().filter(|(other, _)| agent_of(other) == agent.name);
    of_agent.fold(OpenRuns::default(), |mut runs, (other, count)| {
        runs.all += count.all();
        // An entry of a heartbeat is of no version.
        if has_digest(other) && Some(other.as_str()) != pin && count.tasks > 0 {
            runs.of_other_pins += count.tasks;
            if agent.upgrade == Upgrade::Adopt && is_of_file(other) {
                runs.to_adopt += count.tasks;
            }
        }
        runs
    })
}

/// The agents of open runs that a policy does not have. `is_of_other` tells if those with a pin are
/// of another file, which may have their agent.
fn gone(
    open: &BTreeMap<String, PinRuns>,
    policy: &Policy,
    is_of_other: &dyn Fn(&str) -> bool,
) -> Vec<GoneAgent> {
    let mut gone: BTreeMap<&str, u64> = BTreeMap::new();
    for (pin, count) in open {
        if !policy.agents.contains_key(agent_of(pin)) && !is_of_other(pin) {
            *gone.entry(agent_of(pin)).or_default() += count.all();
        }
    }
    let named = |(name, open_runs): (&str, u64)| GoneAgent { name: name.to_owned(), open_runs };
    gone.into_iter().map(named).collect()
}

/// The words for runs that this policy changes something for.
fn note(runs: OpenRuns) -> Option<String> {
    let (count, they) = match runs.of_other_pins {
        0 => return None,
        1 => ("1 open run was".to_owned(), "it".to_owned()),
        many => (format!("{many} open runs were"), "they".to_owned()),
    };
    let adopted = |who: String, count| match count {
        1 => format!("{who} is adopted when it goes on"),
        _ => format!("{who} are adopted when they go on"),
    };
    let bound = |who: String, count| match count {
        1 => format!("{who} goes on within the rules of both"),
        _ => format!("{who} go on within the rules of both"),
    };
    let then = match (runs.to_adopt, runs.of_other_pins - runs.to_adopt) {
        (0, all) => bound(they, all),
        (all, 0) => adopted(they, all),
        (some, others) => {
            let adopted = adopted(some.to_string(), some);
            format!("{adopted}, and {}", bound(others.to_string(), others))
        }
    };
    Some(format!("{count} accepted with another version of it; {then}"))
}

fn print(context: &Context, loader: &Loader, report: Report) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => {
            for agent in &report.gone {
                printer.line(format!("{} {}", with(NOTE, "!"), agent.text()));
            }
            if report.ok {
                let policy = loader.policy();
                printer.talk(format!(
                    "{} can be used: {}, {}, {}",
                    shown(&policy.path),
                    human::count(policy.agents.len() as u64, "agent"),
                    human::count(policy.tools.len() as u64, "tool"),
                    human::count(policy.models.len() as u64, "model")
                ));
            }
        }
        OutputFormat::Json => printer.json(&versioned(report)),
        OutputFormat::Ndjson => {
            report.agents.iter().for_each(|agent| printer.json_line(&versioned(agent)));
        }
        // Told while they were loaded.
        OutputFormat::Name => {}
    }
}
