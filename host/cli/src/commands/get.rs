//! `taskrun get`.

use serde::Serialize;
use taskrun_journal::message::Labels;
use taskrun_journal::run::{Run, RunView};
use taskrun_runtime::{agent_loads, awaited_loads};

use super::agent_change::AgentChange;
use crate::args::{GetArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{due_later, due_without_host};
use crate::output::{Printer, load_text, run_details, snapshot_details, versioned};
use crate::resolve::resolve;

#[derive(Serialize)]
struct Shown<'a, T> {
    #[serde(flatten)]
    run: T,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    runtime_state: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_change: Option<&'a AgentChange>,
}

/// Prints an artifact: a text as one, and an image as it is, though not at a terminal.
fn artifact(printer: &Printer, bytes: &[u8]) -> Outcome {
    match std::str::from_utf8(bytes) {
        Ok(text) => printer.guest_text(text),
        Err(_) if !printer.is_terminal() => printer.file(bytes),
        Err(_) => {
            return Err(Failure::usage("usage", "it is an image, which a terminal does not show")
                .hint("write it into a file: add `> FILE`"));
        }
    }
    Ok(Exit::Completed)
}

pub(super) async fn get(context: &Context, args: &GetArgs) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let run = resolve(&context.client(&controller), &args.run).await?;
    let printer = &context.printer;
    if args.result {
        if let Some(result) = context.client(&controller).result(run.id().as_str()).await? {
            printer.guest_text(&result);
        }
        return Ok(Exit::Completed);
    }
    if let Some(hash) = &args.artifact {
        let bytes = context.client(&controller).artifact(run.id().as_str(), hash).await?;
        return artifact(printer, &bytes);
    }
    let children = controller.children(&run).await?;
    let change = AgentChange::of(context, &storage, &run).await;
    let agent_change = change.as_ref();
    let runtime_state = run.spec.given_state();
    if args.calls {
        let snapshot = context.client(&controller).snapshot(run.id().as_str()).await?;
        if printer.format() == OutputFormat::Table {
            printer.line(run_details(&run, children, context.now()));
            printer.line(snapshot_details(&snapshot));
        } else {
            print(printer, &run, &Shown { run: snapshot, runtime_state, agent_change });
        }
    } else if printer.format() == OutputFormat::Table {
        printer.line(run_details(&run, children, context.now()));
    } else {
        let shown = RunView::with_children(&run, children);
        print(printer, &run, &Shown { run: shown, runtime_state, agent_change });
    }
    let hosts = storage.hosts.hosts().await?;
    let loads = agent_loads(&context.data_dir()?, &hosts);
    if let Some(change) = &change {
        printer.advise(&change.text(&run));
    }
    for load in awaited_loads(&loads, std::slice::from_ref(&run)) {
        printer.talk(load_text(load, context.now(), printer));
    }
    let now = context.now();
    let is_executed = hosts.iter().any(|host| host.executes(&run.spec));
    if let Some(due) = due_later(&run, now).filter(|_| !is_executed) {
        printer.advise(&due_without_host(run.id(), due, now));
    }
    Ok(Exit::Completed)
}

/// Prints an object for programs.
fn print(printer: &Printer, run: &Run, object: &impl Serialize) {
    match printer.format() {
        OutputFormat::Json => printer.json(&versioned(object)),
        OutputFormat::Ndjson => printer.json_line(&versioned(object)),
        OutputFormat::Name | OutputFormat::Table => printer.line(run.id()),
    }
}
