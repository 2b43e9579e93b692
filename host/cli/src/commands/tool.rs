//! `taskrun tool ls` and `taskrun tool show`.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use taskrun::agents::ToolsError;
use taskrun_journal::tool::{ToolHints, ToolSpec};
use taskrun_policy::{AgentPolicy, ToolPolicy, toml_string};
use taskrun_runtime::{Inspection, LoadError, Loader, callers, check_functions};

use super::inspect::import_lines;
use crate::args::OutputFormat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, load_failure, tools_failure};
use crate::lookup::{agent_of, tool_of};
use crate::output::escape::{escaped_block, escaped_line};
use crate::output::paint::{BOLD, with};
use crate::output::{compact, human, pairs, table_with_free, versioned};
use crate::paths::shown;
use crate::shell;

#[derive(Serialize)]
struct Row {
    name: String,
    component: String,
    agents: Vec<String>,
}

#[derive(Serialize)]
struct List {
    tools: Vec<Row>,
}

#[derive(Serialize)]
struct ToolView<'a> {
    name: &'a str,
    component: String,
    digest: &'a str,
    imports: Vec<String>,
    functions: Vec<Function<'a>>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    hints: ToolHints,
    input_schema: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<Box<RawValue>>,
}

pub(super) fn ls(context: &Context) -> Outcome {
    let policy = context.policy()?;
    let row = |tool: &ToolPolicy| Row {
        name: tool.name.clone(),
        component: shown(&tool.component),
        agents: callers(&policy, &tool.name).map(|agent| agent.name.clone()).collect(),
    };
    let rows: Vec<Row> = policy.tools.values().map(row).collect();
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table if rows.is_empty() => {
            printer.talk(format!("{} names no tools", shown(&policy.path)));
        }
        OutputFormat::Table => {
            let cells =
                rows.into_iter().map(|row| vec![row.name, row.component, row.agents.join(" ")]);
            let headings = ["TOOL", "COMPONENT", "AGENTS"];
            printer.line(table_with_free(&headings, cells.collect(), printer.width(), &[1, 2]));
        }
        OutputFormat::Json => printer.json(&versioned(List { tools: rows })),
        OutputFormat::Ndjson => rows.iter().for_each(|row| printer.json_line(&versioned(row))),
        OutputFormat::Name => rows.iter().for_each(|row| printer.line(&row.name)),
    }
    Ok(Exit::Completed)
}

/// Looks at a component of the policy; nothing is compiled.
pub(super) async fn inspect(loader: &Loader, path: &Path, what: &str) -> Outcome<Inspection> {
    loader.inspect(path).await.map_err(|error| load_failure(&error, what, path))
}

pub(super) async fn show(context: &Context, name: &str, agent: Option<&str>) -> Outcome {
    let policy = context.policy()?;
    let tool = tool_of(&policy, name)?.clone();
    let agent = match agent {
        Some(agent) => agent_of(&policy, agent)?.clone(),
        None => callers(&policy, name).next().cloned().ok_or_else(|| {
            Failure::usage(
                "no-agent",
                format!("no agent lists the tool {name}, so nothing is granted to it"),
            )
            .hint(format!(
                "add {} to `tools` of an agent, or see what it asks for with `taskrun inspect {}`",
                toml_string(&format!("{name}/*")),
                shell::path(&tool.component, "FILE")
            ))
        })?,
    };
    let loader = context.looking_loader(policy)?;
    let inspection = inspect(&loader, &tool.component, &format!("tool {name}")).await?;
    let port = loader.tool(&agent, &tool).await;
    let port = port.map_err(|error| tool_failure(&error, &agent, &tool))?;
    let unusable = match check_functions(&agent, &tool, Arc::clone(&port)) {
        Err(error @ (ToolsError::Schema { .. } | ToolsError::OutputSchema { .. })) => Some(error),
        // The functions that there are tell how to correct the list.
        Err(ToolsError::UnknownFunction { .. } | ToolsError::Rule { .. }) | Ok(()) => None,
    };
    let shown = ToolView {
        name,
        component: shown(&tool.component),
        digest: &inspection.digest,
        imports: import_lines(&inspection),
        functions: port.specs().iter().map(function).collect(),
    };
    match context.printer.format() {
        OutputFormat::Table => {
            context.printer.line(text(&shown, inspection.size, &agent.name));
        }
        OutputFormat::Json => context.printer.json(&versioned(&shown)),
        OutputFormat::Ndjson => context.printer.json_line(&versioned(&shown)),
        OutputFormat::Name => shown.functions.iter().for_each(|function| {
            context.printer.line(format!("{name}/{}", escaped_line(function.name)));
        }),
    }
    unusable.map_or(Ok(Exit::Completed), |error| Err(functions_failure(&error, &agent.name)))
}

/// Functions of a tool that an agent cannot use as it lists them.
pub(super) fn functions_failure(error: &ToolsError, agent: &str) -> Box<Failure> {
    tools_failure(error, agent, format!("the tools of agent {agent} do not fit")).because(error)
}

/// A tool that does not load under the grants of an agent.
pub(super) fn tool_failure(
    error: &LoadError,
    agent: &AgentPolicy,
    tool: &ToolPolicy,
) -> Box<Failure> {
    let what = format!("tool {} of agent {}", tool.name, agent.name);
    load_failure(error, &what, &tool.component)
}

fn function(spec: &ToolSpec) -> Function<'_> {
    Function {
        name: &spec.name,
        title: spec.title.as_deref(),
        description: &spec.description,
        hints: spec.hints,
        input_schema: compact(&spec.input_schema),
        output_schema: spec.output_schema.as_deref().and_then(compact),
    }
}

fn text(shown: &ToolView<'_>, size: u64, agent: &str) -> String {
    let component = format!("{} ({}, {})", shown.component, human::bytes(size), shown.digest);
    let mut text = pairs(&[
        ("tool", shown.name.to_owned()),
        ("component", component),
        ("imports", shown.imports.join("\n")),
        ("loaded for", format!("agent {agent}")),
    ]);
    for function in &shown.functions {
        let name = format!("{}/{}", shown.name, escaped_line(function.name));
        let title =
            function.title.map_or_else(|| first_sentence(function.description), str::to_owned);
        text.push_str(&format!(
            "\n\n{}  {}{}",
            with(BOLD, &name),
            escaped_line(&title),
            hints(function.hints)
        ));
        for line in escaped_block(function.description).lines() {
            text.push_str(&format!("\n  {line}"));
        }
        if let Some(schema) = &function.input_schema {
            text.push_str(&format!("\n  arguments: {}", escaped_line(&arguments(schema))));
        }
    }
    text
}

fn hints(hints: ToolHints) -> String {
    let all = [
        (hints.read_only, "read-only"),
        (hints.destructive, "destructive"),
        (hints.idempotent, "idempotent"),
        (hints.terminal, "ends the run"),
    ];
    let words: Vec<&str> = all.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
}

/// The arguments of a schema in a line: `path (string), line_count (integer, optional)`.
fn arguments(schema: &RawValue) -> String {
    let parsed: serde_json::Value = serde_json::from_str(schema.get()).unwrap_or_default();
    let Some(properties) = parsed.get("properties").and_then(|p| p.as_object()) else {
        return schema.get().to_owned();
    };
    let required = |name: &str| {
        let list = parsed.get("required").and_then(|required| required.as_array());
        list.is_some_and(|list| list.iter().any(|one| one == name))
    };
    let one = |(name, property): (&String, &serde_json::Value)| {
        let kind = property.get("type").map_or("any".to_owned(), |kind| match kind.as_str() {
            Some(kind) => kind.to_owned(),
            None => kind.to_string(),
        });
        let optional = if required(name) { "" } else { ", optional" };
        format!("{name} ({kind}{optional})")
    };
    let all: Vec<String> = properties.iter().map(one).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// The beginning of a description, for a line.
pub(super) fn first_sentence(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.split_once(". ").map_or(line, |(first, _)| first).trim_end_matches('.').to_owned()
}
