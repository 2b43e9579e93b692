//! Runs that wait for a time or for a host, where no host is there to go on with them.

use taskrun_journal::hold::Hold;
use taskrun_journal::list::{ListFilter, PAGE_MAX};
use taskrun_journal::status::Status;
use taskrun_journal::store::{Host, StoreError};
use taskrun_runtime::Storage;

use super::{Check, Health};
use crate::context::Context;
use crate::follow::due_later;
use crate::output::human;

/// Says how many runs could go on that no living host executes, how many are due later, and when
/// the next of these is.
pub(super) async fn check(
    context: &Context,
    storage: &Storage,
    hosts: &[Host],
) -> Result<Vec<Check>, StoreError> {
    let (scope, now) = (context.principal().scope, context.now());
    let status = vec![Status::Queued, Status::Running, Status::Blocked];
    let filter = ListFilter { status, ..ListFilter::default() };
    let (mut after, mut waiting, mut count, mut next) = (None, 0, 0, None);
    loop {
        let page = storage.store.list(&scope, &filter, after.as_ref(), PAGE_MAX).await?;
        let alone = page.runs.iter().filter(|run| !hosts.iter().any(|one| one.executes(&run.spec)));
        for run in alone.filter(|run| matches!(run.state.hold, Hold::Wanted { .. })) {
            let Some(due) = due_later(run, now) else {
                waiting += 1;
                continue;
            };
            count += 1;
            next = Some(next.map_or(due, |next| due.min(next)));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let waits = (waiting > 0).then(|| {
        let (wait, them) = if waiting == 1 { ("waits", "it") } else { ("wait", "them") };
        let runs = human::count(waiting, "run");
        let detail = format!("{runs} {wait} for a host, and none that lives executes {them}");
        Check::new("waiting", Health::Note, detail)
            .hint("`taskrun wait RUN` starts one, as `taskrun run` does")
    });
    let due = next.map(|next| {
        let is = if count == 1 { "is" } else { "are" };
        let runs = human::count(count, "run");
        let next = human::due(next, now);
        let detail = format!("{runs} {is} due later, the next {next}, no host runs");
        Check::new("due", Health::Note, detail)
            .hint("`taskrun host --service` stays and goes on with them when they are due")
    });
    Ok(waits.into_iter().chain(due).collect())
}
