//! `taskrun events`.

use serde::Serialize;
use taskrun::controller::{Client, Controller};
use taskrun_journal::event::EventRecord;
use taskrun_journal::run::Run;
use taskrun_runtime::Storage;

use super::event_line::event_line;
use super::event_object::EventObject;
use super::session_events::session_events;
use crate::args::{EventsArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::{CtrlC, Follow, FollowEnd, supervisor_at_hand};
use crate::output::{reader_is_gone, versioned};
use crate::resolve::resolve;

/// Events read at once.
const PAGE: usize = 1_000;

#[derive(Serialize)]
struct List<'a> {
    events: Vec<EventObject<'a>>,
}

pub(super) async fn events(context: &Context, args: &EventsArgs) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let Some(run) = &args.run else {
        return session_events(context, args, &controller, &storage).await;
    };
    let run = resolve(&context.client(&controller), run).await?;
    let format = context.printer.format();
    let wanted = |recorded: &EventRecord| {
        args.kind.is_empty() || args.kind.iter().any(|kind| kind == recorded.event.kind())
    };
    let show = |recorded: &EventRecord| {
        if wanted(recorded) {
            match format {
                OutputFormat::Table => {
                    context.printer.line(event_line(recorded, run.spec.created_at));
                }
                OutputFormat::Ndjson | OutputFormat::Json => {
                    context.printer.json_line(&versioned(EventObject::of(run.id(), recorded)));
                }
                OutputFormat::Name => context.printer.line(recorded.event.kind()),
            }
        }
    };
    if args.follow {
        return follow(context, (controller, storage), &run, args.after, show).await;
    }
    let events = all_events(&context.client(&controller), &run, args.after).await?;
    if format == OutputFormat::Json {
        let events =
            events.iter().filter(|e| wanted(e)).map(|e| EventObject::of(run.id(), e)).collect();
        context.printer.json(&versioned(List { events }));
    } else {
        events.iter().for_each(show);
    }
    Ok(Exit::Completed)
}

/// Shows events as they come. A JSON document that has no end is of no use to anybody.
pub(super) async fn follow(
    context: &Context,
    (controller, storage): (Controller, Storage),
    run: &Run,
    after: u64,
    show: impl FnMut(&EventRecord),
) -> Outcome {
    if context.printer.format() == OutputFormat::Json {
        return Err(Failure::usage("usage", "a run cannot be followed as one JSON document")
            .hint("use -o ndjson: one object for each line"));
    }
    let supervisor = supervisor_at_hand(context, &controller, &storage);
    let mut follow = Follow::new(context, &controller, run.id().clone(), supervisor);
    follow.after = after;
    let followed = tokio::select! {
        biased;
        followed = follow.follow(None, CtrlC::Leaves, show) => followed?,
        () = reader_is_gone() => return Ok(Exit::Completed),
    };
    match followed {
        FollowEnd::Ended(_) | FollowEnd::Reached(_) | FollowEnd::TimedOut => Ok(Exit::Completed),
        FollowEnd::Blocked(run) => Err(crate::follow::run_blocked(&run)),
        FollowEnd::Detached => Ok(Exit::Interrupted),
    }
}

/// The journal after a position.
pub(super) async fn all_events(
    client: &Client,
    run: &Run,
    after: u64,
) -> Outcome<Vec<EventRecord>> {
    let mut all: Vec<EventRecord> = Vec::new();
    loop {
        let after = all.last().map_or(after, |last| last.seq);
        let page = client.events(run.id().as_str(), after, PAGE).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}
