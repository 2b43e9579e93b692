//! Runs of a session that take turns: each begins when those that were accepted before it have
//! ended.

use taskrun_journal::event::Event;
use taskrun_journal::list::Scope;
use taskrun_journal::store::{SessionKey, Sessions, StoreError};

use crate::book::Book;
use crate::client::Client;
use crate::load::SERIAL_SESSION;

/// Events that are read at once.
const PAGE: usize = 500;

/// Holds the order in which events of all serial runs became durable, whichever host wrote them,
/// to their turns.
///
/// # Errors
/// Those of the store.
pub(crate) async fn check(book: &mut Book, client: &Client) -> Result<(), StoreError> {
    let key = SessionKey::of(&Scope::tenant("default"), SERIAL_SESSION);
    let mut events = Vec::new();
    let mut after = 0;
    loop {
        let page = client.store.read_session(&key, after, PAGE).await?;
        if page.events.is_empty() {
            break;
        }
        after = page.next;
        events.extend(page.events);
    }
    let steps =
        events.iter().filter_map(|one| Some((one.run.as_str(), step(&one.recorded.event)?)));
    wrong(steps).into_iter().for_each(|(run, what)| book.say(&run, what));
    Ok(())
}

/// The meaning of an event for the turns of a session.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Accepted,
    Begins,
    Ends,
}

fn step(event: &Event) -> Option<Step> {
    if matches!(event, Event::Queued { spec } if spec.serial) {
        return Some(Step::Accepted);
    }
    if matches!(event, Event::Started { .. }) {
        return Some(Step::Begins);
    }
    matches!(event, Event::Finished { .. }).then_some(Step::Ends)
}

/// Everything that is wrong with what happened in a session, in this order: the run, and what.
pub(crate) fn wrong<'a>(steps: impl Iterator<Item = (&'a str, Step)>) -> Vec<(String, String)> {
    let (mut open, mut wrong) = (Vec::new(), Vec::new());
    for (run, step) in steps {
        match step {
            Step::Accepted => open.push(run),
            Step::Begins if open.first() == Some(&run) => {}
            Step::Begins => {
                wrong.push((run.to_owned(), format!("begins while these are open: {open:?}")));
            }
            Step::Ends => open.retain(|one| *one != run),
        }
    }
    wrong
}
