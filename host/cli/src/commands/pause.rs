//! `taskrun pause`, `taskrun resume` and `taskrun inject`.

use taskrun::controller::{PauseRequest, Paused, ResumeRequest};
use taskrun_journal::pause::INBOX_BYTES_MAX;

use super::changes::{Change, print};
use super::run::OWNER_DEFAULT;
use super::text::text;
use crate::args::{InjectArgs, OutputFormat, PauseArgs, ResumeArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::follow::supervisor_at_hand;
use crate::output::{human, run_object, status_text};
use crate::resolve::{resolve, resolve_all};

/// Most bytes of a message that is read.
const MESSAGE_BYTES_MAX: usize = INBOX_BYTES_MAX as usize;

pub(super) async fn pause(context: &Context, args: &PauseArgs) -> Outcome {
    let (_, controller) = context.looking().await?;
    let scope = context.scope();
    let request =
        PauseRequest { reason: args.reason.clone(), timeout: args.timeout, tree: args.tree };
    let mut answers = Vec::new();
    for run in resolve_all(&controller, &scope, &args.runs).await? {
        let id = run.id().as_str();
        answers.push(controller.pause(&scope, id, &request, by(context)).await?);
    }
    print(context, answers.iter().map(change));
    Ok(Exit::Completed)
}

pub(super) async fn resume(context: &Context, args: &ResumeArgs) -> Outcome {
    let message = match &args.message {
        Some(message) => Some(text(message, "message", MESSAGE_BYTES_MAX)?),
        None => None,
    };
    let request = ResumeRequest {
        note: args.note.clone(),
        messages: message.into_iter().collect(),
        tree: args.tree,
    };
    let (storage, controller) = context.looking().await?;
    let scope = context.scope();
    let mut answers = Vec::new();
    for run in resolve_all(&controller, &scope, &args.runs).await? {
        let id = run.id().as_str();
        answers.push(controller.resume(&scope, id, &request, by(context)).await?);
    }
    print(context, answers.iter().map(change));
    let mut supervisor = supervisor_at_hand(context, &controller, &storage);
    for answer in &answers {
        supervisor.find_host(&answer.run).await?;
    }
    Ok(Exit::Completed)
}

pub(super) async fn inject(context: &Context, args: &InjectArgs) -> Outcome {
    let told = match args.words.as_slice() {
        [only] => text(only, "message", MESSAGE_BYTES_MAX)?,
        words @ [..] => words.join(" "),
    };
    let (_, controller) = context.looking().await?;
    let scope = context.scope();
    let run = resolve(&controller, &scope, &args.run).await?;
    let run = controller.inject(&scope, run.id().as_str(), &told, by(context)).await?;
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

fn by(context: &Context) -> &str {
    context.globals.owner.as_deref().unwrap_or(OWNER_DEFAULT)
}

fn change(answer: &Paused) -> Change<'_> {
    let Paused { run, changed, beneath } = answer;
    Change { run, changed: *changed, descendants: beneath }
}
