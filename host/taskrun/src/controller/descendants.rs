//! Requests of runs to the controller: about the runs that they may see, and nothing else.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::ids::{RunId, Seq};
use taskrun_journal::list::{Cursor, ListFilter, PAGE_DEFAULT, PAGE_MAX, Scope};
use taskrun_journal::message::Message;
use taskrun_journal::question::Answer;
use taskrun_journal::run::Run;
use taskrun_journal::runs::{
    ANSWER_PAGE_BYTES_MAX, CancelOutcome, ChangeOutcome, EVENTS_PAGE_MAX, EventPage, RunPage,
    RunsAnswer, RunsError, RunsFilter, RunsRequest, WaitOutcome,
};
use taskrun_journal::spec::RunSpec;
use taskrun_journal::status::StopReason;
use taskrun_journal::text::cut;

use super::shown::{info, shown};
use super::{
    Client, Controller, Inner, PauseOutcome, PauseRequest, Principal, ResumeRequest, TRANSCRIPT_MAX,
};
use crate::driver::{
    EarlierRuns, conversation_before_call, find_visible, is_own_or_above, may_be_of_conversation,
};
use crate::error::ControllerError;
use crate::scan::{PAGE, WHOLE, scan};
use crate::scope::runs::{Caller, Runs};

/// Most runs of a session that are looked through for those of a conversation, those that changed
/// last: more are not read for one list.
const CONVERSATION_RUNS_MAX: usize = 200;
/// Of these so many at once: a run may have half a megabyte of words.
const CONVERSATION_PAGE: usize = 25;

/// The controller as a run sees it. It does not keep the controller alive.
struct ControllerPort {
    controller: Weak<Inner>,
}

#[async_trait]
impl Runs for ControllerPort {
    async fn ask(
        &self,
        caller: &Caller,
        request: RunsRequest,
        longest: Duration,
    ) -> Result<RunsAnswer, RunsError> {
        let controller = Controller(self.controller.upgrade().ok_or(RunsError::Closed)?);
        if let RunsRequest::CheckAwaited { ids } = &request {
            return controller.check_awaited(caller, ids).await;
        }
        Ok(controller.ask_descendants(caller, request, longest).await?)
    }

    async fn result(
        &self,
        caller: &Caller,
        hash: &str,
        place: Seq,
    ) -> Result<Option<Arc<[u8]>>, RunsError> {
        let inner = self.controller.upgrade().ok_or(RunsError::Closed)?;
        let found = Controller(inner).tool_result_at(&caller.spec.id, hash, place).await;
        found.map_err(|error| ControllerError::from(error).into())
    }

    async fn artifact(&self, caller: &Caller, hash: &str) -> Result<Option<Arc<[u8]>>, RunsError> {
        let inner = self.controller.upgrade().ok_or(RunsError::Closed)?;
        Ok(Controller(inner).artifact_for(&caller.spec, hash).await?)
    }
}

impl Controller {
    /// This controller as a run that it executes sees it.
    pub(super) fn door(&self) -> Arc<dyn Runs> {
        Arc::new(ControllerPort { controller: Arc::downgrade(&self.0) })
    }

    /// Refuses the first of these runs that the caller may not wait for.
    async fn check_awaited(
        &self,
        caller: &Caller,
        ids: &[String],
    ) -> Result<RunsAnswer, RunsError> {
        let store = &*self.0.parts.store;
        let failed = |error| RunsError::from(ControllerError::Storage(error));
        for id in ids {
            let not_found = || RunsError::NotFound { id: id.clone() };
            let run_id = RunId::new(id).map_err(|_| not_found())?;
            if is_own_or_above(store, &caller.spec, &run_id).await.map_err(failed)? {
                return Err(RunsError::Cycle { id: id.clone() });
            }
            let found = find_visible(store, &caller.spec, &run_id).await.map_err(failed)?;
            found.ok_or_else(not_found)?;
        }
        Ok(RunsAnswer::Awaitable)
    }

    async fn ask_descendants(
        &self,
        caller: &Caller,
        request: RunsRequest,
        longest: Duration,
    ) -> Result<RunsAnswer, ControllerError> {
        let within = |timeout_ms: Option<u64>| {
            timeout_ms.map_or(longest, |ms| Duration::from_millis(ms).min(longest))
        };
        match request {
            RunsRequest::Spawn(child) if child.in_room => self.delegate(caller, *child).await,
            RunsRequest::Spawn(mut child) => {
                let (hands_over, as_accepted) = (child.hands_over, child.as_accepted);
                if hands_over {
                    child.task.clone_from(&caller.spec.task);
                    child.images.clone_from(&caller.spec.images);
                }
                let mut request = self.child_request(caller, *child).await?;
                if hands_over {
                    request.injected_context_messages = self.said_in(caller).await?;
                }
                let run = self.client(caller).spawn(&request).await?;
                match as_accepted {
                    true => Ok(one(&self.begun(RunSpec::clone(&run.spec)).0)),
                    false => Ok(one(&run)),
                }
            }
            RunsRequest::SpawnAll { children } => {
                let mut requests = Vec::with_capacity(children.len());
                for child in children {
                    requests.push(self.child_request(caller, child).await?);
                }
                let outcomes = self.client(caller).submit_all(&requests).await?;
                let runs = outcomes.iter().map(|outcome| info(&outcome.run)).collect();
                Ok(RunsAnswer::Page(RunPage { runs, next: None }))
            }
            RunsRequest::List(filter) => self.list_descendants(caller, &filter).await,
            RunsRequest::Get { id } => Ok(one(&self.get_visible(caller, &id).await?)),
            RunsRequest::Cancel { id, reason } => {
                let run = self.get_visible(caller, &id).await?;
                let reason = reason.as_deref().map(|text| cut(text, super::REASON_BYTES_MAX));
                let by = (StopReason::CanceledByParent, Some(&caller.spec.id));
                let (run, changed) = self.cancel_run(run, by, reason).await?;
                let run = Box::new(info(&run));
                let descendants = Vec::new();
                Ok(RunsAnswer::Canceled(CancelOutcome { run, changed, descendants }))
            }
            RunsRequest::CancelTree { id, reason } => {
                let run = self.get_visible(caller, &id).await?;
                let by = (StopReason::CanceledByParent, Some(&caller.spec.id));
                let done = self.cancel_tree(run, by, reason.as_deref()).await?;
                Ok(RunsAnswer::Canceled(CancelOutcome {
                    run: Box::new(info(&done.run)),
                    changed: done.changed,
                    descendants: done.descendants.iter().map(ToString::to_string).collect(),
                }))
            }
            RunsRequest::Pause { id, reason, timeout_ms } => {
                let run = self.get_visible(caller, &id).await?;
                self.check_journal_room(&run).await?;
                let timeout = timeout_ms.map(Duration::from_millis);
                let request = PauseRequest { reason, timeout, tree: false };
                Ok(changed(&self.client(caller).pause(run.id().as_str(), &request).await?))
            }
            RunsRequest::Resume { id, note } => {
                let run = self.get_visible(caller, &id).await?;
                let request = ResumeRequest { note, ..ResumeRequest::default() };
                Ok(changed(&self.client(caller).resume(run.id().as_str(), &request).await?))
            }
            RunsRequest::Wait { id, timeout_ms } => {
                let run = self.get_visible(caller, &id).await?;
                let timeout = Some(within(timeout_ms));
                let waited = self.client(caller).wait(run.id().as_str(), timeout).await?;
                let run = Box::new(info(&waited.run));
                Ok(RunsAnswer::Waited(WaitOutcome { run, timed_out: waited.timed_out }))
            }
            RunsRequest::Provide { id, item, answer } => {
                let run = self.get_visible(caller, &id).await?;
                self.provide(caller, run, item, answer).await
            }
            // It is answered before, as its refusals are no others'.
            RunsRequest::CheckAwaited { .. } => Ok(RunsAnswer::Awaitable),
            RunsRequest::Transcript { id, limit } => {
                let run = self.get_visible(caller, &id).await?;
                let limit = usize::try_from(limit).unwrap_or(TRANSCRIPT_MAX);
                let read = self.client(caller).transcript(run.id().as_str(), None, limit).await?;
                Ok(RunsAnswer::Transcript(read.for_agents()))
            }
            RunsRequest::Output { id, from } => {
                let run = self.get_visible(caller, &id).await?;
                Ok(RunsAnswer::Output(self.output_part(&run, from).await?))
            }
            RunsRequest::CompleteEntry { id, result, failed } => {
                let (client, batch) = (self.client(caller), caller.spec.id.as_str());
                Ok(one(&match failed {
                    false => client.complete_entry(batch, &id, &result).await?,
                    true => client.fail_entry(batch, &id, &result).await?,
                }))
            }
            RunsRequest::Subscribe { id, after, limit, timeout_ms } => {
                let run = self.get_visible(caller, &id).await?;
                self.read_descendant(run, (after, limit), within(timeout_ms)).await
            }
        }
    }

    /// The conversation of a run, for the agent to which it is handed over.
    async fn said_in(&self, caller: &Caller) -> Result<Vec<Message>, ControllerError> {
        let run = self.client(caller).get(caller.spec.id.as_str()).await?;
        Ok(conversation_before_call(&*self.0.parts.store, &run).await?)
    }

    /// This controller as a run has it, which has found out before that it may see the run it asks
    /// about.
    pub(super) fn client(&self, caller: &Caller) -> Client {
        self.at(Principal { scope: Scope::tenant(&caller.spec.tenant), name: name_of(caller) })
    }

    async fn get_visible(&self, caller: &Caller, id: &str) -> Result<Run, ControllerError> {
        let not_found = || ControllerError::NotFound { id: id.to_owned() };
        let run_id = RunId::new(id).map_err(|_| not_found())?;
        let store = &*self.0.parts.store;
        find_visible(store, &caller.spec, &run_id).await?.ok_or_else(not_found)
    }

    /// The latest runs that earlier runs of the caller's conversation started, and if there may be
    /// more.
    async fn of_conversation(&self, caller: &RunSpec) -> Result<(Vec<Run>, bool), ControllerError> {
        let has_part = !caller.history.is_none() || caller.continues.is_some();
        if caller.depth > 0 || caller.parent_session_id.is_empty() || !has_part {
            return Ok((Vec::new(), false));
        }
        let store = &*self.0.parts.store;
        let earlier = EarlierRuns::of(store, caller).await?;
        let scope = Scope {
            owner_user_id: Some(caller.owner_user_id.clone()),
            parent_session_id: Some(caller.parent_session_id.clone()),
            ..Scope::tenant(&caller.tenant)
        };
        let (mut found, mut cursor, mut looked_at) = (Vec::new(), None, 0);
        let mut known: HashMap<RunId, bool> = HashMap::new();
        loop {
            let filter = ListFilter::default();
            let page = store.list(&scope, &filter, cursor.as_ref(), CONVERSATION_PAGE).await?;
            looked_at += page.runs.len();
            for run in page.runs {
                if !may_be_of_conversation(&run.spec, caller) {
                    continue;
                }
                let root = &run.spec.root_run_id;
                let is_of_conversation = match known.get(root) {
                    Some(known) => *known,
                    None => {
                        let read = store.get(root).await?;
                        read.is_some_and(|root| earlier.contains(&root.spec))
                    }
                };
                known.insert(root.clone(), is_of_conversation);
                if is_of_conversation {
                    found.push(run);
                }
            }
            cursor = page.next;
            if cursor.is_none() || looked_at >= CONVERSATION_RUNS_MAX {
                return Ok((found, cursor.is_some()));
            }
        }
    }

    /// The runs that the one of `caller` may see, and if there may be more.
    pub(super) async fn visible(
        &self,
        caller: &RunSpec,
    ) -> Result<(Vec<Run>, bool), ControllerError> {
        let mut runs = self.descendants(caller).await?;
        let (of_conversation, is_cut) = self.of_conversation(caller).await?;
        runs.extend(of_conversation);
        Ok((runs, is_cut))
    }

    /// A tree is bounded, so it is read whole and the page cut out of it.
    async fn list_descendants(
        &self,
        caller: &Caller,
        filter: &RunsFilter,
    ) -> Result<RunsAnswer, ControllerError> {
        let after: Option<Cursor> = match &filter.cursor {
            None => None,
            Some(text) => {
                Some(text.parse().map_err(|error: taskrun_journal::list::InvalidCursor| {
                    ControllerError::Invalid { field: "cursor", reason: error.to_string() }
                })?)
            }
        };
        let (mut runs, is_cut) = self.visible(&caller.spec).await?;
        let fits = |run: &Run| {
            let parent = run.spec.parent_run_id.as_ref().map(RunId::as_str);
            (filter.status.is_empty() || filter.status.contains(&run.status()))
                && filter.agent_name.as_ref().is_none_or(|name| *name == run.spec.agent_name)
                && filter.parent_run_id.as_deref().is_none_or(|id| parent == Some(id))
                && filter.labels.iter().all(|(k, v)| run.spec.labels.get(k) == Some(v))
                && after.as_ref().is_none_or(|after| place(run) < (after.updated_at, &after.id))
        };
        runs.retain(fits);
        match filter.newest_first {
            true => runs.sort_by(|one, other| accepted(other).cmp(&accepted(one))),
            false => runs.sort_by(|one, other| place(other).cmp(&place(one))),
        }
        let limit = filter.limit.map_or(PAGE_DEFAULT, |limit| limit as usize).clamp(1, PAGE_MAX);
        let (mut page, mut bytes) = (Vec::new(), 0);
        for run in &runs {
            let info = info(run);
            bytes += info.bytes();
            if page.len() >= limit || (bytes > ANSWER_PAGE_BYTES_MAX && !page.is_empty()) {
                break;
            }
            page.push(info);
        }
        let last = page.len().checked_sub(1).map(|index| &runs[index]);
        let next = last.filter(|_| is_cut || page.len() < runs.len()).map(|last| {
            Cursor { updated_at: last.state.updated_at, id: last.id().clone() }.to_string()
        });
        Ok(RunsAnswer::Page(RunPage { runs: page, next }))
    }

    async fn provide(
        &self,
        caller: &Caller,
        run: Run,
        item: Option<String>,
        answer: Answer,
    ) -> Result<RunsAnswer, ControllerError> {
        let (id, client) = (run.id(), self.client(caller));
        let given = client.answer(id.as_str(), item.as_deref(), answer.clone()).await;
        // A call that is repeated says again what it has said.
        if let Err(ControllerError::NotAwaitable { .. }) = given
            && self.was_answered(id, item.as_deref(), &answer, &name_of(caller)).await?
        {
            return Ok(one(&client.get(id.as_str()).await?));
        }
        Ok(one(&given?))
    }

    /// True if the last answer to an item, or the last of all, was this one by this caller.
    async fn was_answered(
        &self,
        id: &RunId,
        wanted: Option<&str>,
        wanted_answer: &Answer,
        wanted_by: &str,
    ) -> Result<bool, ControllerError> {
        let mut last = false;
        let see = |recorded: EventRecord| {
            if let Event::Answered { item, answer, by, .. } = &recorded.event
                && wanted.is_none_or(|wanted| wanted == item)
            {
                last = answer == wanted_answer && by == wanted_by;
            }
            ControlFlow::Continue(())
        };
        scan(&*self.0.parts.store, id, WHOLE, see).await?;
        Ok(last)
    }

    async fn read_descendant(
        &self,
        run: Run,
        (mut after, limit): (Seq, u32),
        longest: Duration,
    ) -> Result<RunsAnswer, ControllerError> {
        let limit = limit.clamp(1, EVENTS_PAGE_MAX) as usize;
        let store = &self.0.parts.store;
        let time_is_up = self.0.parts.clock.sleep(longest);
        tokio::pin!(time_is_up);
        let id = run.id().clone();
        let (mut events, mut bytes, mut over) = (Vec::new(), 0, longest.is_zero());
        loop {
            let mut watch = store.watch(&id);
            // Before the events: of a run that has ended by then they are all there.
            let found = store.get(&id).await?;
            let run = found.ok_or_else(|| ControllerError::NotFound { id: id.to_string() })?;
            'reading: loop {
                let page = store.read(&id, after, PAGE).await?;
                if page.is_empty() {
                    break;
                }
                for recorded in &page {
                    if let Some(event) = shown(recorded) {
                        bytes += event.bytes();
                        let is_full = events.len() >= limit || bytes > ANSWER_PAGE_BYTES_MAX;
                        if is_full && !events.is_empty() {
                            break 'reading;
                        }
                        events.push(event);
                    }
                    after = recorded.seq;
                }
            }
            let ended = run.status().is_terminal() && after >= run.state.head;
            if !events.is_empty() || ended || over {
                return Ok(RunsAnswer::Events(EventPage { events, next_after: after, ended }));
            }
            tokio::select! {
                biased;
                () = &mut time_is_up => over = true,
                () = watch.moved(after.min(run.state.head)) => {}
            }
        }
    }
}

pub(super) fn one(run: &Run) -> RunsAnswer {
    info(run).into()
}

/// Where a run stands in a listing; the greatest comes first.
fn place(run: &Run) -> (taskrun_journal::time::Timestamp, &RunId) {
    (run.state.updated_at, run.id())
}

/// When a run was accepted; of two at once the greater id is the later one.
pub(super) fn accepted(run: &Run) -> (taskrun_journal::time::Timestamp, &RunId) {
    (run.spec.created_at, run.id())
}

/// The name of a run that asks something of another one.
fn name_of(caller: &Caller) -> String {
    format!("run:{}", caller.spec.id)
}

fn changed(done: &PauseOutcome) -> RunsAnswer {
    RunsAnswer::Changed(ChangeOutcome { run: Box::new(info(&done.run)), changed: done.changed })
}
