//! `taskrun run`.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::Duration;

use serde::Serialize;
use taskrun::autonomy::AutonomyRequest;
use taskrun::controller::{Client, SpawnOutcome};
use taskrun::spawn::{REUSE_DEFAULT, SpawnRequest, WhenFull};
use taskrun_journal::answers::Answers;
use taskrun_journal::autonomy::RESULT_SCHEMA_BYTES_MAX;
use taskrun_journal::delivery::DeliverySettings;
use taskrun_journal::message::LogLevel;
use taskrun_journal::run::{Run, RunView};
use taskrun_journal::spec::RunClass;
use taskrun_journal::spec::TASK_BYTES_MAX;
use taskrun_policy::Policy;

use super::accepted::{AcceptedRun, Submission, print_accepted};
use super::asking::follow_and_ask;
use super::context_messages::context_messages;
use super::image::images;
use super::labels::{labels, pairs};
use super::narrowing::narrowing;
use super::policy_show::tell_other_hosts;
use super::text::text;
use super::{export, replay};
use crate::args::{OutputFormat, RunArgs};
use crate::budget::{Trees, scarcest};
use crate::context::{Context, OWNER_DEFAULT};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, background_failure};
use crate::follow::{
    CtrlC, Follow, FollowEnd, Line, Lines, Notes, RoundLines, Screen, every, run_blocked, run_left,
    supervisor, wait_timed_out,
};
use crate::lookup::agent_of;
use crate::output::paint::{DIM, GOOD, with};
use crate::output::{human, versioned};
use crate::resolve::resolve;
use crate::setback::{with_setback, with_setback_of};

/// Session unless another is named.
pub(super) const SESSION_DEFAULT: &str = "cli";
/// Time for reading a run that has not ended in time: longer than a store that is locked by another
/// program is waited for.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(15);

/// The way that the command goes on after the run was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowMode {
    /// Its id is printed.
    Detach,
    /// Its result is waited for and printed.
    Wait(Option<Duration>),
    /// It is shown as it goes.
    Watch,
    /// An object is printed for each of its rounds, and one for its end, which is waited for so long.
    Rounds(Option<Duration>),
}

/// True if it returns as soon as the run is accepted.
pub(super) fn is_brief(context: &Context, args: &RunArgs) -> bool {
    args.recording.replay.is_none() && manner(context, args) == FollowMode::Detach
}

pub(super) async fn run(context: &Context, args: &RunArgs) -> Outcome {
    if let Some(file) = &args.recording.replay {
        return replay::by_agent(context, &args.agent, file).await;
    }
    let policy = context.policy()?;
    agent_of(&policy, &args.agent)?;
    let mut request = request(context, args)?;
    if let Some(file) = &args.recording.record {
        export::check_free(file)?;
    }
    let data_dir = context.data_dir()?;
    let storage = context.storage(&data_dir)?;
    let mut names = vec![args.agent.clone()];
    if let Some(parent) = &args.parent {
        let (_, looking) = context.looking().await?;
        let parent = resolve(&context.client(&looking), parent).await?;
        put_beneath(context, &mut request, &parent);
        // What its agent may start stands in the policy; one that is gone may start nothing.
        names.push(parent.spec.agent_name.clone());
    }
    if let Some(notify) = request.delivery.as_ref().and_then(|delivery| delivery.notify.clone()) {
        agent_of(&policy, &notify)?;
        names.push(notify);
    }
    names.sort();
    names.dedup();
    let file = policy.path.clone();
    let controller = context.accepting(&storage, &policy, &names).await?;
    let SpawnOutcome { run, reused } = context.client(&controller).submit(&request).await?;
    if reused {
        let id = run.id();
        context.printer.talk(with(DIM, &format!("{id} was there before and is used again")));
    }
    let mut host = context.background_host(&policy, &storage)?;
    if !run.status().is_terminal() {
        let hosts = storage.hosts.hosts().await?;
        tell_other_hosts(context, &hosts, &file, &run.spec.agent_name)?;
        let attended = host.attend_beside(&hosts);
        attended.map_err(|error| background_failure(&error).about(run.id()))?;
    }
    let follow = |host| {
        let supervisor = supervisor(context, &controller, &storage, Some(host));
        Follow::new(context, &controller, run.id().clone(), supervisor)
    };
    let submission = Submission { controller: &controller, reused };
    let outcome = match manner(context, args) {
        FollowMode::Detach => {
            print_accepted(context, &run, reused);
            if !run.status().is_terminal() {
                // A host that executes it has it open, or is about to.
                storage.leave_open();
            }
            // Its id would be lost.
            let named = |lost: Box<Failure>| {
                lost.about(run.id()).hint(format!("it is accepted: {}", run.id()))
            };
            match context.printer.written() {
                Err(lost) if !lost.is_silent() => Err(named(lost)),
                Ok(()) | Err(_) => Ok(Exit::Completed),
            }
        }
        FollowMode::Wait(timeout) => {
            let followed = (submission, follow(host));
            wait(context, followed, timeout, args.autonomous).await
        }
        FollowMode::Watch => watch(context, follow(host), &run, &policy).await,
        FollowMode::Rounds(timeout) => rounds(context, (submission, follow(host)), timeout).await,
    };
    match &args.recording.record {
        Some(file) => {
            export::record(context, (&storage, &controller), run.id(), file, outcome).await
        }
        None => outcome,
    }
}

fn manner(context: &Context, args: &RunArgs) -> FollowMode {
    let asked = context.printer.asked();
    match (args.detach || args.heartbeat, args.wait) {
        (true, _) => FollowMode::Detach,
        (false, wait) if args.autonomous && asked == Some(OutputFormat::Ndjson) => {
            FollowMode::Rounds(wait.flatten())
        }
        (false, Some(timeout)) => FollowMode::Wait(timeout),
        (false, None)
            if args.recording.record.is_some()
                && (asked.is_some() || !context.printer.is_terminal()) =>
        {
            FollowMode::Wait(None)
        }
        (false, None) if asked.is_some() => FollowMode::Detach,
        (false, None) if context.printer.is_terminal() => FollowMode::Watch,
        (false, None) => FollowMode::Detach,
    }
}

fn request(context: &Context, args: &RunArgs) -> Outcome<SpawnRequest> {
    let task = match args.task.as_deref() {
        Some(argument) => text(argument, "task", TASK_BYTES_MAX)?,
        None => String::new(),
    };
    if task.trim().is_empty() {
        return Err(Failure::usage("invalid", "empty task").hint(format!(
            "say what is to be done: `taskrun run {} \"TASK\"`, `-` for stdin, or `@FILE`",
            args.agent
        )));
    }
    let autonomous = args.autonomous.then(|| autonomy(args)).transpose()?;
    let globals = &context.globals;
    Ok(SpawnRequest {
        autonomous,
        id: args.id.clone(),
        name: args.name.clone(),
        attached: args.attached,
        owner_user_id: globals.owner.clone().unwrap_or_else(|| OWNER_DEFAULT.to_owned()),
        parent_session_id: match (&globals.session, args.one_shot) {
            (Some(session), _) => session.clone(),
            (None, false) => SESSION_DEFAULT.to_owned(),
            (None, true) => String::new(),
        },
        one_shot: args.one_shot,
        parent_app_name: args.app.clone(),
        app_name: args.app.clone(),
        agent_name: args.agent.clone(),
        task,
        images: images(&args.images)?,
        timeout: args.timeout,
        runtime_state: pairs("state", &args.state)?,
        injected_context_messages: context_messages(args.task.as_deref(), &args.context)?,
        metadata: pairs("metadata", &args.metadata)?,
        labels: labels(&args.labels)?,
        idempotency_key: args.idempotency_key.clone(),
        reuse_within: args.reuse.map(|within| within.unwrap_or(REUSE_DEFAULT)),
        narrow: narrowing(args),
        tree: args.tree.unwrap_or_default(),
        answers: match (args.unattended, &args.answers) {
            (true, _) => Some(Answers::Nobody),
            (false, Some(answers)) => Some(answers.clone()),
            // Whoever watches it answers.
            (false, None) if manner(context, args) == FollowMode::Watch && args.autonomous => {
                Some(Answers::Inbox)
            }
            (false, None) => None,
        },
        serial: args.serial,
        subscribers: args.subscriber.clone(),
        channels: args.channel.clone(),
        // What is not said to belong together has nothing to do with each other.
        converses: globals.session.is_some() && !args.no_history,
        delivery: args
            .deliver
            .clone()
            .map(|settings| DeliverySettings { prompt: args.deliver_prompt.clone(), ..settings }),
        class: if args.heartbeat { RunClass::Heartbeat } else { RunClass::Task },
        when_full: if args.no_queue { WhenFull::Refuse } else { WhenFull::Wait },
        ..SpawnRequest::default()
    })
}

/// The settings of a run that goes on by itself.
fn autonomy(args: &RunArgs) -> Outcome<AutonomyRequest> {
    let schema = args.result_schema.as_deref();
    let schema = schema.map(|argument| text(argument, "schema", RESULT_SCHEMA_BYTES_MAX));
    Ok(AutonomyRequest {
        rounds: args.rounds,
        continuation: args.continuation.clone(),
        result_schema: schema.transpose()?,
        max_defer: args.max_defer,
        exit_on_defer: args.exit_on_defer,
    })
}

/// Puts a request beneath a run. It belongs to whom that belongs, and to its application, unless
/// others are named.
fn put_beneath(context: &Context, request: &mut SpawnRequest, parent: &Run) {
    request.parent_run_id = Some(parent.id().to_string());
    request.share_channels = std::mem::take(&mut request.channels);
    if context.globals.owner.is_none() {
        request.owner_user_id.clone_from(&parent.spec.owner_user_id);
    }
    if context.globals.session.is_none() && !request.one_shot {
        request.parent_session_id.clone_from(&parent.spec.parent_session_id);
    }
    if request.app_name.is_none() {
        request.parent_app_name.clone_from(&parent.spec.app_name);
        request.app_name.clone_from(&parent.spec.app_name);
    }
}

#[derive(Serialize)]
struct Snapshot {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
    #[serde(flatten)]
    run: AcceptedRun,
}

/// Shows the run as it stands to programs, where it is not waited for any longer: its time is up, or
/// nobody here can answer. People see that in the failure.
async fn print_snapshot(
    context: &Context,
    (submission, follow): (Submission<'_>, &Follow),
    followed: &FollowEnd,
) -> Outcome<()> {
    let timed_out = match followed {
        FollowEnd::TimedOut => true,
        FollowEnd::Blocked(_) => false,
        FollowEnd::Ended(_) | FollowEnd::Reached(_) | FollowEnd::Detached => return Ok(()),
    };
    // A store that hangs must not make the wait longer than it may be.
    let read = async { submission.view(&follow.client.get(follow.id.as_str()).await?).await };
    let Ok(run) = tokio::time::timeout(SNAPSHOT_WITHIN, read).await else { return Ok(()) };
    let snapshot = versioned(Snapshot { timed_out, run: run? });
    match context.printer.format() {
        OutputFormat::Table => {}
        OutputFormat::Name => context.printer.line(&follow.id),
        OutputFormat::Json => context.printer.json(&snapshot),
        OutputFormat::Ndjson => context.printer.json_line(&snapshot),
    }
    Ok(())
}

/// Shows how far the run is, with a line for each round of one that `goes_on` by itself, and its
/// result at the end.
async fn wait(
    context: &Context,
    (submission, mut follow): (Submission<'_>, Follow),
    timeout: Option<Duration>,
    goes_on: bool,
) -> Outcome {
    let mut screen = Screen::new(&context.printer, Notes::Stderr);
    let mut lines = Lines::new(LogLevel::Error);
    let mut rounds = goes_on.then(|| RoundLines::new(follow.id.clone()));
    screen.progress(lines.progress());
    let followed = follow
        .follow(timeout, CtrlC::Detaches, |event| {
            lines.of(event);
            if let Some(round) = rounds.as_mut().and_then(|rounds| rounds.of(event)) {
                screen.show(&Line::Note(with(DIM, &round.text())));
            }
            screen.progress(lines.progress());
        })
        .await?;
    screen.end();
    print_snapshot(context, (submission, &follow), &followed).await?;
    let ended = ended(context, &follow, followed).await?;
    let Some(run) = ended else { return Ok(Exit::Interrupted) };
    match context.printer.format() {
        OutputFormat::Table => {
            if let Some(result) = follow.client.result(run.id().as_str()).await? {
                context.printer.guest_text(&result);
            }
            tell_images(context, &run);
        }
        OutputFormat::Name => context.printer.line(run.id()),
        OutputFormat::Json => context.printer.json(&versioned(submission.view(&run).await?)),
        OutputFormat::Ndjson => {
            context.printer.json_line(&versioned(submission.view(&run).await?));
        }
    }
    exit_of(context, &follow.client, &run).await
}

/// Says how the images of the answer are had.
fn tell_images(context: &Context, run: &Run) {
    for line in human::answer_images(run) {
        context.printer.talk(with(DIM, &context.printer.completed(&line)));
    }
}

/// Shows the run as it goes, and asks there what it asks.
async fn watch(context: &Context, mut follow: Follow, run: &Run, policy: &Policy) -> Outcome {
    let level = if context.globals.verbose > 0 { LogLevel::Debug } else { LogLevel::Warn };
    context.printer.talk(with(DIM, &format!("run {}", follow.id)));
    let mut lines = Lines::new(level);
    if let Some(autonomy) = &run.spec.autonomy {
        lines = lines.in_rounds(autonomy.rounds);
    }
    let screen = Screen::new(&context.printer, Notes::Stderr);
    screen.progress(lines.progress());
    let shown = RefCell::new((lines, screen));
    let budget = show_budget((context, policy), (follow.client.clone(), run), |left| {
        let (lines, screen) = &mut *shown.borrow_mut();
        lines.note_left(left);
        screen.progress(lines.progress());
    });
    let followed = tokio::select! {
        biased;
        followed = follow_and_ask(context, &mut follow, &shown) => followed?,
        never = budget => match never {},
    };
    shown.into_inner().1.end();
    let ended = ended(context, &follow, followed).await?;
    let Some(run) = ended else { return Ok(Exit::Interrupted) };
    let exit = exit_of(context, &follow.client, &run).await?;
    tell_images(context, &run);
    context.printer.talk(summary(&run));
    Ok(exit)
}

/// Shows, for as long as it is polled, what a run that goes on by itself has left of its scarcest budget
/// with the runs beneath it. After a look that fails, what was shown stays until the next one.
async fn show_budget(
    (context, policy): (&Context, &Policy),
    (client, run): (Client, &Run),
    show: impl Fn(Option<String>),
) -> Infallible {
    if run.spec.autonomy.is_none() {
        return std::future::pending().await;
    }
    let (mut trees, mut again) = (Trees::default(), every());
    loop {
        again.tick().await;
        let Ok(run) = client.get(run.id().as_str()).await else { continue };
        let looked = trees.look((&client, &*context.clock), policy, std::slice::from_ref(&run));
        if looked.await.is_ok() {
            show(scarcest(&run, policy, trees.used(run.id()), context.now()));
        }
    }
}

/// Prints an object for each round of the run as it ends, and the run at last.
async fn rounds(
    context: &Context,
    (submission, mut follow): (Submission<'_>, Follow),
    timeout: Option<Duration>,
) -> Outcome {
    let mut lines = RoundLines::new(follow.id.clone());
    let followed = follow
        .follow(timeout, CtrlC::Detaches, |event| {
            if let Some(line) = lines.of(event) {
                context.printer.json_line(&versioned(line));
            }
        })
        .await?;
    print_snapshot(context, (submission, &follow), &followed).await?;
    let ended = ended(context, &follow, followed).await?;
    let Some(run) = ended else { return Ok(Exit::Interrupted) };
    context.printer.json_line(&versioned(submission.view(&run).await?));
    exit_of(context, &follow.client, &run).await
}

/// The run at its end; `None` if that is not waited for any more.
async fn ended(context: &Context, follow: &Follow, followed: FollowEnd) -> Outcome<Option<Run>> {
    let id = &follow.id;
    match followed {
        FollowEnd::Ended(run) | FollowEnd::Reached(run) => Ok(Some(*run)),
        FollowEnd::Blocked(run) => Err(run_blocked(&run)),
        FollowEnd::TimedOut => {
            let failure = wait_timed_out(id, None);
            Err(with_setback_of(failure, (&follow.client, id), context.now()).await)
        }
        FollowEnd::Detached => {
            let left = run_left(&follow.client, id, context.now()).await;
            follow.printer.say(follow.printer.completed(&left));
            Ok(None)
        }
    }
}

async fn exit_of(context: &Context, client: &Client, run: &Run) -> Outcome {
    match Failure::of_run(run) {
        Some(failure) => Err(with_setback(failure, (client, run), context.now()).await),
        None => Ok(Exit::Completed),
    }
}

fn summary(run: &Run) -> String {
    let view = RunView::from(run);
    let took = human::duration(Duration::from_millis(view.duration_ms.unwrap_or(0)));
    let turns = human::count(u64::from(view.turns), "turn");
    let calls = human::count(u64::from(run.state.tool_calls), "tool call");
    let text = format!("{} in {took}, {turns}, {calls}", run.status());
    format!("{} {}", with(GOOD, "✓"), with(DIM, &text))
}
