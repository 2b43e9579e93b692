//! Subscribers that are still to be told of runs, and that nobody tells: they were renamed, or are in
//! the policy no more.

use std::collections::{BTreeMap, BTreeSet};

use taskrun_journal::dispatch::Dispatch;
use taskrun_journal::ids::RunId;
use taskrun_journal::store::StoreError;
use taskrun_policy::{is_terminal, is_transport};
use taskrun_runtime::Storage;

use crate::context::Context;
use crate::output::human;
use crate::shell;

/// The words about those of these subscribers that neither the policy at hand nor a living host has,
/// a line for each. Without a policy at hand nothing is known of them.
///
/// # Errors
/// [`StoreError`].
pub(super) async fn lines(
    context: &Context,
    storage: &Storage,
    dispatches: &[Dispatch],
) -> Result<Vec<String>, StoreError> {
    let Some(policy) = context.policy_at_hand() else { return Ok(Vec::new()) };
    let hosts = storage.hosts.hosts().await?;
    // Terminals and transports are in no policy: whoever has them comes for what is there.
    let is_known = |name: &str| {
        is_terminal(name)
            || is_transport(name)
            || policy.subscribers.contains_key(name)
            || hosts.iter().any(|host| host.subscribers.contains(name))
    };
    let mut gone: BTreeMap<&str, BTreeSet<&RunId>> = BTreeMap::new();
    let open = dispatches.iter().filter(|one| one.state.is_open());
    for key in open.map(|one| &one.key).filter(|key| !is_known(&key.subscriber)) {
        gone.entry(&key.subscriber).or_default().insert(&key.run);
    }
    Ok(gone.iter().map(|(name, runs)| text(context, name, runs)).collect())
}

fn text(context: &Context, name: &str, runs: &BTreeSet<&RunId>) -> String {
    let (of, run) = match runs.first() {
        Some(run) if runs.len() == 1 => (format!("run {run}"), run.as_str()),
        Some(_) | None => (human::count(runs.len() as u64, "run"), "RUN"),
    };
    let subscriber = shell::option("--subscriber", name, "SUBSCRIBER");
    let drop = context.printer.command(&format!("taskrun outbox drop {run} {subscriber}"));
    format!(
        "{name} is in no policy here, and is to be told of {of}: give it that name again, or forget \
         that with `{drop}`"
    )
}
