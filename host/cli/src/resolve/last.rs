//! The run that was started last, but for those that agents and hosts start.

use std::collections::HashMap;

use taskrun::controller::Client;
use taskrun::error::ControllerError;
use taskrun_journal::ids::RunId;
use taskrun_journal::list::Scope;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::time::Timestamp;

use super::Pages;
use crate::failure::{Failure, Outcome};

/// The run that was started last, see [`Starters`]; without such a one the last of all.
pub(super) async fn last(client: &Client) -> Outcome<Run> {
    let (mut newest, mut newest_of_all): (Option<Run>, Option<Run>) = (None, None);
    let (mut pages, mut starters) = (Pages::of(client), Starters::of(client));
    while let Some(runs) = pages.next().await? {
        for run in &runs {
            if is_newer(run, newest_of_all.as_ref()) {
                newest_of_all = Some(run.clone());
            }
            if is_newer(run, newest.as_ref()) && starters.is_asked_for(&run.spec).await? {
                newest = Some(run.clone());
            }
        }
        // Runs further down changed, and so were accepted, before the newest one was.
        let oldest_change = runs.last().map(|run| run.state.updated_at);
        let may_be_newer = match (&newest, oldest_change) {
            (Some(newest), Some(change)) => change >= newest.spec.created_at,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if !may_be_newer {
            break;
        }
    }
    let newest = newest.or(newest_of_all);
    newest.ok_or_else(|| {
        let scope = &client.principal().scope;
        if scope.owner_user_id.is_some() || scope.parent_session_id.is_some() {
            return Failure::usage("not-found", "no run fits").hint(
                "@last is the last one of --owner and --session; `taskrun ps -a` lists the runs",
            );
        }
        Failure::usage("not-found", "there are no runs yet")
            .hint("start one with `taskrun run AGENT TASK`")
    })
}

/// True if a run was accepted later than another one, if there is one.
fn is_newer(run: &Run, than: Option<&Run>) -> bool {
    fn age(run: &Run) -> (Timestamp, &RunId) {
        (run.spec.created_at, run.id())
    }
    than.is_none_or(|than| age(than) < age(run))
}

/// The runs beneath which others were started, as far as they were looked at.
struct Starters {
    client: Client,
    known: HashMap<RunId, Option<Run>>,
}

impl Starters {
    /// Looks at them in the whole tenant: a person may put a run of one session beneath a run of
    /// another one.
    fn of(client: &Client) -> Self {
        let tenant = Scope::tenant(&client.principal().scope.tenant);
        Self { client: client.controller().at(&tenant), known: HashMap::new() }
    }

    /// True if a run was asked for from outside. An agent asks from the session of its own run, and
    /// a person who puts a run beneath that one from any other. The host starts nudges, and batch
    /// runs of heartbeats.
    async fn is_asked_for(&mut self, spec: &RunSpec) -> Outcome<bool> {
        if spec.is_nudge() || !spec.entries.is_empty() {
            return Ok(false);
        }
        let Some(above) = &spec.parent_run_id else { return Ok(true) };
        let Some(above) = self.run(above).await? else {
            // It was removed. A first run is asked for from the session of those that a person puts
            // beneath it.
            return Ok(spec.root_session_id.is_none());
        };
        let of_agent = above.execution().map(|execution| &execution.child_session_id);
        Ok(of_agent != Some(&spec.parent_session_id))
    }

    /// A run; `None` for one that was removed.
    async fn run(&mut self, id: &RunId) -> Outcome<Option<&Run>> {
        let found = match self.known.remove(id) {
            Some(known) => known,
            None => match self.client.get(id.as_str()).await {
                Ok(run) => Some(run),
                Err(ControllerError::NotFound { .. }) => None,
                Err(other) => return Err(other.into()),
            },
        };
        Ok(self.known.entry(id.clone()).or_insert(found).as_ref())
    }
}
