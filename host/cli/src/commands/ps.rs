//! `taskrun ps`.

use std::collections::{BTreeSet, HashSet};

use taskrun::controller::Controller;
use taskrun_journal::hold::Hold;
use taskrun_journal::list::{Cursor, ListFilter, PAGE_DEFAULT, PAGE_MAX};
use taskrun_journal::run::{Run, RunView};
use taskrun_runtime::{agent_loads, awaited_loads};

use super::labels::labels;
use crate::args::{OutputFormat, PsArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{Attendance, Lack, due_later};
use crate::output::{Beats, PlacedRuns, RunList, load_text, run_object, versioned};
use crate::resolve::resolve;

/// Most open runs that are shown at once. All are in memory, where each takes a few kilobytes and
/// what its task has.
const OPEN_RUNS_MAX: usize = 10_000;

/// Runs to be shown, and where the next page begins.
struct Listing {
    runs: Vec<Run>,
    next: Option<Cursor>,
}

pub(crate) async fn ps(context: &Context, args: &PsArgs) -> Outcome {
    let printer = &context.printer;
    if !args.columns.is_empty() && printer.format() != OutputFormat::Table {
        return Err(Failure::usage("usage", "--columns is for the table")
            .hint("objects have all fields: leave out --columns, or write -o table"));
    }
    let mut filter = filter(context, args)?;
    let (storage, controller) = context.looking().await?;
    if let Some(parent) = &args.parent {
        let parent = resolve(&context.client(&controller), parent).await?;
        filter.parent_run_id = Some(parent.id().clone());
    }
    let listing = if is_plain(args) {
        overview(context, &controller).await?
    } else {
        page(context, &controller, args, &filter).await?
    };
    let attendance = match listing.runs.iter().any(is_wanted) {
        true => Some(Attendance::look(context, &storage).await?),
        false => None,
    };
    match printer.format() {
        OutputFormat::Table if listing.runs.is_empty() && is_filtered(context, args) => {
            printer.advise("no runs fit; `taskrun ps --all` without a filter lists every run");
        }
        OutputFormat::Table if listing.runs.is_empty() => printer.advise(
            "no runs; start one with `taskrun run AGENT TASK`, and see the agents with `taskrun agent ls`",
        ),
        OutputFormat::Table => {
            let (runs, now, width) = (&listing.runs, context.now(), printer.width());
            let beats = attendance.as_ref().map_or_else(Beats::new, |all| all.beats(runs, now));
            let placed =
                if args.tree { PlacedRuns::tree(runs) } else { PlacedRuns::listed(runs) };
            printer.line(placed.table(&args.columns, (&beats, now), width));
        }
        OutputFormat::Json => {
            let runs = listing.runs.iter().map(RunView::from).collect();
            let next_cursor = listing.next.as_ref().map(Cursor::to_string);
            printer.json(&versioned(RunList { runs, next_cursor }));
        }
        OutputFormat::Ndjson => {
            listing.runs.iter().for_each(|run| printer.json_line(&run_object(run)));
        }
        OutputFormat::Name => listing.runs.iter().for_each(|run| printer.line(run.id())),
    }
    // In JSON it is part of the data.
    if printer.format() != OutputFormat::Json
        && let Some(next) = &listing.next
    {
        let open =
            if is_plain(args) { format!("--status {} ", open_words()) } else { String::new() };
        printer.talk(format!("there are more: add {open}--cursor {next}"));
    }
    match attendance {
        Some(attendance) => tell_unattended(context, &attendance, &listing.runs),
        None => Ok(Exit::Completed),
    }
}

/// True if a run waits for a host, at once or at a time, or for a heartbeat.
fn is_wanted(run: &Run) -> bool {
    matches!(run.state.hold, Hold::Wanted { .. } | Hold::Beat)
}

fn is_plain(args: &PsArgs) -> bool {
    !args.all && args.limit.is_none() && !has_filter(args)
}

fn has_filter(args: &PsArgs) -> bool {
    let PsArgs {
        all: _,
        status,
        stop_reason,
        agent,
        labels,
        parent,
        app,
        since,
        limit: _,
        cursor,
        tree: _,
        columns: _,
    } = args;
    !status.is_empty()
        || !stop_reason.is_empty()
        || agent.is_some()
        || !labels.is_empty()
        || parent.is_some()
        || app.is_some()
        || since.is_some()
        || cursor.is_some()
}

/// True if there may be runs of the tenant that are left out.
fn is_filtered(context: &Context, args: &PsArgs) -> bool {
    has_filter(args) || context.globals.owner.is_some() || context.globals.session.is_some()
}

/// The runs that have not ended, and those that changed last.
async fn overview(context: &Context, controller: &Controller) -> Outcome<Listing> {
    let client = context.client(controller);
    let (open, mut runs, mut next) = (ListFilter::open(), Vec::new(), None);
    loop {
        let page = client.list(&open, next.as_ref(), PAGE_MAX).await?;
        runs.extend(page.runs);
        next = page.next;
        if next.is_none() || runs.len() >= OPEN_RUNS_MAX {
            break;
        }
    }
    // One that changed meanwhile is among these, as it is by now.
    let recent = client.list(&ListFilter::default(), None, PAGE_DEFAULT).await?.runs;
    let known: HashSet<_> = recent.iter().map(|run| run.id().clone()).collect();
    runs.retain(|run| !known.contains(run.id()));
    runs.extend(recent);
    runs.sort_by(|one, other| {
        (other.state.updated_at, other.id()).cmp(&(one.state.updated_at, one.id()))
    });
    Ok(Listing { runs, next })
}

/// The statuses of runs that have not ended, as an argument.
fn open_words() -> String {
    let words: Vec<_> = ListFilter::open().status.iter().map(|status| status.as_str()).collect();
    words.join(",")
}

fn filter(context: &Context, args: &PsArgs) -> Outcome<ListFilter> {
    Ok(ListFilter {
        status: args.status.iter().flat_map(|word| word.0.clone()).collect(),
        stop_reason: args.stop_reason.iter().flat_map(|word| word.0.clone()).collect(),
        agent_name: args.agent.clone(),
        name: None,
        parent_run_id: None,
        root_run_id: None,
        labels: labels(&args.labels)?,
        since: args.since.map(|since| since.before(context.now())),
    })
}

async fn page(
    context: &Context,
    controller: &Controller,
    args: &PsArgs,
    filter: &ListFilter,
) -> Outcome<Listing> {
    let default = if args.all { PAGE_MAX } else { PAGE_DEFAULT };
    let limit = args.limit.map_or(default, usize::from);
    let mut principal = context.principal();
    principal.scope.parent_app_name = args.app.as_deref().map(|app| app.trim().to_owned());
    let client = controller.at(principal);
    let page = client.list(filter, args.cursor.as_ref(), limit).await?;
    Ok(Listing { runs: page.runs, next: page.next })
}

/// Says so if a run waits for its agent to be loaded, or no host goes on with it: of all that wait
/// for the same, that of the first. One that is due, as it asks nobody any more, goes before those
/// whose time comes later.
fn tell_unattended(context: &Context, attendance: &Attendance, runs: &[Run]) -> Outcome {
    let (printer, now) = (&context.printer, context.now());
    let loads = agent_loads(&context.data_dir()?, attendance.hosts());
    for load in awaited_loads(&loads, runs) {
        printer.talk(load_text(load, now, printer));
    }
    let is_loaded = |run: &Run| awaited_loads(&loads, std::slice::from_ref(run)).next().is_some();
    let alone = runs.iter().filter(|run| is_wanted(run) && !is_loaded(run));
    let mut lacks: Vec<(&Run, Lack)> =
        alone.filter_map(|run| Some((run, attendance.lack(run, now)?))).collect();
    lacks.sort_by_key(|(run, _)| due_later(run, now).is_some());
    let mut said: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (run, lack) in &lacks {
        let agent = run.spec.agent_name.as_str();
        let about = match lack {
            Lack::Agent(gone) => (gone.as_str(), "policy"),
            Lack::Heartbeat => (agent, "heartbeat"),
            Lack::Load(_) => (agent, "load"),
            Lack::Host(None) if run.state.hold == Hold::Beat => (agent, "entry"),
            Lack::Host(None) => ("", run.status().as_str()),
            Lack::Host(Some(_)) => continue,
        };
        if said.insert(about) {
            printer.talk(attendance.text(run, lack, now, printer));
        }
    }
    let later = lacks.iter().filter_map(|(run, lack)| match lack {
        Lack::Host(Some(due)) => Some((*due, run.id(), (run, lack))),
        Lack::Host(None) | Lack::Agent(_) | Lack::Heartbeat | Lack::Load(_) => None,
    });
    if let Some((_, _, (run, lack))) = later.min_by_key(|(due, id, _)| (*due, *id)) {
        printer.talk(attendance.text(run, lack, now, printer));
    }
    Ok(Exit::Completed)
}
