//! `taskrun wait`.

mod prospects;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use taskrun::controller::Client;
use taskrun::error::ControllerError;
use taskrun_journal::hold::WaitMode;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::status::Status;
use taskrun_runtime::{Supervisor, SupervisorError, needs_answer};

use self::prospects::{outlooks, tell_stranded};
use crate::args::{OutputFormat, Target, WaitArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{Outlook, every, run_blocked, supervisor_at_hand, wait_timed_out};
use crate::output::escape::excerpt;
use crate::output::{run_object, status_text, versioned};
use crate::resolve::resolve;
use crate::setback::with_setback;
use crate::signals::Interrupts;

/// Characters of a result that are shown beside its run.
const SUMMARY_CHARS_MAX: usize = 80;
/// The time after the deadline that the store has to say how the runs stand: longer than it waits
/// for another program that locked it.
const OVERDUE: Duration = Duration::from_secs(15);

#[derive(Serialize)]
struct WaitView {
    /// True if the time was over before the run was what was waited for.
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
    /// The runs reached the goal or can no more, or the time is up.
    Waited(Vec<Run>),
    /// One of them, or one that it waits for, needs an answer from outside.
    Blocked(Box<Run>),
}

/// The things that are found out at the end of a wait, by the runs that were waited for.
#[derive(Default)]
struct Findings {
    /// The runs that ask something and without which these do not go on.
    asking: BTreeMap<RunId, Run>,
    /// The prospects of those for which the time was too short.
    outlooks: BTreeMap<RunId, Outlook>,
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
    let (mut ids, mut runs): (Vec<RunId>, Vec<Run>) = (Vec::new(), Vec::new());
    for text in &args.runs {
        let run = resolve(&client, text).await?;
        if !ids.contains(run.id()) {
            ids.push(run.id().clone());
            runs.push(run);
        }
    }
    tell_stranded(context, (&client, &storage), &runs).await?;
    let mut supervisor = supervisor_at_hand(context, &controller, &storage);
    let waiting = async { Ok(End::Waited(waited(args, &client, &ids).await?)) };
    let attending = async { attend(&mut supervisor, args, &ids).await.map(End::Blocked) };
    let end = first_of(waiting, attending).await?;
    match end {
        End::Waited(runs) => {
            let is_time_over = is_time_over(args, &runs);
            print(context, args, &runs, is_time_over);
            let mut found = Findings::default();
            match is_time_over {
                true => found.outlooks = outlooks(context, (&client, &storage), &runs).await?,
                false => found.asking = asking(&mut supervisor, args, &runs).await?,
            }
            with_setbacks(outcome(context, args, &runs, &found), (context, &client), &runs).await
        }
        End::Blocked(run) => {
            print(context, args, &look(&client, &ids).await?, false);
            Err(run_blocked(&run))
        }
    }
}

/// The runs that need an answer from outside, by those that are blocked, as was waited for, and go on
/// only with it: the same, or ones that wait for them.
async fn asking(
    supervisor: &mut Supervisor,
    args: &WaitArgs,
    runs: &[Run],
) -> Outcome<BTreeMap<RunId, Run>> {
    let mut asking = BTreeMap::new();
    if args.target == Target::Status(Status::Blocked) {
        for run in runs.iter().filter(|run| run.status() == Status::Blocked) {
            match supervisor.attend(run.id()).await {
                // It was removed meanwhile, and asks nothing any more.
                Err(SupervisorError::Controller(ControllerError::NotFound { .. })) => {}
                asks => {
                    asking.extend(asks?.map(|asks| (run.id().clone(), asks)));
                }
            }
        }
    }
    Ok(asking)
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

/// The runs as they stand when enough of them have reached the goal, or ended otherwise.
async fn waited(
    args: &WaitArgs,
    client: &Client,
    ids: &[RunId],
) -> Result<Vec<Run>, ControllerError> {
    let names: Vec<&str> = ids.iter().map(RunId::as_str).collect();
    let timeout = args.timeout.unwrap_or(Duration::MAX);
    let waited = match args.target {
        Target::Terminal => {
            let mode = if args.any { WaitMode::Any } else { WaitMode::All };
            client.wait_all(&names, mode, Some(timeout)).await?
        }
        Target::Status(status) => {
            let reached = |run: &Run| run.status() == status;
            let waits =
                names.iter().map(|id| Box::pin(client.wait_for(id, Some(timeout), reached)));
            if args.any {
                let (first, nth, _) = futures::future::select_all(waits).await;
                let (first, mut runs) = (first?.run, look(client, ids).await?);
                // It may be in another status by the time of the look.
                if let Some(run) = runs.get_mut(nth) {
                    *run = first;
                }
                return Ok(runs);
            }
            futures::future::try_join_all(waits).await?
        }
    };
    Ok(waited.into_iter().map(|one| one.run).collect())
}

/// The runs as they stand, in the order asked for.
async fn look(client: &Client, ids: &[RunId]) -> Result<Vec<Run>, ControllerError> {
    let mut runs = Vec::new();
    for id in ids {
        runs.push(client.get(id.as_str()).await?);
    }
    Ok(runs)
}

/// True if this run is waited for no more: it has reached the goal, or has ended otherwise.
fn is_settled(target: Target, run: &Run) -> bool {
    target.is_reached(run.status()) || run.status().is_terminal()
}

/// True if a wait came to its end by its time, where no blocked run ended it.
fn is_time_over(args: &WaitArgs, runs: &[Run]) -> bool {
    let mut settled = runs.iter().map(|run| is_settled(args.target, run));
    let is_enough = if args.any { settled.any(|is| is) } else { settled.all(|is| is) };
    args.timeout.is_some() && !is_enough
}

fn print(context: &Context, args: &WaitArgs, runs: &[Run], is_time_over: bool) {
    let printer = &context.printer;
    let there = runs.iter().filter(|run| is_settled(args.target, run));
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
            let awaited = |run: &Run| WaitView {
                timed_out: is_time_over && !is_settled(args.target, run),
                run: run.into(),
            };
            printer.json(&versioned(List { runs: runs.iter().map(awaited).collect() }));
        }
    }
}

fn outcome(context: &Context, args: &WaitArgs, runs: &[Run], found: &Findings) -> Outcome {
    let is_there = |run: &&Run| args.target.is_reached(run.status());
    let has_ended = |run: &&Run| run.status().is_terminal();
    let since = |run: &&Run| run.state.updated_at;
    let failed = if args.any {
        // The first that got there is the one that was waited for, or else the first that ended.
        let there = runs.iter().filter(is_there).min_by_key(since);
        match there.or_else(|| runs.iter().filter(has_ended).min_by_key(since)) {
            Some(first) => failure_of(args, first, &found.asking),
            None => runs.iter().find_map(|run| too_short(context, run, found)),
        }
    } else {
        let mut late = runs.iter().filter(|run| !is_there(run));
        late.find_map(|run| too_short(context, run, found))
            .or_else(|| runs.iter().find_map(|run| failure_of(args, run, &found.asking)))
    };
    failed.map_or(Ok(Exit::Completed), Err)
}

/// The same, where it is the failure of a run with the setback of that.
async fn with_setbacks(
    outcome: Outcome,
    (context, client): (&Context, &Client),
    runs: &[Run],
) -> Outcome {
    let failure = match outcome {
        Ok(exit) => return Ok(exit),
        Err(failure) => failure,
    };
    match runs.iter().find(|run| failure.run_id.as_ref() == Some(run.id())) {
        Some(run) => Err(with_setback(failure, (client, run), context.now()).await),
        None => Err(failure),
    }
}

/// The failure for a run that has not reached the goal, and goes on.
fn too_short(context: &Context, run: &Run, found: &Findings) -> Option<Box<Failure>> {
    if run.status().is_terminal() {
        return None;
    }
    let is_asking = needs_answer(run, context.now());
    Some(match is_asking {
        true => run_blocked(run),
        false => wait_timed_out(run.id(), found.outlooks.get(run.id())),
    })
}

/// A run that has reached the goal has not failed the wait, unless it needs an answer from outside
/// there, or waits for a run that does.
fn failure_of(args: &WaitArgs, run: &Run, asking: &BTreeMap<RunId, Run>) -> Option<Box<Failure>> {
    match args.target {
        Target::Status(Status::Blocked) if run.status() == Status::Blocked => {
            asking.get(run.id()).map(run_blocked)
        }
        Target::Status(status) if run.status() == status => None,
        Target::Status(wanted) if run.status().is_terminal() => Some(ended_otherwise(run, wanted)),
        Target::Status(_) | Target::Terminal => Failure::of_run(run),
    }
}

/// The failure for a run that has ended, and not in the status that was waited for. One that
/// completed has no failure of its own.
fn ended_otherwise(run: &Run, wanted: Status) -> Box<Failure> {
    let id = run.id();
    let message = format!("run {id} ended as {} and can no more become {wanted}", run.status());
    match Failure::of_run(run) {
        Some(mut failure) => {
            failure.message = message;
            failure
        }
        None => Failure::usage("run-ended", message)
            .about(id)
            .hint(format!("see how with `taskrun get {id}`")),
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
