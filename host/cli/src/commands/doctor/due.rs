//! Runs that wait for a time, where no host is there to go on with them.

use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::status::Status;
use taskrun_journal::store::{Host, StoreError};
use taskrun_runtime::Storage;

use super::{Check, Health};
use crate::context::Context;
use crate::follow::due_later;
use crate::output::human;

/// Says how many runs are due later that no living host executes, and when the next one is.
pub(super) async fn check(
    context: &Context,
    storage: &Storage,
    hosts: &[Host],
) -> Result<Option<Check>, StoreError> {
    let (scope, now) = (context.principal().scope, context.now());
    let filter = ListFilter { status: vec![Status::Blocked], ..ListFilter::default() };
    let (mut after, mut count, mut next) = (None, 0, None);
    loop {
        let page = storage.store.list(&scope, &filter, after.as_ref(), PAGE_MAX).await?;
        let alone = page.runs.iter().filter(|run| !hosts.iter().any(|one| one.executes(&run.spec)));
        for due in alone.filter_map(|run| due_later(run, now)) {
            count += 1;
            next = Some(next.map_or(due, |next| due.min(next)));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(next.map(|next| {
        let is = if count == 1 { "is" } else { "are" };
        let runs = human::count(count, "run");
        let next = human::due(next, now);
        let detail = format!("{runs} {is} due later, the next {next}, no host runs");
        Check::new("due", Health::Note, detail)
            .hint("`taskrun host --service` stays and goes on with them when they are due")
    }))
}
