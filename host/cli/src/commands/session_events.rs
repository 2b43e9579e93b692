//! `taskrun events --session`.

use serde::Serialize;
use taskrun::controller::{Client, Controller};
use taskrun_journal::list::ListFilter;
use taskrun_journal::status::Status;
use taskrun_journal::store::{SessionEvent, SessionKey, SessionPage};
use taskrun_runtime::Storage;

use super::event_line::{DETAIL_CHARS_MAX, detail};
use super::event_object::EventObject;
use super::session::failure;
use crate::args::{EventsArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::follow::ATTEND_EVERY;
use crate::output::escape::excerpt;
use crate::output::paint::{DIM, with};
use crate::output::{reader_is_gone, versioned};
use crate::signals::Interrupts;

/// Events read at once.
const PAGE: usize = 1_000;

/// An event of a session as the JSON output shows it.
#[derive(Serialize)]
struct View<'a> {
    place: u64,
    #[serde(flatten)]
    event: EventObject<'a>,
}

impl<'a> From<&'a SessionEvent> for View<'a> {
    fn from(event: &'a SessionEvent) -> Self {
        Self { place: event.place, event: EventObject::of(&event.run, &event.recorded) }
    }
}

#[derive(Serialize)]
struct List<'a> {
    events: Vec<View<'a>>,
    /// The value of --after with which a command goes on from here.
    next_after: u64,
}

/// Prints what happens in the runs of a session, in the order in which it became durable.
pub(super) async fn session_events(
    context: &Context,
    args: &EventsArgs,
    controller: &Controller,
    storage: &Storage,
) -> Outcome {
    let Some(id) = context.globals.session.clone() else {
        return Err(Failure::usage("usage", "neither a run nor a session is named").hint(
            "`taskrun events RUN` prints the journal of a run, `taskrun events --session ID` \
             those of all runs of a session",
        ));
    };
    let client = &context.client(controller);
    let wanted = |event: &SessionEvent| {
        args.kind.is_empty() || args.kind.iter().any(|kind| kind == event.recorded.event.kind())
    };
    if context.printer.format() == OutputFormat::Json {
        if args.follow {
            return Err(Failure::usage(
                "usage",
                "a session cannot be followed as one JSON document",
            )
            .hint("use -o ndjson: one object for each line"));
        }
        let (all, next_after) = all_events(client, &id, args.after).await?;
        let events = all.iter().filter(|event| wanted(event)).map(View::from).collect();
        context.printer.json(&versioned(List { events, next_after }));
        return Ok(Exit::Completed);
    }
    let mut after = args.after;
    let showing = async {
        loop {
            // Looked at before the events are: what ends it is the last of them.
            let is_over = !args.follow || is_over(client, storage, &id).await?;
            let SessionPage { events, next } = page(client, &id, after).await?;
            events.iter().filter(|event| wanted(event)).for_each(|event| show(context, event));
            let at_end = events.is_empty();
            after = next;
            if at_end && is_over {
                return Ok(Exit::Completed);
            }
            if at_end {
                tokio::select! {
                    biased;
                    // Gives the same again, when there is something.
                    _ = client.next_session_events(&id, after, 1) => {}
                    // The end of a session is no event.
                    () = tokio::time::sleep(ATTEND_EVERY) => {}
                }
            }
        }
    };
    let mut interrupts = Interrupts::new();
    tokio::select! {
        biased;
        () = interrupts.pressed() => Ok(Exit::Interrupted),
        shown = showing => shown,
        failure = context.printer.fails() => Err(failure),
        () = reader_is_gone(), if args.follow => Ok(Exit::Completed),
    }
}

async fn page(client: &Client, id: &str, after: u64) -> Outcome<SessionPage> {
    let page = client.session_events(id, after, PAGE).await;
    page.map_err(|error| failure(error, id))
}

async fn all_events(
    client: &Client,
    id: &str,
    mut after: u64,
) -> Outcome<(Vec<SessionEvent>, u64)> {
    let mut all = Vec::new();
    loop {
        let page = page(client, id, after).await?;
        after = page.next;
        if page.events.is_empty() {
            return Ok((all, after));
        }
        all.extend(page.events);
    }
}

/// True if nothing more can happen in a session: it has ended, and so have its runs.
async fn is_over(client: &Client, storage: &Storage, id: &str) -> Outcome<bool> {
    let session = storage.sessions.session(&SessionKey::of(&client.principal().scope, id)).await?;
    if session.is_none_or(|session| session.ended_at.is_none()) {
        return Ok(false);
    }
    let open = Status::ALL.iter().copied().filter(|status| !status.is_terminal()).collect();
    let filter = ListFilter { status: open, ..ListFilter::default() };
    Ok(client.list(&filter, None, 1).await?.runs.is_empty())
}

fn show(context: &Context, event: &SessionEvent) {
    let printer = &context.printer;
    let SessionEvent { place, run, recorded } = event;
    let kind = recorded.event.kind();
    match printer.format() {
        OutputFormat::Table => {
            let detail = excerpt(&detail(&recorded.event), DETAIL_CHARS_MAX);
            let position = with(DIM, &format!("{place:>6} {run} {:>4}", recorded.seq));
            printer.line(format!("{position}  {kind:<20}  {detail}").trim_end());
        }
        OutputFormat::Json | OutputFormat::Ndjson => {
            printer.json_line(&versioned(View::from(event)));
        }
        OutputFormat::Name => printer.line(kind),
    }
}
