//! `taskrun pause`, `taskrun resume`, `taskrun inject` and `taskrun wake`.

use taskrun::controller::{PauseOutcome, PauseRequest, ResumeRequest, SpawnOutcome};
use taskrun::error::ControllerError;
use taskrun_journal::pause::INBOX_BYTES_MAX;
use taskrun_journal::run::Run;

use super::accepted::print_accepted;
use super::changes::{Change, Refusals, print};
use super::continuation::{Begin, TotalBounds, continue_run};
use super::text::text;
use crate::args::{InjectArgs, OutputFormat, PauseArgs, ResumeArgs, WakeArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, refusal_of};
use crate::follow::supervisor_at_hand;
use crate::output::{human, run_object, status_text};
use crate::resolve::{resolve, resolve_all};

/// Most bytes of a message that is read.
const MESSAGE_BYTES_MAX: usize = INBOX_BYTES_MAX as usize;

pub(super) async fn pause(context: &Context, args: &PauseArgs) -> Outcome {
    let (_, controller) = context.looking().await?;
    let client = context.client(&controller);
    let request =
        PauseRequest { reason: args.reason.clone(), timeout: args.timeout, tree: args.tree };
    let (mut answers, mut refusals) = (Vec::new(), Refusals::none(context, &args.runs));
    for run in resolve_all(&client, &args.runs).await? {
        let paused = client.pause(run.id().as_str(), &request).await;
        let paused = paused.map_err(|error| refusal_of(error, run.id()));
        answers.extend(refusals.sort_out(run.id(), paused));
    }
    print(context, answers.iter().map(change));
    refusals.outcome()
}

pub(super) async fn resume(context: &Context, args: &ResumeArgs) -> Outcome {
    let message = match &args.message {
        Some(message) => Some(text(message, "message", MESSAGE_BYTES_MAX)?),
        None => None,
    };
    if args.runs.is_empty() {
        return resume_session(context, args, message.as_deref()).await;
    }
    let request = ResumeRequest {
        note: args.note.clone(),
        messages: message.iter().cloned().collect(),
        tree: args.tree,
    };
    let (storage, controller) = context.looking().await?;
    let client = context.client(&controller);
    let (ended, open): (Vec<_>, Vec<_>) = resolve_all(&client, &args.runs)
        .await?
        .into_iter()
        .partition(|run| run.status().is_terminal() && run.spec.autonomy.is_some());
    if let (Some(run), true) = (open.first(), bounds(args) != TotalBounds::default()) {
        let message = format!("run {} goes on within its own bounds", run.id());
        return Err(Failure::usage("invalid", message)
            .about(run.id())
            .hint("--budget and --rounds are those of a run that continues one which has ended"));
    }
    if let (Some(run), Some(option)) = (ended.first(), of_pauses(args)) {
        let message = format!("run {} has ended, and is continued by another one", run.id());
        return Err(Failure::usage("invalid", message).about(run.id()).hint(option));
    }
    let (mut answers, mut refusals) = (Vec::new(), Refusals::none(context, &args.runs));
    for run in open {
        let resumed = client.resume(run.id().as_str(), &request).await;
        let resumed = resumed.map_err(|error| refusal_of(error, run.id()));
        answers.extend(refusals.sort_out(run.id(), resumed));
    }
    let mut continued = Vec::new();
    for run in ended {
        let id = run.id().clone();
        let begin = Begin::After(Box::new(run));
        let outcome = continue_run(context, begin, bounds(args), message.as_deref()).await;
        continued.extend(refusals.sort_out(&id, outcome));
    }
    match (continued.as_slice(), args.runs.as_slice()) {
        ([SpawnOutcome { run, reused }], [_]) => print_accepted(context, run, *reused),
        ([..], [..]) => {
            print(context, answers.iter().map(change).chain(continued.iter().map(continuation)));
        }
    }
    let mut supervisor = supervisor_at_hand(context, &controller, &storage);
    for PauseOutcome { run, .. } in &answers {
        refusals.sort_out(run.id(), supervisor.find_host(run).await);
    }
    refusals.outcome()
}

/// Goes on with the latest autonomous run of the session, or begins one on its conversation.
async fn resume_session(context: &Context, args: &ResumeArgs, message: Option<&str>) -> Outcome {
    let Some(session) = &context.globals.session else {
        return Err(Failure::usage("invalid", "no run is named").hint(
            "name one: `taskrun resume RUN`, or its session: `taskrun resume --session NAME`",
        ));
    };
    if let Some(option) = of_pauses(args) {
        let message = format!("a run of session {session} is continued by another one");
        return Err(Failure::usage("invalid", message).hint(option));
    }
    let (_, controller) = context.looking().await?;
    let client = context.client(&controller);
    let latest = client.latest_autonomous(session, args.agent.as_deref()).await?;
    let begin = match (latest, &args.agent) {
        (Some(run), _) => Begin::After(Box::new(run)),
        (None, Some(agent)) => Begin::Anew { session: session.clone(), agent: agent.clone() },
        (None, None) => {
            let message = format!("session {session} has no autonomous run");
            return Err(Failure::usage("not-found", message)
                .hint("say which agent is to begin one: --agent AGENT"));
        }
    };
    let SpawnOutcome { run, reused } = continue_run(context, begin, bounds(args), message).await?;
    print_accepted(context, &run, reused);
    Ok(Exit::Completed)
}

/// The correction of an option that belongs to the end of a pause alone.
fn of_pauses(args: &ResumeArgs) -> Option<&'static str> {
    match (&args.note, args.tree) {
        (Some(_), _) => Some("--note says why a pause ends; tell the agent with --message"),
        (None, true) => Some("--tree ends the pauses beneath a run; leave it out"),
        (None, false) => None,
    }
}

/// The bounds of a run that continues another one.
fn bounds(args: &ResumeArgs) -> TotalBounds {
    TotalBounds { budget: args.budget.unwrap_or_default(), rounds: args.rounds }
}

pub(super) async fn inject(context: &Context, args: &InjectArgs) -> Outcome {
    let told = match args.words.as_slice() {
        [only] => text(only, "message", MESSAGE_BYTES_MAX)?,
        words @ [..] => words.join(" "),
    };
    let (storage, controller) = context.looking().await?;
    let client = context.client(&controller);
    let run = resolve(&client, &args.run).await?;
    let wakes = run.state.rounds.due.is_some();
    let heard = match &args.channel {
        Some(channel) => client.hear(run.id().as_str(), channel, &told).await,
        None => client.inject(run.id().as_str(), &told).await,
    };
    let run = heard.map_err(|error| unheard(error, &run, args.channel.as_deref()))?;
    if wakes {
        supervisor_at_hand(context, &controller, &storage).find_host(&run).await?;
    }
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => {
            let waiting = human::count(u64::from(run.state.inbox.messages), "message");
            let line = format!("{}  {}, {waiting} for its next turn", run.id(), status_text(&run));
            printer.line(line);
        }
        OutputFormat::Json => printer.json(&run_object(&run)),
        OutputFormat::Ndjson => printer.json_line(&run_object(&run)),
        OutputFormat::Name => printer.line(run.id()),
    }
    Ok(Exit::Completed)
}

/// The refusal of words to a run, also of those over a channel that passes none on.
fn unheard(error: ControllerError, run: &Run, channel: Option<&str>) -> Box<Failure> {
    let is_closed = matches!(error, ControllerError::Forbidden { .. });
    let failure = refusal_of(error, run.id());
    let mut channels = run.spec.channels.iter();
    match channels.find(|one| is_closed && channel == Some(one.name.as_str())) {
        Some(channel) => failure.hint(format!(
            "`{key}` of [channel.{name}] in the policy says so, as that was when the run was \
             accepted; `taskrun inject {id} TEXT` tells it without the channel",
            key = if channel.muted { "muted" } else { "access" },
            name = channel.name,
            id = run.id(),
        )),
        None => failure,
    }
}

pub(super) async fn wake(context: &Context, args: &WakeArgs) -> Outcome {
    let message = match &args.message {
        Some(message) => text(message, "message", MESSAGE_BYTES_MAX)?,
        None => String::new(),
    };
    let (storage, controller) = context.looking().await?;
    let client = context.client(&controller);
    let (mut woken, mut refusals) = (Vec::new(), Refusals::none(context, &args.runs));
    for run in resolve_all(&client, &args.runs).await? {
        let heard = client.wake(run.id().as_str(), &message).await;
        let heard = heard.map_err(|error| refusal_of(error, run.id()));
        woken.extend(refusals.sort_out(run.id(), heard));
    }
    print(context, woken.iter().map(|run| Change { run, changed: true, descendants: &[] }));
    let mut supervisor = supervisor_at_hand(context, &controller, &storage);
    for run in &woken {
        refusals.sort_out(run.id(), supervisor.find_host(run).await);
    }
    refusals.outcome()
}

fn change(answer: &PauseOutcome) -> Change<'_> {
    let PauseOutcome { run, changed, descendants } = answer;
    Change { run, changed: *changed, descendants }
}

fn continuation(outcome: &SpawnOutcome) -> Change<'_> {
    let SpawnOutcome { run, reused } = outcome;
    Change { run, changed: !reused, descendants: &[] }
}
