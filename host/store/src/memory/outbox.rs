//! Reports of ended runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

use taskrun_journal::delivery::{
    Conversation, DeadReason, Delivery, Report, ReportState, ReportsTaken,
};
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::schedule::{self, ReportRequest, Settlement, Succession};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::{ReportChange, ReportQuery, SessionKey};
use taskrun_journal::time::Timestamp;

use super::state::State;

/// Pending reports by place.
type Pending = BTreeMap<u64, RunId>;
/// Tenant, owner and conversation.
type ConversationKey = (String, String, Conversation);

#[derive(Clone, Default)]
pub(super) struct Outbox {
    reports: HashMap<RunId, Row>,
    places: BTreeMap<u64, RunId>,
    trees: HashMap<RunId, Pending>,
    conversations: BTreeMap<ConversationKey, Pending>,
    /// By the runs that were told and have not ended.
    taken: HashMap<RunId, BTreeSet<RunId>>,
    /// Those that are due, now or later.
    due: Pending,
    /// The same by the agents whose conversations are told.
    due_to: HashMap<String, Pending>,
    /// By the open runs for whose end they wait.
    waiting: HashMap<RunId, BTreeSet<RunId>>,
}

#[derive(Clone)]
struct Row {
    report: Report,
    root: RunId,
    conversation: Option<ConversationKey>,
    /// The runs above, the nearest first.
    above: Vec<RunId>,
    /// See [`ReportRequest::delay`].
    delay: Option<Duration>,
    /// The open run for whose end it waits.
    waits_for: Option<RunId>,
}

impl Outbox {
    fn add(
        &mut self,
        spec: &RunSpec,
        place: u64,
        conversation: Option<&Conversation>,
        (request, look): (&ReportRequest, Look),
    ) {
        let report = Report {
            run: spec.id.clone(),
            place,
            state: ReportState::Pending,
            attempts: 0,
            taken_by: None,
            reason: None,
            due: look.due,
            notify: conversation.map(|conversation| conversation.agent.clone()),
        };
        let key =
            |one: &Conversation| (spec.tenant.clone(), spec.owner_user_id.clone(), one.clone());
        let conversation = conversation.map(key);
        self.places.insert(place, spec.id.clone());
        let delay = request.delay.filter(|_| conversation.is_some());
        let (root, above) = (spec.root_run_id.clone(), request.delivery.above.clone());
        let row = Row { report, root, conversation, above, delay, waits_for: look.waits_for };
        self.index(&row);
        self.reports.insert(spec.id.clone(), row);
    }

    fn index(&mut self, row: &Row) {
        let Report { run, place, state, taken_by, .. } = &row.report;
        match (state, taken_by) {
            (ReportState::Pending, _) => {
                self.trees.entry(row.root.clone()).or_default().insert(*place, run.clone());
                if let Some(key) = &row.conversation {
                    self.conversations.entry(key.clone()).or_default().insert(*place, run.clone());
                }
                if row.report.due.is_some() {
                    self.due.insert(*place, run.clone());
                    if let Some(agent) = &row.report.notify {
                        let due = self.due_to.entry(agent.clone()).or_default();
                        due.insert(*place, run.clone());
                    }
                }
                if let Some(waits_for) = &row.waits_for {
                    self.waiting.entry(waits_for.clone()).or_default().insert(run.clone());
                }
            }
            (ReportState::Taken, Some(taker)) => {
                self.taken.entry(taker.clone()).or_default().insert(run.clone());
            }
            (ReportState::Taken | ReportState::Delivered | ReportState::Dead, _) => {}
        }
    }

    fn unindex(&mut self, row: &Row) {
        let Report { run, place, state, taken_by, .. } = &row.report;
        match (state, taken_by) {
            (ReportState::Pending, _) => {
                if let Some(pending) = self.trees.get_mut(&row.root) {
                    pending.remove(place);
                    if pending.is_empty() {
                        self.trees.remove(&row.root);
                    }
                }
                if let Some(key) = &row.conversation
                    && let Some(pending) = self.conversations.get_mut(key)
                {
                    pending.remove(place);
                    if pending.is_empty() {
                        self.conversations.remove(key);
                    }
                }
                self.due.remove(place);
                if let Some(agent) = &row.report.notify
                    && let Some(due) = self.due_to.get_mut(agent)
                {
                    due.remove(place);
                    if due.is_empty() {
                        self.due_to.remove(agent);
                    }
                }
                if let Some(waits_for) = &row.waits_for
                    && let Some(waiting) = self.waiting.get_mut(waits_for)
                {
                    waiting.remove(run);
                    if waiting.is_empty() {
                        self.waiting.remove(waits_for);
                    }
                }
            }
            (ReportState::Taken, Some(taker)) => {
                if let Some(taken) = self.taken.get_mut(taker) {
                    taken.remove(run);
                    if taken.is_empty() {
                        self.taken.remove(taker);
                    }
                }
            }
            (ReportState::Taken | ReportState::Delivered | ReportState::Dead, _) => {}
        }
    }

    fn change(&mut self, run: &RunId, change: impl FnOnce(&mut Row)) {
        let Some(mut row) = self.reports.remove(run) else { return };
        self.unindex(&row);
        change(&mut row);
        self.index(&row);
        self.reports.insert(run.clone(), row);
    }

    fn state_of(&self, run: &RunId) -> Option<ReportState> {
        self.reports.get(run).map(|row| row.report.state)
    }

    pub(super) fn remove(&mut self, run: &RunId) {
        if let Some(row) = self.reports.remove(run) {
            self.unindex(&row);
            self.places.remove(&row.report.place);
        }
    }

    /// False if a run would be told of a report that is not pending.
    pub(super) fn may_take(&self, taken: Option<&ReportsTaken>) -> bool {
        match taken {
            Some(ReportsTaken::Told(runs)) => {
                runs.iter().all(|run| self.state_of(run) == Some(ReportState::Pending))
            }
            Some(ReportsTaken::Awaited(_)) | None => true,
        }
    }

    pub(super) fn take(&mut self, taker: &RunId, taken: &ReportsTaken) {
        let (ReportsTaken::Told(runs) | ReportsTaken::Awaited(runs)) = taken;
        for run in runs {
            if self.state_of(run) == Some(ReportState::Pending) {
                self.change(run, |row| {
                    row.report.state = ReportState::Taken;
                    row.report.taken_by = Some(taker.clone());
                    row.look(Look::default());
                });
            }
        }
    }

    /// The reports of which a run was told are delivered, whatever becomes of it.
    pub(super) fn deliver(&mut self, taker: &RunId) {
        for run in self.taken.get(taker).cloned().unwrap_or_default() {
            self.change(&run, |row| row.report.state = ReportState::Delivered);
        }
    }

    /// True if the report of a run is pending.
    pub(super) fn is_pending(&self, run: &RunId) -> bool {
        self.state_of(run) == Some(ReportState::Pending)
    }

    /// True if a host is to look for the report of a run.
    pub(super) fn is_due(&self, run: &RunId) -> bool {
        self.reports
            .get(run)
            .is_some_and(|row| row.report.state == ReportState::Pending && row.report.due.is_some())
    }

    /// The reports of these runs wait for the end of the nudge that was started for them.
    pub(super) fn nudge(&mut self, nudge: &RunSpec) {
        for run in &nudge.nudge_for {
            let look = Look { due: None, waits_for: Some(nudge.id.clone()) };
            self.change(run, |row| row.look(look));
        }
    }

    /// The report of a run is gone, if nobody was told.
    pub(super) fn withdraw(&mut self, run: &RunId) {
        if self.state_of(run) == Some(ReportState::Pending) {
            self.remove(run);
        }
    }

    /// True if one of these agents is to be nudged, now or later.
    pub(super) fn are_due(&self, agents: &BTreeSet<String>) -> bool {
        agents.iter().any(|agent| self.due_to.contains_key(agent))
    }

    /// The session of some conversations ended.
    pub(super) fn end_session(&mut self, ended: &SessionKey) {
        let is_of = |(tenant, owner, conversation): &ConversationKey| {
            let key = SessionKey {
                tenant: tenant.clone(),
                owner_user_id: Some(owner.clone()),
                parent_app_name: conversation.app.clone(),
                id: conversation.session.clone(),
            };
            schedule::covers(ended, &key)
        };
        let of = self.conversations.iter().filter(|(key, _)| is_of(key));
        let runs: Vec<RunId> = of.flat_map(|(_, pending)| pending.values().cloned()).collect();
        for run in runs {
            self.change(&run, |row| {
                row.report.state = ReportState::Dead;
                row.report.reason = Some(DeadReason::SessionEnded);
                row.look(Look::default());
            });
        }
    }
}

impl Row {
    fn look(&mut self, Look { due, waits_for }: Look) {
        self.report.due = due;
        self.waits_for = waits_for;
    }
}

/// The thing that is waited for before somebody is made to look for a pending report.
#[derive(Default)]
struct Look {
    due: Option<Timestamp>,
    waits_for: Option<RunId>,
}

impl State {
    /// The wait of a pending report from a moment on, with the pause of
    /// [`schedule::Settled::pause`].
    fn look_for(&self, row: &Row, at: Timestamp, pause: Option<Duration>) -> Look {
        let nearest = row.above.iter().find(|id| self.is_open(id));
        self.look(nearest, row.delay, at, pause)
    }

    fn look(
        &self,
        nearest: Option<&RunId>,
        delay: Option<Duration>,
        at: Timestamp,
        pause: Option<Duration>,
    ) -> Look {
        match nearest {
            Some(open) => Look { due: None, waits_for: delay.map(|_| open.clone()) },
            None => Look { due: schedule::due(at, delay, pause), waits_for: None },
        }
    }

    /// Settles the reports of which a run was told that has ended.
    pub(super) fn settle(&mut self, taker: &Run, settlement: Settlement) {
        let at = taker.state.updated_at;
        for run in self.outbox.taken.get(taker.id()).cloned().unwrap_or_default() {
            self.settle_one(&run, settlement, at);
        }
    }

    fn settle_one(&mut self, run: &RunId, settlement: Settlement, at: Timestamp) {
        let Some(row) = self.outbox.reports.get(run) else { return };
        let settled = settlement.settle(run, row.report.attempts);
        let look = match settled.state {
            ReportState::Pending => self.look_for(row, at, settled.pause),
            ReportState::Taken | ReportState::Delivered | ReportState::Dead => Look::default(),
        };
        self.outbox.change(run, |row| {
            let report = &mut row.report;
            (report.state, report.attempts, report.reason) =
                (settled.state, settled.attempts, settled.reason);
            if settled.state == ReportState::Pending {
                report.taken_by = None;
            }
            row.look(look);
        });
    }

    /// Lets the reports that waited for the end of a run wait for the next one above, or makes a
    /// host look.
    pub(super) fn succeed(&mut self, ended: &Run, succession: Succession) {
        let at = ended.state.updated_at;
        for run in self.outbox.waiting.get(ended.id()).cloned().unwrap_or_default() {
            let root = self.outbox.reports.get(&run).map(|row| &row.root);
            match root == Some(&ended.spec.root_run_id) {
                true => self.settle_one(&run, succession.beneath, at),
                false => self.settle_one(&run, succession.nudged, at),
            }
        }
    }

    pub(super) fn change_report(&mut self, run: &RunId, change: ReportChange) -> bool {
        if !self.outbox.state_of(run).is_some_and(|state| change.applies_to(state)) {
            return false;
        }
        match change {
            ReportChange::Retry => {
                let ended = self.runs.get(run).map(|entry| entry.run.state.updated_at);
                let Some(row) = self.outbox.reports.get(run) else { return false };
                let at = ended.unwrap_or_default();
                let look = self.look_for(row, at, Some(Duration::ZERO));
                self.outbox.change(run, |row| {
                    let report = &mut row.report;
                    (report.state, report.attempts) = (ReportState::Pending, 0);
                    (report.reason, report.taken_by) = (None, None);
                    row.look(look);
                });
            }
            ReportChange::Drop => self.outbox.remove(run),
            ReportChange::Quiet => self.outbox.change(run, |row| {
                row.delay = None;
                row.look(Look::default());
            }),
            ReportChange::Block => self.outbox.change(run, |row| {
                row.report.state = ReportState::Dead;
                row.report.reason = Some(DeadReason::Blocked);
                row.look(Look::default());
            }),
        }
        true
    }

    /// Keeps the report of a run that has ended, if there is somebody to be told.
    pub(super) fn report(&mut self, run: &Run, request: &ReportRequest) {
        let has_open_session = self.is_session_open(&run.spec);
        let Delivery { above, conversation, .. } = &request.delivery;
        let conversation = conversation.as_ref().filter(|_| has_open_session);
        let nearest = above.iter().find(|id| self.is_open(id));
        if request.is_wanted(nearest, conversation.is_some()) {
            let delay = request.delay.filter(|_| conversation.is_some());
            let look = self.look(nearest, delay, run.state.updated_at, Some(Duration::ZERO));
            self.outbox.add(&run.spec, self.timelines.place(), conversation, (request, look));
        }
    }

    /// True if there is a conversation to which the outcome of a run may come, whose session has not
    /// ended.
    fn is_session_open(&self, spec: &RunSpec) -> bool {
        schedule::conversation_key(spec).is_some_and(|key| {
            self.timelines.get(&key).is_none_or(|known| known.ended_at.is_none())
        })
    }

    /// True if an open run was told of the outcome of this one, or somebody is made to look for it, or
    /// a run of a conversation may still be told.
    pub(super) fn is_outcome_needed(&self, run: &Run) -> bool {
        self.outbox.reports.get(run.id()).is_some_and(|row| {
            let looks = row.report.due.is_some() || row.waits_for.is_some();
            let is_pending = row.report.state == ReportState::Pending;
            let is_on_its_way = row.report.state == ReportState::Taken || looks;
            is_on_its_way || is_pending && self.is_session_open(&run.spec)
        })
    }

    pub(super) fn reports(&self, query: &ReportQuery, after: u64, limit: usize) -> Vec<Report> {
        let beyond = (Bound::Excluded(after), Bound::Unbounded);
        let found = |run: &RunId| self.outbox.reports.get(run).map(|row| row.report.clone());
        let pending = |pending: Option<&Pending>| -> Vec<Report> {
            let places = pending.into_iter().flat_map(|pending| pending.range(beyond));
            places.filter_map(|(_, run)| found(run)).take(limit).collect()
        };
        match query {
            ReportQuery::Tree(root) => pending(self.outbox.trees.get(root)),
            ReportQuery::Conversation { tenant, owner_user_id, conversation } => {
                let key = (tenant.clone(), owner_user_id.clone(), conversation.clone());
                pending(self.outbox.conversations.get(&key))
            }
            ReportQuery::Due => pending(Some(&self.outbox.due)),
            ReportQuery::DueTo(agent) => pending(self.outbox.due_to.get(agent)),
            ReportQuery::Run(run) => {
                found(run).filter(|report| report.place > after).into_iter().take(limit).collect()
            }
            ReportQuery::Scope { scope, states } => {
                let admitted = |run: &&RunId| {
                    self.runs.get(*run).is_some_and(|entry| scope.admits(&entry.run))
                };
                let runs = self.outbox.places.range(beyond).map(|(_, run)| run).filter(admitted);
                let reports = runs.filter_map(found);
                reports.filter(|report| states.contains(&report.state)).take(limit).collect()
            }
        }
    }
}
