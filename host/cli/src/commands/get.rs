//! `taskrun get`.

use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;
use taskrun_journal::list::{PAGE_MAX, Scope, TreePage, TreeQuery};
use taskrun_journal::message::{Labels, Usage};
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_journal::store::Store;
use taskrun_runtime::{agent_loads, awaited_loads};

use super::agent_change::AgentChange;
use crate::args::{GetArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{Attendance, Lack};
use crate::output::{
    Printer, Surroundings, UsageBeneath, load_text, run_details, snapshot_details, versioned,
};
use crate::resolve::resolve;
use crate::setback::Setback;

/// Most runs of a tree that are read for what is spent beneath a run: more than one has, unless
/// autonomous runs are in it. What was found among these is shown as the least that was spent.
const TREE_RUNS_MAX: usize = 5_000;
/// The time in which a host begins that was started for a run.
const BEGINS_WITHIN: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Shown<'a, T> {
    #[serde(flatten)]
    run: T,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    runtime_state: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_change: Option<&'a AgentChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    setback: Option<&'a Setback>,
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
    let attendance = match run.status().is_terminal() {
        true => Attendance::default(),
        false => Attendance::look(context, &storage).await?,
    };
    let change = AgentChange::of(context, (&storage, &attendance), &run).await;
    // The record is shown also where the journal cannot be read.
    let setback = Setback::of(&context.client(&controller), &run).await.unwrap_or_default();
    let (agent_change, setback) = (change.as_ref(), setback.as_ref());
    let runtime_state = run.spec.given_state();
    if printer.format() == OutputFormat::Table {
        let beneath = match children.started {
            0 => UsageBeneath::default(),
            _ => beneath(&*storage.store, &context.principal().scope, &run, TREE_RUNS_MAX).await,
        };
        let beat = attendance.beat(&run, context.now());
        let details = setback.map(|one| one.details(context.now())).unwrap_or_default();
        let around = Surroundings { children, beneath, beat, setback: &details };
        printer.line(run_details(&run, &around, context.now()));
    }
    if args.calls {
        let snapshot = context.client(&controller).snapshot(run.id().as_str()).await?;
        if printer.format() == OutputFormat::Table {
            printer.line(snapshot_details(&snapshot));
        } else {
            print(printer, &run, &Shown { run: snapshot, runtime_state, agent_change, setback });
        }
    } else if printer.format() != OutputFormat::Table {
        let shown = RunView::with_children(&run, children);
        print(printer, &run, &Shown { run: shown, runtime_state, agent_change, setback });
    }
    if let Some(advice) = setback.and_then(Setback::advice) {
        printer.advise(&advice);
    }
    if let Some(change) = &change {
        printer.advise(&change.text(&run));
    }
    let is_gone = change.is_some_and(|change| change.is_gone());
    tell_lack(context, &attendance, &run, is_gone)
}

/// The consumption beneath a run, as `taskrun tree` counts it. Where more runs than so many would
/// have to be read for it, or one cannot be, it is what was found before: the rest is shown all the
/// same.
async fn beneath(store: &dyn Store, scope: &Scope, run: &Run, most: usize) -> UsageBeneath {
    let query = TreeQuery::of(&run.spec);
    let (mut usage, mut inside) = (Usage::default(), HashSet::from([run.id().clone()]));
    let (mut read, mut after) = (0, None);
    while read < most {
        let page = store.tree(&query, after, PAGE_MAX.min(most - read)).await;
        let Ok(TreePage { runs, next }) = page else { break };
        read += runs.len();
        // A run is accepted before those beneath it.
        for one in runs {
            if one.spec.parent_run_id.as_ref().is_some_and(|parent| inside.contains(parent)) {
                inside.insert(one.id().clone());
                if scope.admits(&one) {
                    usage = usage.plus(one.state.progress.usage());
                }
            }
        }
        if next.is_none() {
            return UsageBeneath { usage, is_least: false };
        }
        after = next;
    }
    UsageBeneath { usage, is_least: true }
}

/// Says so if no host goes on with the run, and why; that the policy does not have its agent may
/// have been said.
fn tell_lack(context: &Context, attendance: &Attendance, run: &Run, is_gone: bool) -> Outcome {
    let (printer, now) = (&context.printer, context.now());
    let loads = agent_loads(&context.data_dir()?, attendance.hosts());
    let mut awaited = awaited_loads(&loads, std::slice::from_ref(run)).peekable();
    let is_loaded = awaited.peek().is_some();
    awaited.for_each(|load| printer.talk(load_text(load, now, printer)));
    // A host may be beginning for one that was just asked for.
    let is_young = now.since(run.spec.created_at) < BEGINS_WITHIN;
    let is_new = run.status() == Status::Queued && run.spec.class.is_task() && is_young;
    let lack = attendance.lack(run, now).filter(|lack| match lack {
        Lack::Agent(agent) => !is_gone || *agent != run.spec.agent_name,
        Lack::Heartbeat | Lack::Load(_) => true,
        Lack::Host(Some(_)) => !is_loaded,
        Lack::Host(None) => !is_loaded && !is_new,
    });
    if let Some(lack) = lack {
        printer.talk(attendance.text(run, &lack, now, printer));
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

#[cfg(test)]
mod tests {
    use taskrun_fixtures::{new_run, run_id, spec};
    use taskrun_journal::spec::RunSpec;
    use taskrun_journal::store::CreateOutcome;
    use taskrun_store::MemoryStore;

    use super::*;

    /// Keeps a run beneath another one, which has consumed so many tokens.
    async fn keep(store: &MemoryStore, id: &str, parent: Option<&str>, tokens: u64) -> Run {
        let root_run_id = run_id(if parent.is_some() { "root" } else { id });
        let parent_run_id = parent.map(run_id);
        let mut new = new_run(RunSpec { parent_run_id, root_run_id, ..spec(id) });
        new.run.state.progress.total_tokens = tokens;
        let run = new.run.clone();
        let created = store.create(new).await.expect("creates");
        assert!(matches!(created, CreateOutcome::New), "{created:?}");
        run
    }

    #[tokio::test]
    async fn a_sum_over_a_part_of_a_tree_is_the_least_that_was_spent() {
        let store = MemoryStore::new();
        let root = keep(&store, "root", None, 1).await;
        let one = keep(&store, "one", Some("root"), 10).await;
        keep(&store, "two", Some("root"), 100).await;
        keep(&store, "three", Some("one"), 1_000).await;
        let scope = Scope::tenant(&root.spec.tenant);
        for (run, most, spent) in [
            (&root, 4, (1_110, false)),
            (&root, 5_000, (1_110, false)),
            (&root, 3, (110, true)),
            (&one, 4, (1_000, false)),
            (&one, 3, (0, true)),
        ] {
            let found = beneath(&store, &scope, run, most).await;
            assert_eq!((found.usage.total_tokens, found.is_least), spent, "{most}");
        }
    }
}
