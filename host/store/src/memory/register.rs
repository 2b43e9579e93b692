//! The memory, as the admission of a run asks about it.

use std::convert::Infallible;

use taskrun_journal::hold::Lane;
use taskrun_journal::ids::RunId;
use taskrun_journal::pin::Ready;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, HostLoad, Rank, Register, TreeSize};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Host, SessionKey};
use taskrun_journal::time::Timestamp;

use super::lists::ListKey;
use super::state::State;

impl Register for State {
    type Error = Infallible;

    fn keyed(&mut self, tenant: &str, key: &str) -> Result<Option<(String, Run)>, Infallible> {
        let found = self.keys.get(&(tenant.to_owned(), key.to_owned()));
        Ok(found.and_then(|(fingerprint, id)| {
            Some((fingerprint.clone(), self.runs.get(id)?.run.clone()))
        }))
    }

    fn completed(
        &mut self,
        task: u64,
        since: Timestamp,
        fits: &dyn Fn(&Run) -> bool,
    ) -> Result<Option<Run>, Infallible> {
        let Some(runs) = self.tasks.get(&task) else { return Ok(None) };
        let young = runs.range((since, 0)..).rev();
        let mut runs = young.filter_map(|(_, id)| self.runs.get(id)).map(|entry| &entry.run);
        Ok(runs.find(|run| fits(run)).cloned())
    }

    fn status(&mut self, id: &RunId) -> Result<Option<Status>, Infallible> {
        Ok(self.runs.get(id).map(|entry| entry.run.status()))
    }

    fn has_session_ended(&mut self, key: &SessionKey) -> Result<bool, Infallible> {
        let session = self.timelines.get(key);
        Ok(session.is_some_and(|session| session.ended_at.is_some()))
    }

    fn named(&mut self, spec: &RunSpec) -> Result<Option<RunId>, Infallible> {
        let place = schedule::name_place(spec).map(|place| place.map(str::to_owned));
        Ok(place.and_then(|place| self.names.get(&place)).cloned())
    }

    fn autonomous(&mut self, spec: &RunSpec) -> Result<Option<Run>, Infallible> {
        let place = schedule::autonomous_place(spec);
        let session = ListKey::Session(spec.tenant.clone(), spec.parent_session_id.clone());
        let mut runs = self.lists.runs(&session).filter_map(|id| self.runs.get(id));
        let open = runs.find(|entry| {
            !entry.run.status().is_terminal()
                && schedule::autonomous_place(&entry.run.spec) == place
        });
        Ok(open.map(|entry| entry.run.clone()))
    }

    fn queued(&mut self, spec: &RunSpec) -> Result<u64, Infallible> {
        Ok(self.queue.waiting(spec))
    }

    fn tree(&mut self, spec: &RunSpec) -> Result<TreeSize, Infallible> {
        let runs = self.lists.len(&ListKey::Counted(spec.root_run_id.clone())) as u64;
        let held = u64::from(self.queue.held(&spec.root_run_id));
        Ok(TreeSize { runs, held })
    }

    fn has_open_serial(&mut self, spec: &RunSpec) -> Result<bool, Infallible> {
        Ok(self.queue.first_serial(&schedule::turn_of(spec)).is_some())
    }

    fn first(
        &mut self,
        ready: &Ready,
        tree_slots: u32,
        now: Timestamp,
    ) -> Result<Option<Rank>, Infallible> {
        self.set_now(now);
        Ok(self.queue.first((ready, Lane::Resume), tree_slots).map(|(rank, _)| rank))
    }

    fn is_due(&mut self, run: &RunId) -> Result<bool, Infallible> {
        Ok(self.outbox.is_due(run))
    }

    fn hosts(&mut self, spec: &RunSpec) -> Result<Vec<HostLoad>, Infallible> {
        let hosts = self.hosts.values().filter(|host| !host.is_leaving() && host.executes(spec));
        let held = |host: &Host| self.held.get(&host.id).map_or(0, |runs| runs.len() as u64);
        let load = |host: &Host| {
            let ready = host.ready();
            HostLoad { slots: host.slots, held: held(host), ready }
        };
        Ok(hosts.map(load).collect())
    }
}
