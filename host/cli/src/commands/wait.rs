//! `taskrun wait`.

use std::time::Duration;

use serde::Serialize;
use taskrun::controller::{Client, WaitOutcome};
use taskrun::error::ControllerError;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_runtime::{Supervisor, needs_answer};

use crate::args::{OutputFormat, Target, WaitArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{every, run_blocked, supervisor_at_hand, wait_timed_out};
use crate::output::escape::excerpt;
use crate::output::{run_object, status_text, versioned};
use crate::resolve::resolve;
use crate::signals::Interrupts;

/// Characters of a result that are shown beside its run.
const SUMMARY_CHARS_MAX: usize = 80;
/// The time after the deadline that the store has to say how the runs stand: longer than it waits
/// for another program that locked it.
const OVERDUE: Duration = Duration::from_secs(15);

#[derive(Serialize)]
struct WaitView {
    timed_out: bool,
    #[serde(flatten)]
    run: RunView,
}

#[derive(Serialize)]
struct List {
    runs: Vec<WaitView>,
}

/// The end of a wait.
enum End {
    /// The runs reached the goal, or the time is up.
    Waited(Vec<WaitOutcome>),
    /// One of them, or one that it waits for, needs an answer from outside.
    Blocked(Box<Run>),
}

pub(super) async fn wait(context: &Context, args: &WaitArgs) -> Outcome {
    let mut interrupts = Interrupts::new();
    bounded(args.timeout, interrupts.pressed(), wait_in_time(context, args)).await
}

/// The outcome of a wait: whatever hangs below it, the time passes and Ctrl-C is heard.
async fn bounded(
    timeout: Option<Duration>,
    pressed: impl Future<Output = ()>,
    waiting: impl Future<Output = Outcome>,
) -> Outcome {
    let overdue = async {
        match timeout.and_then(|timeout| timeout.checked_add(OVERDUE)) {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = pressed => Ok(Exit::Interrupted),
        outcome = waiting => outcome,
        () = overdue => Err(Failure::new(
            Exit::WaitTimedOut,
            "wait-timed-out",
            "the time is up, and the store does not say how the runs stand",
        )
        .hint("see what is wrong with it with `taskrun doctor`")),
    }
}

async fn wait_in_time(context: &Context, args: &WaitArgs) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let client = context.client(&controller);
    let mut ids: Vec<RunId> = Vec::new();
    for text in &args.runs {
        let run = resolve(&client, text).await?;
        if !ids.contains(run.id()) {
            ids.push(run.id().clone());
        }
    }
    let mut supervisor = supervisor_at_hand(context, &controller, &storage);
    let waiting = async { Ok(End::Waited(waited(args, &client, &ids).await?)) };
    let attending = async { attend(&mut supervisor, args, &ids).await.map(End::Blocked) };
    let (standing, blocked) = match first_of(waiting, attending).await? {
        End::Waited(standing) => (standing, None),
        End::Blocked(run) => (look(&client, args.target, &ids).await?, Some(run)),
    };
    print(context, &standing);
    match blocked {
        Some(run) => Err(run_blocked(&run)),
        None => outcome(context, args, &standing),
    }
}

/// The first of both to come to an end. Each is polled as long as the other is: one that stood still
/// could hold what the other needs.
async fn first_of<T>(waiting: impl Future<Output = T>, attending: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        waited = waiting => waited,
        blocked = attending => blocked,
    }
}

/// Supervises the runs until so many of them need an answer from outside that there is nothing to
/// wait for. While another one may still end where one is enough, there is.
async fn attend(supervisor: &mut Supervisor, args: &WaitArgs, ids: &[RunId]) -> Outcome<Box<Run>> {
    let enough = if args.any { ids.len() } else { 1 };
    let mut again = every();
    loop {
        again.tick().await;
        let mut blocked = Vec::new();
        for id in ids {
            blocked.extend(supervisor.attend(id).await?);
        }
        if blocked.len() >= enough {
            return Ok(Box::new(blocked.remove(0)));
        }
    }
}

/// The runs as they stand when enough of them have reached the goal.
async fn waited(
    args: &WaitArgs,
    client: &Client,
    ids: &[RunId],
) -> Result<Vec<WaitOutcome>, ControllerError> {
    let names: Vec<&str> = ids.iter().map(RunId::as_str).collect();
    let timeout = args.timeout.unwrap_or(Duration::MAX);
    match args.target {
        Target::Terminal => {
            let mode = if args.any { WaitMode::Any } else { WaitMode::All };
            client.wait_all(&names, mode, Some(timeout)).await
        }
        Target::Status(status) => {
            let reached = |run: &Run| run.status() == status;
            let waits =
                names.iter().map(|id| Box::pin(client.wait_for(id, Some(timeout), reached)));
            if args.any {
                futures::future::select_all(waits).await.0?;
                look(client, args.target, ids).await
            } else {
                futures::future::try_join_all(waits).await
            }
        }
    }
}

/// The runs as they stand, in the order asked for.
async fn look(
    client: &Client,
    target: Target,
    ids: &[RunId],
) -> Result<Vec<WaitOutcome>, ControllerError> {
    let mut standing = Vec::new();
    for id in ids {
        let run = client.get(id.as_str()).await?;
        let timed_out = !target.is_reached(run.status());
        standing.push(WaitOutcome { run, timed_out });
    }
    Ok(standing)
}

fn print(context: &Context, standing: &[WaitOutcome]) {
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
                |one: &WaitOutcome| WaitView { timed_out: one.timed_out, run: (&one.run).into() };
            printer.json(&versioned(List { runs: standing.iter().map(awaited).collect() }));
        }
    }
}

fn outcome(context: &Context, args: &WaitArgs, standing: &[WaitOutcome]) -> Outcome {
    let there = |waited: &&WaitOutcome| !waited.timed_out;
    let failed = if args.any {
        // The first that ended is the one that was waited for.
        let since = |waited: &&WaitOutcome| waited.run.state.updated_at;
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

/// The failure for a run that has not reached the goal, and goes on.
fn too_short(context: &Context, run: &Run) -> Option<Box<Failure>> {
    if run.status().is_terminal() {
        return None;
    }
    let is_asking = needs_answer(run, context.now());
    Some(if is_asking { run_blocked(run) } else { wait_timed_out(run.id()) })
}

/// A run that has reached the goal has not failed the wait, unless it needs an answer from outside
/// there.
fn failure_of(args: &WaitArgs, run: &Run) -> Option<Box<Failure>> {
    match args.target {
        Target::Status(Status::Blocked) if run.status() == Status::Blocked => {
            Some(run_blocked(run))
        }
        Target::Status(status) if run.status() == status => None,
        Target::Status(_) | Target::Terminal => Failure::of_run(run),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// A wait on a store that never answers.
    async fn hangs() -> Outcome {
        std::future::pending().await
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_on_a_store_that_hangs_ends_by_its_time_and_by_ctrl_c() {
        let begin = tokio::time::Instant::now();
        let timeout = Some(Duration::from_secs(3));
        let late = bounded(timeout, std::future::pending(), hangs()).await.expect_err("late");
        assert_eq!((late.exit, &*late.code), (Exit::WaitTimedOut, "wait-timed-out"));
        assert_eq!(begin.elapsed(), Duration::from_secs(18));
        for timeout in [None, timeout] {
            let pressed = tokio::time::sleep(Duration::from_secs(1));
            let begin = tokio::time::Instant::now();
            let ended = bounded(timeout, pressed, hangs()).await;
            assert_eq!(ended.expect("no failure"), Exit::Interrupted);
            assert_eq!(begin.elapsed(), Duration::from_secs(1));
        }
    }

    #[tokio::test]
    async fn waits_that_hold_every_reader_go_on_while_the_runs_are_looked_after() {
        // Who asks first is given it first, as the readers of a store once were.
        let readers = Semaphore::new(1);
        let taken = readers.acquire().await.expect("it is open");
        let waiting = async {
            let _reader = readers.acquire().await.expect("it is open");
            tokio::task::yield_now().await;
            "waited"
        };
        let attending = async {
            // It is due when the wait is in the queue, and before a reader is free.
            drop(taken);
            let _reader = readers.acquire().await.expect("it is open");
            "attended"
        };
        let first = tokio::time::timeout(Duration::from_secs(30), first_of(waiting, attending));
        assert_eq!(first.await, Ok("waited"));
    }
}
