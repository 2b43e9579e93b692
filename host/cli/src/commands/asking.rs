//! A run that is followed at a terminal, where a person answers what it asks.

use std::cell::RefCell;
use std::ops::ControlFlow;

use taskrun::controller::Client;
use taskrun::error::ControllerError;
use taskrun_journal::event::EventRecord;
use taskrun_journal::question::Item;
use taskrun_journal::run::Run;
use taskrun_runtime::needs_answer;

use super::answer::{can_ask, from_file, typed};
use crate::context::Context;
use crate::failure::Outcome;
use crate::follow::{CtrlC, Follow, FollowEnd, Lines, Notes, Screen};
use crate::output::escape::escaped_line;
use crate::output::paint::{DIM, NOTE, with};

/// Shows a run as it goes, and has a person answer what is asked by it or by a run that it waits
/// for, until it has ended or is blocked by something that nobody answers here.
///
/// # Errors
/// As [`Follow::follow`], and if the terminal cannot be read.
pub(super) async fn follow_and_ask(
    context: &Context,
    follow: &mut Follow,
    shown: &RefCell<(Lines, Screen)>,
) -> Outcome<FollowEnd> {
    let show = |event: &EventRecord| {
        let (lines, screen) = &mut *shown.borrow_mut();
        lines.of(event).iter().for_each(|line| screen.show(line));
        screen.progress(lines.progress());
    };
    let asks_here = can_ask(context) && !context.printer.is_quiet();
    loop {
        let blocked = match follow.follow(None, CtrlC::Detaches, show).await? {
            // An answer does not end a pause.
            FollowEnd::Blocked(run) if asks_here && run.state.pause.is_none() => run,
            end @ (FollowEnd::Ended(_)
            | FollowEnd::Reached(_)
            | FollowEnd::Blocked(_)
            | FollowEnd::TimedOut
            | FollowEnd::Detached) => return Ok(end),
        };
        // The spinner is not drawn over what is typed.
        shown.borrow_mut().1.end();
        if *blocked.id() != follow.id {
            let agent = escaped_line(&blocked.spec.agent_name);
            context.printer.talk(with(DIM, &format!("{agent} {} asks:", blocked.id())));
        }
        let asking = ask(context, follow.client.clone(), &blocked);
        let is_answered = match follow.show_during(show, asking).await? {
            ControlFlow::Continue(is_answered) => is_answered,
            ControlFlow::Break(end) => {
                // What is said next does not stand behind the prompt. Ctrl-C has ended that line.
                if !matches!(end, FollowEnd::Detached) {
                    context.printer.say("");
                }
                return Ok(end);
            }
        };
        if !is_answered {
            let run = match follow.client.get(blocked.id().as_str()).await {
                Err(ControllerError::NotFound { .. }) => blocked,
                read => Box::new(read?),
            };
            // Somebody else may have answered.
            if needs_answer(&run, context.now()) {
                return Ok(FollowEnd::Blocked(run));
            }
        }
        let (lines, screen) = &mut *shown.borrow_mut();
        *screen = Screen::new(&context.printer, Notes::Stderr);
        screen.progress(lines.progress());
    }
}

/// Asks for everything that a run asks, in order, and gives each answer at once. False at the end
/// of the input, and if nothing is asked that the caller may see.
async fn ask(context: &Context, client: Client, run: &Run) -> Outcome<bool> {
    let id = run.id().as_str();
    let items = asked(&client, id).await?;
    for item in &items {
        let command = context.printer.command(&from_file(run.id(), item));
        let Some(answer) = typed(command, item).await? else {
            // What is said next does not stand behind the prompt.
            context.printer.say("");
            return Ok(false);
        };
        // Somebody else may have answered meanwhile.
        if let Err(error) = client.answer_shown(id, item, answer).await {
            let text = format!("! {}", escaped_line(&error.to_string()));
            context.printer.talk(with(NOTE, &text));
        }
    }
    Ok(!items.is_empty())
}

/// Everything that a run asks; nothing of one that the caller may not see.
pub(super) async fn asked(client: &Client, id: &str) -> Outcome<Vec<Item>> {
    match client.asks(id).await {
        Err(ControllerError::NotFound { .. }) => Ok(Vec::new()),
        asked => Ok(asked?),
    }
}
