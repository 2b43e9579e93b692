//! `taskrun cancel`.

use std::collections::HashSet;

use serde::Serialize;
use taskrun::controller::Canceled;
use taskrun::ids::RunId;
use taskrun::run::RunView;

use crate::args::{CancelArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::follow::Care;
use crate::output::{human, status_text, versioned};
use crate::resolve::resolve;

#[derive(Serialize)]
struct Asked<'a> {
    changed: bool,
    /// Runs beneath it that were cancelled as well.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    beneath: &'a [RunId],
    #[serde(flatten)]
    run: RunView,
}

#[derive(Serialize)]
struct List<'a> {
    runs: Vec<Asked<'a>>,
}

pub(super) async fn cancel(context: &Context, args: &CancelArgs) -> Outcome {
    let (books, controller) = context.looking().await?;
    let scope = context.scope();
    let mut ids = Vec::new();
    for text in &args.runs {
        ids.push(resolve(&controller, &scope, text).await?.spec.id.clone());
    }
    let mut answers = Vec::new();
    for id in ids {
        let (id, reason) = (id.as_str(), args.reason.as_deref());
        let mut answer = match args.keep_children {
            true => controller.cancel_alone(&scope, id, reason).await?,
            false => controller.cancel(&scope, id, reason).await?,
        };
        // The controller looks twice, and finds again what is still on its way out.
        let mut seen = HashSet::new();
        answer.beneath.retain(|id| seen.insert(id.clone()));
        answers.push(answer);
    }
    print(context, &answers);
    let mut care = Care::at_hand(context, &controller, &books);
    for answer in answers.iter().filter(|answer| answer.changed) {
        // Whoever waited for it can go on, and its finalizer wants to be heard.
        care.find_host(&answer.run).await?;
        // The entries of a batch end with it, and somebody has to write that down.
        if let Some(entry) = answer.run.spec.entries.first() {
            care.attend(entry).await?;
        }
    }
    Ok(Exit::Completed)
}

impl<'a> From<&'a Canceled> for Asked<'a> {
    fn from(answer: &'a Canceled) -> Self {
        let Canceled { run, changed, beneath } = answer;
        Self { changed: *changed, beneath, run: run.into() }
    }
}

fn print(context: &Context, answers: &[Canceled]) {
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => answers.iter().for_each(|answer| {
            let note = if answer.changed { "" } else { ", nothing changed" };
            let beneath = match answer.beneath.len() as u64 {
                0 => String::new(),
                many => format!(", and {} beneath it", human::count(many, "run")),
            };
            let status = status_text(&answer.run);
            printer.line(format!("{}  {status}{note}{beneath}", answer.run.id()));
        }),
        OutputFormat::Json => {
            printer.json(&versioned(List { runs: answers.iter().map(Asked::from).collect() }));
        }
        OutputFormat::Ndjson => {
            answers.iter().for_each(|answer| printer.json_line(&versioned(Asked::from(answer))));
        }
        OutputFormat::Name => answers.iter().for_each(|answer| printer.line(answer.run.id())),
    }
}
