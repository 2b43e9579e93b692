//! `taskrun agent ls` and `taskrun agent check`.

use serde::Serialize;
use taskrun::agents::Agent;
use taskrun_policy::AGENTS;
use taskrun_policy::AgentPolicy;
use taskrun_runtime::Loader;

use super::agent_notes::{idle_tags, unpriced};
use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, agent_failure};
use crate::lookup::agent_of;
use crate::output::paint::{BAD, GOOD, with};
use crate::output::{human, table_with_free, versioned};
use crate::paths::shown;

#[derive(Serialize)]
struct Row {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    component: String,
    tools: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
}

#[derive(Serialize)]
struct List {
    agents: Vec<Row>,
}

/// The answer to the question if an agent or a tool loads, as the JSON output shows it.
#[derive(Serialize)]
pub(super) struct LoadCheck {
    pub(super) name: String,
    pub(super) ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<serde_json::Value>,
    /// Rules of an agent that are about nothing, though it loads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

#[derive(Serialize)]
struct AgentCheckList {
    agents: Vec<LoadCheck>,
}

fn row(agent: &AgentPolicy) -> Row {
    Row {
        name: agent.name.clone(),
        description: agent.description.clone(),
        component: shown(&agent.component),
        tools: tools(agent),
        model: agent.model.clone(),
    }
}

/// The tools as the policy says them, agents among them.
fn tools(agent: &AgentPolicy) -> Vec<String> {
    let callees = agent.callees.iter().map(|name| format!("{AGENTS}/{name}"));
    let host_tools = agent.host_tools.iter().map(|function| function.qualified());
    agent.tools.iter().map(ToString::to_string).chain(callees).chain(host_tools).collect()
}

pub(super) fn ls(context: &Context) -> Outcome {
    let policy = context.policy()?;
    let rows: Vec<Row> = policy.agents.values().map(row).collect();
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table if rows.is_empty() => {
            printer.talk(format!("{} names no agents", shown(&policy.path)));
        }
        OutputFormat::Table => {
            let cells = rows.into_iter().map(|row| {
                let model = row.model.unwrap_or_default();
                vec![row.name, row.tools.join(" "), model, row.description.unwrap_or_default()]
            });
            let headings = ["AGENT", "TOOLS", "MODEL", "DESCRIPTION"];
            printer.line(table_with_free(&headings, cells.collect(), printer.width(), &[1, 2, 3]));
        }
        OutputFormat::Json => printer.json(&versioned(List { agents: rows })),
        OutputFormat::Ndjson => rows.iter().for_each(|row| printer.json_line(&versioned(row))),
        OutputFormat::Name => rows.iter().for_each(|row| printer.line(&row.name)),
    }
    Ok(Exit::Completed)
}

pub(super) async fn check(context: &Context, names: &[String]) -> Outcome {
    let policy = context.policy()?;
    let loader = context.looking_loader(policy)?;
    let all = || loader.policy().agents.keys().cloned().collect();
    let names: Vec<String> = if names.is_empty() { all() } else { names.to_vec() };
    let mut checked = Vec::new();
    let mut first: Option<Box<Failure>> = None;
    for name in &names {
        let (check, failure) = check_one(context, &loader, name, None).await;
        checked.push(check);
        first = first.or(failure);
    }
    let (bad, all) = (checked.iter().filter(|one| !one.ok).count(), checked.len());
    match context.printer.format() {
        OutputFormat::Json => context.printer.json(&versioned(AgentCheckList { agents: checked })),
        OutputFormat::Ndjson => {
            checked.iter().for_each(|one| context.printer.json_line(&versioned(one)))
        }
        OutputFormat::Table | OutputFormat::Name => {}
    }
    let again = "check again with `taskrun agent check`";
    first.map_or(Ok(Exit::Completed), |first| Err(summary(&first, (bad, all), again)))
}

/// Loads an agent and tells whether it does, with a note where it does.
pub(super) async fn check_one(
    context: &Context,
    loader: &Loader,
    name: &str,
    note: Option<&str>,
) -> (LoadCheck, Option<Box<Failure>>) {
    let (notes, failure) = match looked_at(loader, name).await {
        Ok(notes) => (notes, None),
        Err(failure) => (Vec::new(), Some(failure)),
    };
    let all: Vec<&str> = note.into_iter().chain(notes.iter().map(String::as_str)).collect();
    let all = all.join("; ");
    tell(context, name, failure.as_deref(), Some(all.as_str()).filter(|all| !all.is_empty()));
    (LoadCheck { notes, ..LoadCheck::of(name, failure.as_deref()) }, failure)
}

/// Loads an agent, to see whether it does and whether runs of it are accepted; gives notes about it.
async fn looked_at(loader: &Loader, name: &str) -> Outcome<Vec<String>> {
    let agent = agent_of(loader.policy(), name)?;
    let loaded = load(loader, name).await?;
    match unpriced(loader.policy(), agent, &loaded) {
        None => Ok(idle_tags(agent, &loaded)),
        Some(failure) => Err(failure),
    }
}

impl LoadCheck {
    /// That of an agent or a tool, which does not load if there is a failure.
    pub(super) fn of(name: &str, failure: Option<&Failure>) -> Self {
        let json = failure.and_then(|failure| serde_json::from_str(&failure.json()).ok());
        let error = json.and_then(|line: serde_json::Value| line.get("error").cloned());
        Self { name: name.to_owned(), ok: failure.is_none(), error, notes: Vec::new() }
    }
}

/// Loads an agent, to see whether it does.
pub(super) async fn load(loader: &Loader, name: &str) -> Outcome<Agent> {
    let agent = agent_of(loader.policy(), name)?;
    loader.agent(agent).await.map_err(|error| agent_failure(&error))
}

/// The failure that follows the agents themselves.
pub(super) fn summary(first: &Failure, (bad, all): (usize, usize), again: &str) -> Box<Failure> {
    let (all, verb) = (human::count(all as u64, "agent"), if bad == 1 { "does" } else { "do" });
    let mut failure = Failure::new(first.exit, "agents", format!("{bad} of {all} {verb} not load"));
    failure.code.clone_from(&first.code);
    failure.hint(format!("correct what is shown above, and {again}"))
}

/// Tells whether an agent or a tool loads.
pub(super) fn tell(context: &Context, name: &str, error: Option<&Failure>, note: Option<&str>) {
    match (context.printer.format(), error) {
        (OutputFormat::Table, None) => {
            let note = note.map_or_else(String::new, |note| format!(": {note}"));
            context.printer.line(format!("{} {name}{note}", with(GOOD, "✓")));
        }
        (OutputFormat::Table, Some(failure)) => {
            let text = context.printer.complete(Box::new(failure.clone())).text();
            context.printer.line(format!("{} {name}\n{text}", with(BAD, "✗")));
        }
        (OutputFormat::Name, None) => context.printer.line(name),
        (OutputFormat::Name | OutputFormat::Json | OutputFormat::Ndjson, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_counts_agents_as_people_do() {
        let first = Failure::usage("agents", "it has no component");
        let told = |counts: (usize, usize)| summary(&first, counts, "check again").message;
        assert_eq!(told((1, 1)), "1 of 1 agent does not load");
        assert_eq!(told((1, 3)), "1 of 3 agents does not load");
        assert_eq!(told((2, 3)), "2 of 3 agents do not load");
    }
}
