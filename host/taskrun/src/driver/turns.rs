//! The loop of a run: steps and batches until it is at its end, waits, or goes on elsewhere.

use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::autonomy::RESULT_ASKS_MAX;
use taskrun_journal::event::Event;
use taskrun_journal::machine::decide::Outcome;
use taskrun_journal::plan::{TerminationReason, ToolRequest};
use taskrun_journal::question::Item;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::Timestamp;

use super::allowance::{Allowance, TreeSnapshot};
use super::batch::Batch;
use super::children::Children;
use super::end::End;
use super::finalizer::Finalizer;
use super::finish::{LastWord, skip};
use super::live::Live;
use super::parts::{Bounds, Env, Parts};
use super::recorder::Recorder;
use super::round::{Round, no_result};
use super::step::{Step, tool_result_outcome};
use super::stop::{Halt, Next, Stop, goes_elsewhere};
use super::{await_runs, history, hooks, put_off, reports, results};
use crate::agents::{Agent, AgentCode};
use crate::autonomy::within_agent;
use crate::host_tools::is_taken;
use crate::ports::planner::{Decision, PlanResult};
use crate::scope::Tape;

/// The time for which a run is left alone that could not be read.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// Drives one run.
pub(crate) struct Driver {
    parts: Parts,
    recorder: Recorder,
}

impl Driver {
    pub(crate) fn new(
        env: Arc<Env>,
        (agent, code): (Arc<Agent>, Arc<AgentCode>),
        bounds: Bounds,
        run: Run,
        live: Arc<Live>,
    ) -> Self {
        let parts = Parts { env, agent, code, bounds };
        let recorder = Recorder::new(&parts, run, live);
        Self { parts, recorder }
    }

    fn step(&mut self) -> Step<'_> {
        Step::new(&self.parts, &mut self.recorder)
    }

    fn last_word(&mut self) -> LastWord<'_> {
        LastWord::new(&self.parts, &mut self.recorder)
    }

    fn batch(&mut self) -> Batch<'_> {
        Batch::new(&self.parts, &mut self.recorder)
    }

    /// Works until the run is at its end or has to wait, and records that.
    pub(crate) async fn drive(mut self) {
        if self.recorder.run().status() == Status::Finalizing {
            // The finalizer is shown the state that the run came to under another host.
            if let Err(halt) = self.recorder.read_all().await {
                let id = self.recorder.run().id();
                tracing::warn!(run = %id, %halt, "cannot be finalized; the run is given back");
                return self.recorder.give_back_after(READ_PAUSE).await;
            }
        } else {
            let end = match self.execute().await {
                Err(Halt::Stopped(Stop::Limit(reason))) => {
                    self.last_word().before_step(reason).await
                }
                end => end,
            };
            match end.unwrap_or_else(|halt| End::of_halt(halt, &self.parts, &self.recorder)) {
                End::Blocked | End::Gone => return,
                End::Unread => return self.recorder.give_back_after(READ_PAUSE).await,
                End::Done { outcome: Outcome::Failed(CallAbort::Stopped { cause }), .. }
                    if goes_elsewhere(cause) =>
                {
                    return self.recorder.give_back().await;
                }
                End::Released => return self.recorder.give_back().await,
                End::Done { pending, outcome } => self.recorder.end(&pending, &outcome).await,
            }
        }
        Finalizer { parts: &self.parts, recorder: &mut self.recorder }.run().await;
    }

    async fn execute(&mut self) -> Result<End, Halt> {
        let wall = self.allowance(&TreeSnapshot::default()).wall().await?;
        self.recorder.bound_time(wall);
        let mut tape = None;
        let state = &self.recorder.run().state;
        let is_first = state.epoch <= 1;
        // Before it began it did nothing, but may have been told something.
        if !is_first || !state.inbox.is_empty() || self.recorder.run().spec.continues.is_some() {
            self.recorder.read_all().await?;
        }
        self.recorder.go_on(Next::Anything).await?;
        self.note_rules().await?;
        if let Some(at) = self.begins_at() {
            let time = put_off::unless_told(at, self.parts.env.clock.now());
            return Err(put_off::wait_until(&mut self.recorder, Vec::new(), time).await?);
        }
        if !is_first {
            if let Some(end) = self.batch().resume().await? {
                return Ok(end);
            }
            // The work keeps it too: what is recorded from here on continues it.
            tape = Some(self.recorder.work().tape.clone());
            if let Some(reason) = self.recorder.work().finalize {
                return self.last_word().ask(reason, tape).await;
            }
        }
        history::carry(&*self.parts.env.store, &mut self.recorder).await?;
        if self.has_nothing_to_tell().await? {
            return Ok(End::done(Vec::new(), Outcome::NothingToTell));
        }
        self.turns(tape).await
    }

    /// True for a nudge that was told of nothing, as others looked before it began: no model is asked
    /// then.
    async fn has_nothing_to_tell(&mut self) -> Result<bool, Halt> {
        let is_untold = |run: &Run| {
            let state = &run.state;
            run.spec.is_nudge() && state.turns == 0 && state.told_at_turn.is_none()
        };
        if !is_untold(self.recorder.run()) || !self.recorder.work().tape.is_empty() {
            return Ok(false);
        }
        self.recorder.go_on(Next::Step).await?;
        reports::pull(&self.parts, &mut self.recorder).await?;
        Ok(is_untold(self.recorder.run()))
    }

    /// Records under which rules the work goes on, where they are others than before.
    async fn note_rules(&mut self) -> Result<(), Halt> {
        let rules = &self.parts.bounds.rules;
        let pins = rules.pins();
        if pins != self.recorder.work().pins_now {
            self.recorder.record(vec![Event::RulesChanged { pins }]).await?;
        }
        // The engines are those of the rules that it was taken up with.
        self.recorder.guard(rules.changes() > 0);
        Ok(())
    }

    /// Turn after turn; the first step may have been begun by another host.
    async fn turns(&mut self, mut tape: Option<Tape>) -> Result<End, Halt> {
        loop {
            self.recorder.go_on(Next::Step).await?;
            let tree = TreeSnapshot::default();
            if let Some(reason) = self.allowance(&tree).cap_before_step().await? {
                return self.last_word().before_step(reason).await;
            }
            if self.has_no_round() {
                return self.last_word().before_step(TerminationReason::TurnCap).await;
            }
            if self.recorder.run().state.rounds.asked > RESULT_ASKS_MAX {
                return Ok(End::done(Vec::new(), no_result(&self.recorder)));
            }
            // A step that did something under another host has begun its round.
            if tape.as_ref().is_none_or(Tape::is_empty)
                && let Some(veto) = hooks::veto_of_round(&self.parts, &mut self.recorder).await?
            {
                return Ok(End::done(Vec::new(), Outcome::RoundRefused(veto.to_string())));
            }
            let step = self.step().run(None, tape.take(), tree).await?;
            let end = match step.outcome {
                Ok(plan) => self.follow(step.pending, plan).await?,
                Err(Outcome::Exhausted { reason, .. }) => {
                    return self.last_word().at(step.pending, reason).await;
                }
                // What it is done with does not hang on what it says then.
                Err(_) if self.is_done() && self.recorder.asked().is_none() => {
                    Some(End::done(step.pending, Outcome::Answered(StopReason::Done)))
                }
                Err(Outcome::RetryAborted { attempts, error, .. }) if step.skipped => {
                    let (parts, given_up) = (&self.parts, (attempts, error));
                    match skip(parts, &mut self.recorder, step.pending, given_up).await? {
                        Some(end) => Some(end),
                        None => continue,
                    }
                }
                Err(outcome) => Some(End::done(step.pending, outcome)),
            };
            if let Some(end) = end {
                return Ok(end);
            }
            if let Some(end) = self.batch().resume().await? {
                return Ok(end);
            }
        }
    }

    /// Does what a plan says; gives the end of the run if that is what it says. `pending` is what
    /// of its step is still to be written.
    async fn follow(
        &mut self,
        mut pending: Vec<Event>,
        plan: PlanResult,
    ) -> Result<Option<End>, Halt> {
        match plan.decision {
            Decision::FinalResponse(_) => {
                let round = Round { parts: &self.parts, recorder: &mut self.recorder };
                return round.end(pending).await;
            }
            Decision::FinalToolResult(result) => {
                return Ok(Some(End::done(pending, tool_result_outcome(&result))));
            }
            Decision::Await(items) => {
                let now = self.parts.env.clock.now();
                pending.extend(items.into_iter().map(|ask| {
                    let item = Item::asked(ask, now);
                    Event::Asked { item: Box::new(item) }
                }));
                self.recorder.record(pending).await?;
            }
            Decision::AwaitRuns(mut wait) => {
                let call = wait.call.take().expect("a plan that was checked has one");
                let parts = (&self.parts, &mut self.recorder);
                await_runs::record(parts, pending, wait, call).await?;
            }
            Decision::ToolCalls(mut requests) => {
                if self.is_done() {
                    results::refuse_after_done(&mut pending, &requests);
                    return Ok(Some(End::done(pending, Outcome::Answered(StopReason::Done))));
                }
                let done = self.done_word(&requests).await;
                let later = done.map_or_else(Vec::new, |done| requests.split_off(done + 1));
                results::refuse_after_done(&mut pending, &later);
                let tree = TreeSnapshot::default();
                let cap = self.allowance(&tree).cap_before_calls(&pending, &requests).await?;
                if let Some(reason) = cap {
                    // The word that the run is done costs nothing more.
                    let word = done.map_or_else(Vec::new, |done| requests.split_off(done));
                    results::refuse_all(&mut pending, &requests);
                    if word.is_empty() {
                        return self.last_word().at(pending, reason).await.map(Some);
                    }
                    requests = word;
                }
                let children = Children::new(&self.parts, &self.recorder);
                children.note(&mut pending, &requests, plan.expected_children);
                self.batch().execute(pending, requests).await?;
            }
        }
        Ok(None)
    }

    /// The time at which the first round of a run begins that continues a deferred one, before it has
    /// waited for that.
    fn begins_at(&self) -> Option<Timestamp> {
        let rounds = &self.recorder.run().state.rounds;
        let wanted = rounds.scheduled.as_ref().filter(|_| !rounds.has_begun)?;
        Some(wanted.at)
    }

    /// True if the run has had all of its rounds, as one may that continues another.
    fn has_no_round(&self) -> bool {
        let run = self.recorder.run();
        let autonomy = run.spec.autonomy.as_ref();
        let most = autonomy.and_then(|one| within_agent(one, &self.parts.agent).rounds);
        most.is_some_and(|most| !run.state.rounds.has_begun && run.state.rounds.ended >= most)
    }

    /// True if the run has said that it is done.
    fn is_done(&self) -> bool {
        self.recorder.run().state.rounds.done.is_some()
    }

    /// The place of the first of these calls that says that the run is done, and is not rejected: the
    /// run goes on after one that is.
    async fn done_word(&self, requests: &[ToolRequest]) -> Option<usize> {
        let autonomy = self.recorder.run().spec.autonomy.as_ref()?;
        let tools = &self.parts.code.tools;
        for (place, request) in requests.iter().enumerate() {
            if tools.says_done(&request.name) && is_taken(autonomy, &request.payload).await {
                return Some(place);
            }
        }
        None
    }

    fn allowance<'a>(&'a self, tree: &'a TreeSnapshot) -> Allowance<'a> {
        Allowance::new(&self.parts, &self.recorder, tree)
    }
}
