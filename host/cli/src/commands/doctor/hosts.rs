//! The hosts of the data directory, and what these are doing.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;
use taskrun_journal::pin::Pins;
use taskrun_journal::store::{Host, PresentHost};
use taskrun_journal::time::{Timestamp, millis};
use taskrun_policy::Policy;
use taskrun_runtime::{AgentLoad, Storage, agent_loads};

use super::super::policy_show::{HostView, OwnPolicy, views};
use super::{Check, Health, due, gone};
use crate::context::Context;
use crate::failure::Failure;
use crate::follow::Attendance;
use crate::output::load_text;

/// A host, as programs are shown it.
#[derive(Serialize)]
pub(super) struct HostRow {
    id: String,
    pid: u32,
    policy: String,
    agents: Vec<String>,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    started_at: Timestamp,
    slots: u32,
    lease_ms: u64,
    /// The time for which it has not reported, where its process exists and it does not live.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent_ms: Option<u64>,
}

impl From<PresentHost> for HostRow {
    fn from(PresentHost { host, silence }: PresentHost) -> Self {
        let Host { id, pid, policy, agents, subscribers: _, started_at, slots, lease } = host;
        let (lease_ms, silent_ms) = (millis(lease), silence.map(millis));
        let agents = agents.iter().cloned().collect();
        Self { id: id.to_string(), pid, policy, agents, started_at, slots, lease_ms, silent_ms }
    }
}

/// The checks of hosts whose processes exist, and of runs that none of them goes on with.
pub(super) async fn checks(
    context: &Context,
    dir: &Path,
    storage: &Storage,
    policy: Option<&Policy>,
    present: &[PresentHost],
) -> Vec<Check> {
    let mut checks = vec![in_force(context, dir, policy, present)];
    let hosts: Vec<Host> = present.iter().map(|one| one.host.clone()).collect();
    checks.extend(loads(context, storage, agent_loads(dir, &hosts)).await);
    let living = present.iter().filter(|one| one.silence.is_none() && !one.host.is_leaving());
    let living = living.map(|one| one.host.clone()).collect();
    let attendance = Attendance::new(context, living, policy.cloned());
    match due::check(context, storage, &attendance).await {
        Ok(check) => checks.extend(check),
        Err(error) => checks.push(Check::failed("due", &Box::<Failure>::from(error))),
    }
    match gone::check(context, storage, &attendance).await {
        Ok(check) => checks.extend(check),
        Err(error) => checks.push(Check::failed("agents", &Box::<Failure>::from(error))),
    }
    checks
}

/// The policies that hosts execute runs under.
fn in_force(
    context: &Context,
    dir: &Path,
    policy: Option<&Policy>,
    present: &[PresentHost],
) -> Check {
    if present.is_empty() {
        let detail = "none lives; `taskrun run` starts one when there is work";
        return Check::new("hosts", Health::Good, context.printer.completed(detail));
    }
    let file = match policy {
        Some(_) => None,
        // A host may have an earlier text of a file that has a mistake.
        None => context.policy_file().ok().flatten(),
    };
    let own = match (policy, &file) {
        (Some(policy), _) => Some(OwnPolicy { path: &policy.path, digest: Some(&policy.digest) }),
        (None, Some(file)) => Some(OwnPolicy { path: file, digest: None }),
        (None, None) => None,
    };
    let views = views(dir, present, own);
    let mut lines: Vec<String> = views.iter().map(|host| host.text(context.now())).collect();
    // Hosts of one policy leave the same agents out.
    let left_out: BTreeSet<String> = views.iter().flat_map(HostView::left_out_lines).collect();
    let hint = if views.iter().any(HostView::is_behind) {
        "a text with a mistake changes nothing: correct it, and see `taskrun policy check`"
    } else if views.iter().any(HostView::is_silent) {
        "a host that does not report stands still, or cannot write to the store, as on a full \
         disk; it goes on when it can"
    } else if !left_out.is_empty() {
        "correct what `taskrun agent check` shows: until then no new run of such an agent begins, \
         and entries wait for its heartbeat in vain"
    } else {
        return Check::new("hosts", Health::Good, lines.join("\n"));
    };
    lines.extend(left_out);
    Check::new("hosts", Health::Note, lines.join("\n")).hint(hint)
}

/// The agents that hosts are loading, or could not load; of hosts that are gone as far as open runs
/// still want them.
async fn loads(context: &Context, storage: &Storage, loads: Vec<AgentLoad>) -> Option<Check> {
    let open = match loads.iter().all(|load| load.lives) {
        true => Vec::new(),
        // Where the store cannot be read other checks say so.
        false => storage.store.pins(None).await.unwrap_or_default(),
    };
    let is_open = |load: &AgentLoad| open.iter().flat_map(Pins::all).any(|pin| pin == load.pin);
    let loads = loads.iter().filter(|load| load.lives || is_open(load));
    let lines: Vec<String> =
        loads.map(|one| load_text(one, context.now(), &context.printer)).collect();
    (!lines.is_empty()).then(|| Check::new("agents", Health::Note, lines.join("\n")))
}
