//! Dead letters: outcomes and events of which nobody is told any more; and events for subscribers
//! that are gone.

use taskrun_journal::delivery::ReportState;
use taskrun_journal::dispatch::{Dispatch, DispatchState};
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::store::{DispatchQuery, ReportQuery, StoreError};
use taskrun_runtime::Storage;

use super::super::gone_subscribers;
use super::{Check, Health};
use crate::context::Context;
use crate::output::human;

/// Says how many dead letters there are, if there are any, and which subscribers nobody tells.
pub(super) async fn check(context: &Context, storage: &Storage) -> Result<Vec<Check>, StoreError> {
    let dead = dead_letters(context, storage).await?;
    Ok(dead.into_iter().chain(gone(context, storage).await?).collect())
}

/// Gives the events at some stages that the caller sees to `take`, page by page.
async fn dispatches(
    context: &Context,
    storage: &Storage,
    states: Vec<DispatchState>,
    mut take: impl FnMut(Vec<Dispatch>) + Send,
) -> Result<(), StoreError> {
    let told = DispatchQuery::Scope { scope: context.principal().scope, states };
    let mut after = 0;
    loop {
        let page = storage.dispatches.dispatches(&told, after, PAGE_MAX).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.number;
        take(page);
    }
}

/// The subscribers that are to be told of runs, and that neither the policy nor a living host has.
async fn gone(context: &Context, storage: &Storage) -> Result<Option<Check>, StoreError> {
    let states = vec![DispatchState::Pending, DispatchState::Taken];
    let mut open = Vec::new();
    dispatches(context, storage, states, |page| open.extend(page)).await?;
    let lines = gone_subscribers::lines(context, storage, &open).await?;
    Ok((!lines.is_empty()).then(|| Check::new("subscribers", Health::Note, lines.join("\n"))))
}

async fn dead_letters(context: &Context, storage: &Storage) -> Result<Option<Check>, StoreError> {
    let scope = context.principal().scope;
    let told = ReportQuery::Scope { scope, states: vec![ReportState::Dead] };
    let (mut count, mut after) = (0, 0);
    loop {
        let page = storage.store.reports(&told, after, PAGE_MAX).await?;
        let Some(last) = page.last() else { break };
        (count, after) = (count + page.len() as u64, last.place);
    }
    let dead = vec![DispatchState::Dead];
    dispatches(context, storage, dead, |page| count += page.len() as u64).await?;
    Ok((count > 0).then(|| {
        let letters = human::count(count, "dead letter");
        let detail = format!("{letters}, of which nobody is told any more");
        Check::new("outbox", Health::Note, detail).hint(
            "see `taskrun outbox ls --state dead`; `taskrun outbox retry RUN` has it tried again, \
             and `taskrun outbox drop RUN` forgets it",
        )
    }))
}
