//! Which run is meant: a whole id, the beginning of one, or `@last`.

use taskrun::controller::Controller;
use taskrun::error::ControllerError;
use taskrun::list::{Cursor, ListFilter, PAGE_MAX, Scope};
use taskrun::run::Run;

use crate::failure::{Failure, Outcome};
use crate::output::human;

/// Fewest characters that may stand for an id; fewer are more likely a mistake.
pub(crate) const PREFIX_CHARS_MIN: usize = 4;
/// Most pages that are searched for a prefix: the ten thousand runs changed last.
const PAGES_MAX: usize = 50;
/// Candidates that an error names.
const CANDIDATES_NAMED_MAX: usize = 5;

/// The run that `text` means.
///
/// # Errors
/// If there is none, or more than one.
pub(crate) async fn resolve(controller: &Controller, scope: &Scope, text: &str) -> Outcome<Run> {
    if text == "@last" {
        return last(controller, scope).await;
    }
    if text.starts_with('@') {
        return Err(Failure::usage("not-found", format!("{text:?} means no run"))
            .hint("write @last for the run started last, or an id from `taskrun ps -a`"));
    }
    match controller.get(scope, text).await {
        Ok(run) => return Ok(run),
        Err(ControllerError::NotFound { .. }) => {}
        Err(other) => return Err(other.into()),
    }
    if text.chars().count() < PREFIX_CHARS_MIN {
        let message = format!("{text:?} is too short to stand for a run");
        return Err(Failure::usage("not-found", message).hint(format!(
            "give at least {PREFIX_CHARS_MIN} characters of an id from `taskrun ps -a`, or @last"
        )));
    }
    let mut found = Vec::new();
    let searched_all = pages(controller, scope, |runs| {
        found.extend(runs.iter().filter(|run| run.id().as_str().starts_with(text)).cloned());
        true
    })
    .await?;
    match found.len() {
        0 => {
            let failure = Box::<Failure>::from(ControllerError::NotFound { id: text.to_owned() });
            Err(if searched_all {
                failure
            } else {
                failure.hint(
                    "only the runs changed last are searched for a beginning; give the whole id",
                )
            })
        }
        1 => Ok(found.remove(0)),
        _ => Err(ambiguous(text, &found)),
    }
}

fn ambiguous(text: &str, found: &[Run]) -> Box<Failure> {
    let count = human::count(found.len() as u64, "run");
    let mut failure = Failure::usage("ambiguous", format!("{text:?} is the beginning of {count}"))
        .hint("give more of the id");
    failure.causes = found
        .iter()
        .take(CANDIDATES_NAMED_MAX)
        .map(|run| format!("{} ({}, {})", run.id(), run.spec.agent_name, run.status()))
        .collect();
    if found.len() > CANDIDATES_NAMED_MAX {
        failure.causes.push(format!("and {} more", found.len() - CANDIDATES_NAMED_MAX));
    }
    failure
}

async fn last(controller: &Controller, scope: &Scope) -> Outcome<Run> {
    let mut newest: Option<Run> = None;
    pages(controller, scope, |runs| {
        let candidates = newest.take().into_iter().chain(runs.iter().cloned());
        newest = candidates.max_by(|one, other| {
            (one.spec.created_at, one.id()).cmp(&(other.spec.created_at, other.id()))
        });
        // Runs further down changed, and so were accepted, before the newest one was.
        let oldest_change = runs.last().map(|run| run.state.updated_at);
        match (&newest, oldest_change) {
            (Some(newest), Some(change)) => change >= newest.spec.created_at,
            (None, _) | (_, None) => false,
        }
    })
    .await?;
    newest.ok_or_else(|| {
        Failure::usage("not-found", "there are no runs yet")
            .hint("start one with `taskrun run AGENT TASK`")
    })
}

/// Shows pages of all runs until `go_on` says no; says whether the end was reached.
async fn pages(
    controller: &Controller,
    scope: &Scope,
    mut go_on: impl FnMut(&[Run]) -> bool,
) -> Outcome<bool> {
    let mut after: Option<Cursor> = None;
    for _ in 0..PAGES_MAX {
        let page = controller.list(scope, &ListFilter::default(), after.as_ref(), PAGE_MAX).await?;
        if !go_on(&page.runs) {
            return Ok(false);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(true),
        }
    }
    Ok(false)
}
