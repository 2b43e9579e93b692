//! Open runs of agents that the policy does not have any more.

use taskrun_journal::list::ListFilter;
use taskrun_journal::store::{Host, StoreError};
use taskrun_policy::Policy;
use taskrun_runtime::{Storage, runs_by_pin};

use super::super::policy_check::gone;
use super::{Check, Health};
use crate::context::Context;

/// Names the agents that neither the policy nor a living host has, and that have open runs.
pub(super) async fn check(
    context: &Context,
    storage: &Storage,
    policy: &Policy,
    hosts: &[Host],
) -> Result<Option<Check>, StoreError> {
    let scope = context.principal().scope;
    let open = runs_by_pin(storage, &scope, &ListFilter::open()).await?;
    let is_nowhere = |name: &String| hosts.iter().all(|host| !host.agents.contains(name));
    let gone = gone(&open, policy).into_iter().filter(|agent| is_nowhere(&agent.name));
    let lines: Vec<String> = gone.map(|agent| agent.text()).collect();
    Ok((!lines.is_empty()).then(|| {
        Check::new("agents", Health::Note, lines.join("\n")).hint(
            "give the policy an agent of that name again, or cancel its runs; `taskrun ps` shows them",
        )
    }))
}
