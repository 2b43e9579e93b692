//! Doing one thing to both worlds.

use std::collections::BTreeSet;
use std::time::Duration;

use taskrun::controller::{Controller, PauseRequest, ResumeRequest};
use taskrun::error::ControllerError;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::list::{ListFilter, Scope};
use taskrun_journal::question::Answer;
use taskrun_journal::status::{BlockedOn, Status, StopReason};
use taskrun_journal::time::{Clock, Timestamp};

use super::bench::{Bench, OWNERS, SESSIONS, within};
use super::known::{Known, State};
use super::ops::{Op, Said};

/// Codes with which something may be refused; none if it has to be done.
pub(super) type Codes = BTreeSet<&'static str>;

/// Holds an answer against what may be answered; gives what was done.
pub(super) fn expect<T>(
    what: &str,
    answer: Result<T, ControllerError>,
    codes: &Codes,
) -> Result<Option<T>, String> {
    match answer {
        Ok(done) if codes.is_empty() => Ok(Some(done)),
        Ok(_) => Err(format!("{what} was done, and not refused with one of {codes:?}")),
        Err(error) if codes.contains(error.code()) => Ok(None),
        Err(error) => Err(format!("{what} was refused with {error}, and not one of {codes:?}")),
    }
}

impl Bench {
    /// Any controller that lives; which one makes no difference.
    pub(super) fn any(&self, choice: u8) -> Controller {
        let choice = usize::from(choice) % (self.workers.len() + 1);
        self.workers.get(choice).map_or(&self.door, |worker| &worker.controller).clone()
    }

    pub(super) async fn act(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Spawn(spawn) => self.spawn(spawn).await,
            Op::Repeat(run) => self.repeat(*run).await,
            Op::Bad(which) => self.bad(*which).await,
            Op::Cancel { run, tree } => self.cancel(*run, *tree).await,
            Op::Answer { run, said } => self.answer(*run, *said).await,
            Op::Pause(run) => self.pause(*run, true).await,
            Op::Resume(run) => self.pause(*run, false).await,
            Op::Release(run) => {
                if let Some(id) = self.pick(*run) {
                    self.gates.open(&id);
                    match self.model.runs.contains_key(&id) {
                        true => self.model.release(&id, &self.alive()),
                        false => {
                            self.model.gates.insert(id);
                        }
                    }
                }
                Ok(())
            }
            Op::Advance(ms) => {
                self.world.clock.advance(Duration::from_millis(*ms));
                self.model.advance(*ms, &self.alive());
                Ok(())
            }
            Op::Kill(worker) => {
                if let Some(worker) = self.take(*worker) {
                    worker.process.die();
                    self.memory.forget(worker.controller.host());
                    self.model.kill(worker.number);
                    self.killed.push(worker);
                }
                Ok(())
            }
            Op::Revive => {
                // While nobody else lives, what they hold is still theirs.
                if !self.workers.is_empty() {
                    self.killed.iter().for_each(|worker| worker.process.go_on());
                    self.late.append(&mut self.killed);
                }
                Ok(())
            }
            Op::HandOver(worker) => self.stop(*worker, true).await,
            Op::Close(worker) => self.stop(*worker, false).await,
            Op::Start if self.workers.len() < 2 => self.start().await,
            Op::Start => Ok(()),
            Op::Sweep => {
                let swept = within("sweep", self.door.sweep()).await?;
                self.model.sweep(&self.alive());
                swept.map(|_| ()).map_err(|error| error.to_string())
            }
            Op::Wait(run) => self.wait(*run).await,
            Op::List { status, owner, parent, limit } => {
                self.list(*status, *owner, *parent, *limit).await
            }
            Op::GetAs { run, owner, session } => self.get_as(*run, *owner, *session).await,
            Op::EndSession(session) => {
                let ended = self.any(1).at(&self.scope).end_session(SESSIONS[*session]).await;
                self.model.ended_sessions.insert(*session);
                ended.map(|_| ()).map_err(|error| error.to_string())
            }
            Op::Gc(age) => self.gc(*age).await,
        }
    }

    fn take(&mut self, worker: usize) -> Option<super::bench::Worker> {
        (worker < self.workers.len()).then(|| self.workers.remove(worker))
    }

    async fn stop(&mut self, worker: usize, hand_over: bool) -> Result<(), String> {
        let Some(worker) = self.take(worker) else { return Ok(()) };
        let (number, controller) = (worker.number, &worker.controller);
        let closed = match hand_over {
            true => within("hand_over", controller.hand_over(Duration::ZERO)).await?,
            false => within("close", controller.close(Duration::ZERO)).await?,
        };
        if !closed.stragglers.is_empty() {
            return Err(format!("stragglers: {closed:?}"));
        }
        let again = controller.at(&self.scope).spawn(&SpawnRequest::default()).await;
        expect("spawn after the end", again, &Codes::from(["closed"]))?;
        match hand_over {
            true => self.model.hand_over(number),
            false => self.model.close(number),
        }
        // Then its process ends.
        worker.process.die();
        self.memory.forget(controller.host());
        Ok(())
    }

    async fn cancel(&mut self, back: u8, tree: bool) -> Result<(), String> {
        let Some(id) = self.pick(back) else { return Ok(()) };
        let controller = self.any(back);
        let canceled = match tree {
            true => within("cancel", controller.at(&self.scope).cancel(&id, None)).await?,
            false => within("cancel", controller.at(&self.scope).cancel_alone(&id, None)).await?,
        };
        let is_there = self.model.runs.contains_key(&id);
        let codes = if is_there { Codes::new() } else { Codes::from(["not-found"]) };
        let Some(canceled) = expect("cancel", canceled, &codes)? else { return Ok(()) };
        let beneath = if tree { self.model.beneath(&id) } else { Vec::new() };
        let alive = self.alive();
        let by = StopReason::CanceledByParent;
        let changed = beneath.iter().filter(|child| self.model.cancel(child, by, &alive));
        let changed: BTreeSet<&str> = changed.map(String::as_str).collect();
        let told: BTreeSet<&str> = canceled.descendants.iter().map(|id| id.as_str()).collect();
        if changed != told || told.len() != canceled.descendants.len() {
            let told = &canceled.descendants;
            return Err(format!("beneath {id} {told:?} were canceled, in the model {changed:?}"));
        }
        let changed = self.model.cancel(&id, StopReason::CanceledByOwner, &alive);
        match changed == canceled.changed {
            true => Ok(()),
            false => Err(format!("cancel of {id}: changed is {}", canceled.changed)),
        }
    }

    async fn answer(&mut self, back: u8, said: Said) -> Result<(), String> {
        let Some(id) = self.pick(back) else { return Ok(()) };
        let text = format!("to {id}");
        let (item, answer) = match said {
            Said::Right => (None, Answer::Text(text.clone())),
            Said::Blank => (None, Answer::Text(" ".to_owned())),
            Said::OfAnotherKind => (None, Answer::Confirmed(true)),
            Said::ToAnotherItem => (Some("nothing"), Answer::Text(text.clone())),
        };
        let known = self.model.runs.get_mut(&id);
        let codes = match known.as_ref().map(|known| (&known.state, said)) {
            None => Codes::from(["not-found"]),
            Some((State::Blocked { on: BlockedOn::Input, answered: false, .. }, said)) => {
                match said {
                    Said::Right => Codes::new(),
                    Said::Blank | Said::OfAnotherKind => Codes::from(["invalid"]),
                    Said::ToAnotherItem => Codes::from(["not-awaitable"]),
                }
            }
            Some(_) => Codes::from(["not-awaitable"]),
        };
        let given =
            self.any(back).at(&self.scope).named("somebody").answer(&id, item, answer).await;
        if expect(&format!("answer to {id}"), given, &codes)?.is_none() {
            return Ok(());
        }
        let known = self.model.runs.get_mut(&id).expect("it took an answer");
        known.answer = Some(format!("{text:?}"));
        let paused = known.paused;
        if let State::Blocked { on, answered, .. } = &mut known.state {
            *answered = true;
            if paused {
                *on = BlockedOn::Pause;
            }
        }
        Ok(())
    }

    /// Pauses a run, or resumes it.
    async fn pause(&mut self, back: u8, pause: bool) -> Result<(), String> {
        let Some(id) = self.pick(back) else { return Ok(()) };
        let controller = self.any(back);
        let (scope, known) = (&self.scope, self.model.runs.get(&id));
        let codes = match known.map(|known| &known.state) {
            None => Codes::from(["not-found"]),
            Some(
                State::Canceling { .. }
                | State::Finalizing(_)
                | State::InFinalizer { .. }
                | State::Ended { .. },
            ) => Codes::from(["run-ended"]),
            Some(
                State::Queued
                | State::Running { .. }
                | State::Adrift { .. }
                | State::Blocked { .. },
            ) => Codes::new(),
        };
        let expected = known.is_some_and(|known| known.paused != pause);
        let done = match pause {
            true => {
                controller.at(scope).named("somebody").pause(&id, &PauseRequest::default()).await
            }
            false => {
                controller.at(scope).named("somebody").resume(&id, &ResumeRequest::default()).await
            }
        };
        let what = if pause { "pause" } else { "resume" };
        let Some(done) = expect(&format!("{what} of {id}"), done, &codes)? else { return Ok(()) };
        if done.changed != expected {
            return Err(format!("{what} of {id}: changed is {}", done.changed));
        }
        match pause {
            true => self.model.pause(&id),
            false => self.model.resume(&id),
        }
        Ok(())
    }

    async fn wait(&mut self, back: u8) -> Result<(), String> {
        let Some(id) = self.pick(back) else { return Ok(()) };
        let controller = self.any(back);
        let client = controller.at(&self.scope);
        let wait = client.wait(&id, Some(Duration::ZERO));
        let waited = within("wait", wait).await?;
        let known = self.model.runs.get(&id);
        let codes = if known.is_some() { Codes::new() } else { Codes::from(["not-found"]) };
        let Some(waited) = expect("wait", waited, &codes)? else { return Ok(()) };
        match known.is_some_and(|known| waited.timed_out == known.is_open()) {
            true => Ok(()),
            false => Err(format!("wait for {id}: timed_out is {}", waited.timed_out)),
        }
    }

    async fn get_as(&self, back: u8, owner: usize, session: Option<usize>) -> Result<(), String> {
        let Some(id) = self.pick(back) else { return Ok(()) };
        let mut scope = Scope::tenant("default").owner(OWNERS[owner]);
        if let Some(session) = session {
            scope = scope.session(SESSIONS[session]);
        }
        let mine = |known: &Known| {
            let of = |session| known.session == session || known.root_session == session;
            known.owner == owner && session.is_none_or(of)
        };
        let seen = self.model.runs.get(&id).is_some_and(mine);
        let codes = if seen { Codes::new() } else { Codes::from(["not-found"]) };
        expect("get", self.any(back).at(&scope).get(&id).await, &codes)?;
        let other = Scope::tenant("other");
        let codes = Codes::from(["not-found"]);
        expect("get", self.any(back).at(&other).get(&id).await, &codes).map(|_| ())
    }

    async fn list(
        &self,
        status: u8,
        owner: Option<usize>,
        parent: Option<u8>,
        limit: usize,
    ) -> Result<(), String> {
        let status = Status::ALL.get(usize::from(status)).copied();
        let parent = parent.and_then(|back| self.pick(back));
        let mut scope = self.scope.clone();
        scope.owner_user_id = owner.map(|owner| OWNERS[owner].to_owned());
        let filter = ListFilter {
            status: status.into_iter().collect(),
            parent_run_id: parent
                .as_deref()
                .and_then(|id| taskrun_journal::ids::RunId::new(id).ok()),
            ..ListFilter::default()
        };
        let (mut listed, mut cursor, controller) = (Vec::new(), None, self.any(limit as u8));
        loop {
            let page = controller.at(&scope).list(&filter, cursor.as_ref(), limit).await;
            let page = page.map_err(|error| error.to_string())?;
            let full = page.runs.len() == limit;
            listed
                .extend(page.runs.into_iter().map(|run| (run.state.updated_at, run.id().clone())));
            cursor = page.next;
            match (&cursor, full) {
                (None, _) => break,
                (Some(_), true) => {}
                (Some(_), false) => return Err("a page that is not the last is short".to_owned()),
            }
        }
        if !listed.is_sorted_by(|a, b| a > b) {
            return Err(format!("a listing is out of order: {listed:?}"));
        }
        let fits = |known: &Known| {
            status.is_none_or(|status| known.status() == status)
                && owner.is_none_or(|owner| known.owner == owner)
                && parent.as_ref().is_none_or(|_| known.parent == parent)
        };
        let known = self.model.runs.iter().filter(|(_, known)| fits(known));
        let known: BTreeSet<&str> = known.map(|(id, _)| id.as_str()).collect();
        let listed: BTreeSet<&str> = listed.iter().map(|(_, id)| id.as_str()).collect();
        match listed == known {
            true => Ok(()),
            false => Err(format!("listed are {listed:?}, and in the model {known:?}")),
        }
    }

    async fn gc(&mut self, age: u64) -> Result<(), String> {
        let now = self.world.clock.now();
        let before = Timestamp(now.0 + 1 - age.min(now.0));
        let removed = self.any(0).at(&self.scope).gc(before, false).await;
        let removed = removed.map_err(|error| error.to_string())?;
        let expected = self.model.gc((self.model.now + 1).saturating_sub(age));
        match (removed.runs, removed.kept) == expected {
            true => Ok(()),
            false => Err(format!("gc: {removed:?}, and in the model {expected:?}")),
        }
    }
}
