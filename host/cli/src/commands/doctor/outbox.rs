//! Dead letters: outcomes and events of which nobody is told any more; and events for subscribers
//! that are gone.

use taskrun_journal::delivery::ReportState;
use taskrun_journal::dispatch::{Dispatch, DispatchState};
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::store::{DispatchQuery, ReportQuery, StoreError};
use taskrun_runtime::Storage;

use super::super::gone_subscribers::GoneSubscribers;
use super::{Check, Health};
use crate::context::Context;
use crate::output::human;

/// Says how many dead letters there are, if there are any, and which subscribers nobody tells.
pub(super) async fn check(context: &Context, storage: &Storage) -> Result<Vec<Check>, StoreError> {
    let dead = dead_letters(context, storage).await?;
    Ok(dead.into_iter().chain(gone(context, storage).await?).collect())
}

/// The page of the events at some stages that the caller sees which begins behind this one.
async fn page(
    context: &Context,
    storage: &Storage,
    states: &[DispatchState],
    last: Option<&Dispatch>,
) -> Result<Vec<Dispatch>, StoreError> {
    let states = states.to_vec();
    let told = DispatchQuery::Scope { scope: context.principal().scope, states };
    storage.dispatches.dispatches(&told, last.map_or(0, |last| last.number), PAGE_MAX).await
}

/// The subscribers that are to be told of runs, and that neither the policy nor a living host has.
async fn gone(context: &Context, storage: &Storage) -> Result<Option<Check>, StoreError> {
    let Some(mut gone) = GoneSubscribers::look(context, storage).await? else { return Ok(None) };
    let states = [DispatchState::Pending, DispatchState::Taken];
    let mut told = page(context, storage, &states, None).await?;
    while !told.is_empty() {
        gone.add(storage, &told).await;
        told = page(context, storage, &states, told.last()).await?;
    }
    let lines = gone.lines(context);
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
    let states = [DispatchState::Dead];
    let mut told = page(context, storage, &states, None).await?;
    while !told.is_empty() {
        count += told.len() as u64;
        told = page(context, storage, &states, told.last()).await?;
    }
    Ok((count > 0).then(|| {
        let letters = human::count(count, "dead letter");
        let detail = format!("{letters}, of which nobody is told any more");
        Check::new("outbox", Health::Note, detail).hint(
            "see `taskrun outbox ls --state dead`; `taskrun outbox retry RUN` has it tried again, \
             and `taskrun outbox drop RUN` forgets it",
        )
    }))
}
