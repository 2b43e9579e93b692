//! `taskrun cancel`.

use serde::Serialize;
use taskrun::controller::Canceled;
use taskrun::run::RunView;

use crate::args::{CancelArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output::{status_text, versioned};
use crate::resolve::resolve;

#[derive(Serialize)]
struct Asked {
    changed: bool,
    #[serde(flatten)]
    run: RunView,
}

#[derive(Serialize)]
struct List {
    runs: Vec<Asked>,
}

pub(super) async fn cancel(context: &Context, args: &CancelArgs) -> Outcome {
    let (_, controller) = context.looking().await?;
    let scope = context.scope();
    let mut ids = Vec::new();
    for text in &args.runs {
        ids.push(resolve(&controller, &scope, text).await?.spec.id.clone());
    }
    let mut answers = Vec::new();
    for id in ids {
        answers.push(controller.cancel(&scope, id.as_str(), args.reason.as_deref()).await?);
    }
    let printer = &context.printer;
    let asked = |answer: &Canceled| Asked { changed: answer.changed, run: (&answer.run).into() };
    match printer.format() {
        OutputFormat::Table => answers.iter().for_each(|answer| {
            let note = if answer.changed { "" } else { ", nothing changed" };
            printer.line(format!("{}  {}{note}", answer.run.id(), status_text(&answer.run)));
        }),
        OutputFormat::Json => {
            printer.json(&versioned(List { runs: answers.iter().map(asked).collect() }));
        }
        OutputFormat::Ndjson => {
            answers.iter().for_each(|answer| printer.json_line(&versioned(asked(answer))));
        }
        OutputFormat::Name => answers.iter().for_each(|answer| printer.line(answer.run.id())),
    }
    Ok(Exit::Completed)
}
