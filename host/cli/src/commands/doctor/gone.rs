//! Open runs of agents that the policy does not have any more.

use std::collections::BTreeMap;

use taskrun_journal::list::ListFilter;
use taskrun_journal::run::Run;
use taskrun_journal::store::StoreError;
use taskrun_runtime::Storage;

use super::super::policy_check::GoneAgent;
use super::{Check, Health};
use crate::context::Context;
use crate::follow::Attendance;

/// Names the agents that neither the policy nor a living host has, and that have open runs which
/// were accepted under it.
pub(super) async fn check(
    context: &Context,
    storage: &Storage,
    attendance: &Attendance,
) -> Result<Option<Check>, StoreError> {
    let mut gone: BTreeMap<String, u64> = BTreeMap::new();
    let count = |run: &Run| {
        // Those of runs above it are told of elsewhere.
        if let Some(agent) = attendance.gone(run).filter(|agent| *agent == run.spec.agent_name) {
            *gone.entry(agent).or_default() += 1;
        }
    };
    storage.each_run(&context.principal().scope, &ListFilter::open(), count).await?;
    let gone = gone.into_iter().map(|(name, open_runs)| GoneAgent { name, open_runs }.text());
    let lines: Vec<String> = gone.collect();
    Ok((!lines.is_empty()).then(|| {
        Check::new("agents", Health::Note, lines.join("\n")).hint(
            "give the policy an agent of that name again, or cancel its runs; `taskrun ps` shows them",
        )
    }))
}
