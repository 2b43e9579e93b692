//! `taskrun logs`.

use serde::Serialize;
use taskrun_journal::event::{Event, EventRecord};

use super::event_object::EventObject;
use super::events::{all_events, follow};
use crate::args::{LogsArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output::escape::escaped_line;
use crate::output::paint::{DIM, with};
use crate::output::versioned;
use crate::resolve::resolve;

#[derive(Serialize)]
struct List<'a> {
    lines: Vec<EventObject<'a>>,
}

pub(super) async fn logs(context: &Context, args: &LogsArgs) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let run = resolve(&context.client(&controller), &args.run).await?;
    let printer = &context.printer;
    let wanted = |recorded: &EventRecord| matches!(&recorded.event, Event::Log { level, .. } if *level >= args.level);
    let show = |recorded: &EventRecord| {
        if wanted(recorded) {
            match printer.format() {
                OutputFormat::Table | OutputFormat::Name => {
                    if let Some(line) = log_line(recorded) {
                        printer.line(line);
                    }
                }
                OutputFormat::Json | OutputFormat::Ndjson => {
                    printer.json_line(&versioned(EventObject::of(run.id(), recorded)));
                }
            }
        }
    };
    let mut lines = all_events(&context.client(&controller), &run, 0).await?;
    let head = lines.last().map_or(0, |last| last.seq);
    lines.retain(|recorded| wanted(recorded));
    if let Some(tail) = args.tail {
        lines.drain(..lines.len().saturating_sub(tail));
    }
    if printer.format() == OutputFormat::Json && !args.follow {
        let lines = lines.iter().map(|line| EventObject::of(run.id(), line)).collect();
        printer.json(&versioned(List { lines }));
        return Ok(Exit::Completed);
    }
    lines.iter().for_each(show);
    if args.follow {
        return follow(context, (controller, storage), &run, head, show).await;
    }
    if lines.is_empty() {
        printer.advise(&format!(
            "the run has no log lines; what it did is in `taskrun events {}`",
            run.id()
        ));
    }
    Ok(Exit::Completed)
}

fn log_line(recorded: &EventRecord) -> Option<String> {
    let Event::Log { level, source, message, fields } = &recorded.event else { return None };
    let mut line = format!(
        "{} {:<5} {}: {}",
        with(DIM, &recorded.at.to_string()),
        level.as_str(),
        escaped_line(source),
        escaped_line(message)
    );
    for (key, value) in fields {
        line.push_str(&with(DIM, &format!(" {}={}", escaped_line(key), escaped_line(value))));
    }
    Some(line)
}
