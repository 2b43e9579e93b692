//! `taskrun pause`, `taskrun resume` and `taskrun inject`.

use serde::Serialize;
use taskrun::controller::{PauseRequest, Paused, ResumeRequest};
use taskrun::ids::RunId;
use taskrun::run::{INBOX_BYTES_MAX, Run, RunView};

use super::run::OWNER_DEFAULT;
use super::text::text;
use crate::args::{InjectArgs, OutputFormat, PauseArgs, ResumeArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::follow::Care;
use crate::output::{human, run_object, status_text, versioned};
use crate::resolve::resolve;

/// Most bytes of a message that is read.
const MESSAGE_BYTES_MAX: usize = INBOX_BYTES_MAX as usize;

#[derive(Serialize)]
struct Asked<'a> {
    changed: bool,
    /// Runs beneath it that were changed as well.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    beneath: &'a [RunId],
    #[serde(flatten)]
    run: RunView,
}

#[derive(Serialize)]
struct List<'a> {
    runs: Vec<Asked<'a>>,
}

pub(super) async fn pause(context: &Context, args: &PauseArgs) -> Outcome {
    let (_, controller) = context.looking().await?;
    let scope = context.scope();
    let request =
        PauseRequest { reason: args.reason.clone(), timeout: args.timeout, tree: args.tree };
    let mut runs = Vec::new();
    for name in &args.runs {
        runs.push(resolve(&controller, &scope, name).await?);
    }
    let mut answers = Vec::new();
    for run in runs {
        let id = run.id().as_str();
        answers.push(controller.pause(&scope, id, &request, by(context)).await?);
    }
    print(context, &answers);
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
    let (books, controller) = context.looking().await?;
    let scope = context.scope();
    let mut runs = Vec::new();
    for name in &args.runs {
        runs.push(resolve(&controller, &scope, name).await?);
    }
    let mut answers = Vec::new();
    for run in runs {
        let id = run.id().as_str();
        answers.push(controller.resume(&scope, id, &request, by(context)).await?);
    }
    print(context, &answers);
    let mut care = Care::at_hand(context, &controller, &books);
    for answer in &answers {
        care.find_host(&answer.run).await?;
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

impl<'a> From<&'a Paused> for Asked<'a> {
    fn from(answer: &'a Paused) -> Self {
        let Paused { run, changed, beneath } = answer;
        Self { changed: *changed, beneath, run: run.into() }
    }
}

fn print(context: &Context, answers: &[Paused]) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => answers.iter().for_each(|answer| printer.line(line(answer))),
        OutputFormat::Json => {
            printer.json(&versioned(List { runs: answers.iter().map(Asked::from).collect() }));
        }
        OutputFormat::Ndjson => {
            answers.iter().for_each(|answer| printer.json_line(&versioned(Asked::from(answer))));
        }
        OutputFormat::Name => answers.iter().for_each(|answer| printer.line(answer.run.id())),
    }
}

fn line(answer: &Paused) -> String {
    let run: &Run = &answer.run;
    let note = if answer.changed { "" } else { ", nothing changed" };
    let beneath = match answer.beneath.len() as u64 {
        0 => String::new(),
        many => format!(", and {} beneath it", human::count(many, "run")),
    };
    format!("{}  {}{note}{beneath}", run.id(), status_text(run))
}
