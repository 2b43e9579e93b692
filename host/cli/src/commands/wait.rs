//! `taskrun wait`.

use std::time::Duration;

use serde::Serialize;
use taskrun::controller::{Controller, Waited};
use taskrun::error::ControllerError;
use taskrun::ids::RunId;
use taskrun::list::Scope;
use taskrun::run::{Run, RunView, WaitMode};
use taskrun::status::Status;

use crate::args::{OutputFormat, Target, WaitArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{ATTEND_EVERY, Care, needs_somebody, run_blocked, wait_timed_out};
use crate::output::escape::excerpt;
use crate::output::{run_object, status_text, versioned};
use crate::resolve::resolve;
use crate::signals::Interrupts;

/// Characters of a result that are shown beside its run.
const SUMMARY_CHARS_MAX: usize = 80;

#[derive(Serialize)]
struct Awaited {
    timed_out: bool,
    #[serde(flatten)]
    run: RunView,
}

#[derive(Serialize)]
struct List {
    runs: Vec<Awaited>,
}

/// How a wait came to its end.
enum End {
    /// What was waited for is there, or the time is up.
    Waited(Vec<Waited>),
    /// One of them, or one that it waits for, waits for somebody outside.
    Blocked(Box<Run>),
    /// Ctrl-C.
    Left,
}

pub(super) async fn wait(context: &Context, args: &WaitArgs) -> Outcome {
    let (books, controller) = context.looking().await?;
    let scope = context.scope();
    let mut ids: Vec<RunId> = Vec::new();
    for text in &args.runs {
        let run = resolve(&controller, &scope, text).await?;
        if !ids.contains(run.id()) {
            ids.push(run.id().clone());
        }
    }
    let mut care = Care::at_hand(context, &controller, &books);
    let end = wait_for(args, &controller, &scope, &mut care, &ids).await?;
    let (standing, blocked) = match end {
        End::Waited(standing) => (standing, None),
        End::Blocked(run) => (look(&controller, &scope, args.target, &ids).await?, Some(run)),
        End::Left => return Ok(Exit::Interrupted),
    };
    print(context, &standing);
    match blocked {
        Some(run) => Err(run_blocked(&run)),
        None => outcome(context, args, &standing),
    }
}

async fn wait_for(
    args: &WaitArgs,
    controller: &Controller,
    scope: &Scope,
    care: &mut Care,
    ids: &[RunId],
) -> Outcome<End> {
    let waiting = waited(args, controller, scope, ids);
    tokio::pin!(waiting);
    let mut interrupts = Interrupts::new();
    let mut attend = tokio::time::interval(ATTEND_EVERY);
    attend.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = interrupts.pressed() => return Ok(End::Left),
            waited = &mut waiting => return Ok(End::Waited(waited?)),
            _ = attend.tick() => {
                let mut blocked = Vec::new();
                for id in ids {
                    blocked.extend(care.attend(id).await?);
                }
                // While another one of them may still end, there is something to wait for.
                let enough = if args.any { ids.len() } else { 1 };
                if blocked.len() >= enough {
                    return Ok(End::Blocked(Box::new(blocked.remove(0))));
                }
            }
        }
    }
}

/// How the runs stand when enough of them are where they were waited for to be.
async fn waited(
    args: &WaitArgs,
    controller: &Controller,
    scope: &Scope,
    ids: &[RunId],
) -> Result<Vec<Waited>, ControllerError> {
    let names: Vec<&str> = ids.iter().map(RunId::as_str).collect();
    let timeout = args.timeout.unwrap_or(Duration::MAX);
    match args.target {
        Target::Terminal => {
            let mode = if args.any { WaitMode::Any } else { WaitMode::All };
            controller.wait_all(scope, &names, mode, Some(timeout)).await
        }
        Target::Status(status) => {
            let reached = |run: &Run| run.status() == status;
            let waits = names
                .iter()
                .map(|id| Box::pin(controller.wait_for(scope, id, Some(timeout), reached)));
            if args.any {
                futures::future::select_all(waits).await.0?;
                look(controller, scope, args.target, ids).await
            } else {
                futures::future::try_join_all(waits).await
            }
        }
    }
}

/// How the runs stand, in the order asked for.
async fn look(
    controller: &Controller,
    scope: &Scope,
    target: Target,
    ids: &[RunId],
) -> Result<Vec<Waited>, ControllerError> {
    let mut standing = Vec::new();
    for id in ids {
        let run = controller.get(scope, id.as_str()).await?;
        let timed_out = !target.is_reached(run.status());
        standing.push(Waited { run, timed_out });
    }
    Ok(standing)
}

fn print(context: &Context, standing: &[Waited]) {
    let printer = &context.printer;
    let there = standing.iter().filter(|waited| !waited.timed_out).map(|waited| &waited.run);
    match printer.format() {
        OutputFormat::Table => there.for_each(|run| {
            let summary = RunView::from(run).summary.unwrap_or_default();
            let line = format!(
                "{}  {}  {}",
                run.id(),
                status_text(run),
                excerpt(&summary, SUMMARY_CHARS_MAX)
            );
            printer.line(line.trim_end());
        }),
        OutputFormat::Name => there.for_each(|run| printer.line(run.id())),
        OutputFormat::Ndjson => there.for_each(|run| printer.json_line(&run_object(run))),
        OutputFormat::Json => {
            let awaited =
                |one: &Waited| Awaited { timed_out: one.timed_out, run: (&one.run).into() };
            printer.json(&versioned(List { runs: standing.iter().map(awaited).collect() }));
        }
    }
}

fn outcome(context: &Context, args: &WaitArgs, standing: &[Waited]) -> Outcome {
    let there = |waited: &&Waited| !waited.timed_out;
    let failed = if args.any {
        // The first that ended is the one that was waited for.
        let since = |waited: &&Waited| waited.run.state.updated_at;
        match standing.iter().filter(there).min_by_key(since) {
            Some(first) => return failure_of(args, &first.run).map_or(Ok(Exit::Completed), Err),
            None => standing.iter().find_map(|waited| too_short(context, &waited.run)),
        }
    } else {
        let late = standing.iter().filter(|waited| waited.timed_out);
        late.map(|waited| &waited.run)
            .find_map(|run| too_short(context, run))
            .or_else(|| standing.iter().find_map(|waited| failure_of(args, &waited.run)))
    };
    let none_is_there = || standing.iter().find_map(|waited| failure_of(args, &waited.run));
    failed.or_else(none_is_there).map_or(Ok(Exit::Completed), Err)
}

/// What is said of a run that is not where it was waited for to be, and goes on.
fn too_short(context: &Context, run: &Run) -> Option<Box<Failure>> {
    if run.status().is_terminal() {
        return None;
    }
    let is_asking = needs_somebody(run, context.now());
    Some(if is_asking { run_blocked(run) } else { wait_timed_out(run.id()) })
}

/// A run that is where it was waited for to be has not failed the wait, unless that is where it
/// needs somebody.
fn failure_of(args: &WaitArgs, run: &Run) -> Option<Box<Failure>> {
    match args.target {
        Target::Status(Status::Blocked) if run.status() == Status::Blocked => {
            Some(run_blocked(run))
        }
        Target::Status(status) if run.status() == status => None,
        Target::Status(_) | Target::Terminal => Failure::of_run(run),
    }
}
