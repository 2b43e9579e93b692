//! `taskrun wait`.

use serde::Serialize;
use taskrun::controller::Controller;
use taskrun::list::Scope;
use taskrun::run::{Run, RunView};
use tokio::task::JoinSet;

use crate::args::{OutputFormat, Target, WaitArgs};
use crate::context::{Books, Context};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{CtrlC, Follow, Followed, run_blocked, wait_timed_out};
use crate::host::Attendant;
use crate::output::escape::excerpt;
use crate::output::{run_object, status_text, versioned};
use crate::resolve::resolve;

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

pub(super) async fn wait(context: &Context, args: &WaitArgs) -> Outcome {
    let (books, controller) = context.looking().await?;
    let scope = context.scope();
    let mut runs = Vec::new();
    for text in &args.runs {
        let run = resolve(&controller, &scope, text).await?;
        if !runs.iter().any(|known: &Run| known.id() == run.id()) {
            runs.push(run);
        }
    }
    let ends = wait_for(context, args, (&controller, &books), &runs).await?;
    // As they stand, in the order asked for.
    let mut standing = Vec::new();
    for run in &runs {
        standing.push(controller.get(&scope, run.id().as_str()).await?);
    }
    print_list(context, args.target, &standing);
    outcome(args, ends, &standing)
}

/// Waits until enough of the runs have ended; gives the ends that were seen, in their order.
async fn wait_for(
    context: &Context,
    args: &WaitArgs,
    (controller, books): (&Controller, &Books),
    runs: &[Run],
) -> Outcome<Vec<Followed>> {
    let mut ends = Vec::new();
    let waits = |run: &&Run| !run.status().is_terminal() && !args.target.is_reached(run.status());
    for run in runs.iter().filter(|run| !waits(run)) {
        print_ended(context, run);
        ends.push(Followed::Ended(Box::new(run.clone())));
    }
    if args.any && !ends.is_empty() {
        ends.truncate(1);
        return Ok(ends);
    }
    let mut tasks = JoinSet::new();
    for run in runs.iter().filter(waits) {
        let mut follow = followed(context, controller, books, run);
        follow.after = run.state.head;
        follow.target = args.target;
        let timeout = args.timeout;
        tasks.spawn(async move { follow.follow(timeout, CtrlC::Leaves, |_| {}).await });
    }
    while let Some(joined) = tasks.join_next().await {
        let followed =
            joined.map_err(|error| Failure::unexpected("waiting failed").because(&error))??;
        if let Followed::Ended(run) | Followed::Reached(run) = &followed {
            print_ended(context, run);
        }
        let enough = args.any || !matches!(followed, Followed::Ended(_) | Followed::Reached(_));
        ends.push(followed);
        if enough {
            break;
        }
    }
    Ok(ends)
}

fn followed(context: &Context, controller: &Controller, books: &Books, run: &Run) -> Follow {
    let scope: Scope = context.scope();
    let (id, printer) = (run.id().clone(), context.printer.clone());
    let mut follow = Follow::new(controller.clone(), scope, id, books.clone(), printer);
    follow.attendant = Attendant::at_hand(context, books);
    follow
}

fn print_ended(context: &Context, run: &Run) {
    match context.printer.format() {
        OutputFormat::Table => {
            let summary = RunView::from(run).summary.unwrap_or_default();
            let line = format!(
                "{}  {}  {}",
                run.id(),
                status_text(run),
                excerpt(&summary, SUMMARY_CHARS_MAX)
            );
            context.printer.line(line.trim_end());
        }
        OutputFormat::Name => context.printer.line(run.id()),
        OutputFormat::Ndjson => context.printer.json_line(&run_object(run)),
        OutputFormat::Json => {}
    }
}

fn print_list(context: &Context, target: Target, runs: &[Run]) {
    if context.printer.format() == OutputFormat::Json {
        let awaited =
            |run: &Run| Awaited { timed_out: !target.is_reached(run.status()), run: run.into() };
        context.printer.json(&versioned(List { runs: runs.iter().map(awaited).collect() }));
    }
}

fn outcome(args: &WaitArgs, ends: Vec<Followed>, runs: &[Run]) -> Outcome {
    for end in &ends {
        match end {
            Followed::Ended(run) | Followed::Reached(run) if args.any => {
                return failure_of(args, run).map_or(Ok(Exit::Completed), Err);
            }
            Followed::Ended(_) | Followed::Reached(_) => {}
            Followed::Blocked(run) => return Err(run_blocked(run)),
            Followed::Detached => return Ok(Exit::Interrupted),
            Followed::TimedOut => {
                let waiting = runs.iter().find(|run| !args.target.is_reached(run.status()));
                if let Some(run) = waiting {
                    return Err(wait_timed_out(run.id()));
                }
            }
        }
    }
    let failed = runs.iter().find_map(|run| failure_of(args, run));
    failed.map_or(Ok(Exit::Completed), Err)
}

/// A run that is where it was waited for to be has not failed the wait.
fn failure_of(args: &WaitArgs, run: &Run) -> Option<Box<Failure>> {
    match args.target {
        Target::Status(status) if run.status() == status => None,
        Target::Status(_) | Target::Terminal => Failure::of_run(run),
    }
}
