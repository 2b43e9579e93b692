//! Dead letters: outcomes and events of which nobody is told any more.

use taskrun_journal::delivery::ReportState;
use taskrun_journal::dispatch::DispatchState;
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::store::{DispatchQuery, ReportQuery, StoreError};
use taskrun_runtime::Storage;

use super::{Check, Health};
use crate::context::Context;
use crate::output::human;

/// Says how many dead letters there are, if there are any.
pub(super) async fn check(
    context: &Context,
    storage: &Storage,
) -> Result<Option<Check>, StoreError> {
    let scope = context.principal().scope;
    let told = ReportQuery::Scope { scope: scope.clone(), states: vec![ReportState::Dead] };
    let (mut count, mut after) = (0, 0);
    loop {
        let page = storage.store.reports(&told, after, PAGE_MAX).await?;
        let Some(last) = page.last() else { break };
        (count, after) = (count + page.len() as u64, last.place);
    }
    let told = DispatchQuery::Scope { scope, states: vec![DispatchState::Dead] };
    after = 0;
    loop {
        let page = storage.dispatches.dispatches(&told, after, PAGE_MAX).await?;
        let Some(last) = page.last() else { break };
        (count, after) = (count + page.len() as u64, last.number);
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
