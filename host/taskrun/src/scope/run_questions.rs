//! Questions to the controller about the runs beneath the call's own.

use std::marker::PhantomData;
use std::time::Duration;

use serde::{Serialize, Serializer};
use taskrun_journal::event::{HostAnswer, Reply};
use taskrun_journal::ids::Seq;
use taskrun_journal::operation::Operation;
use taskrun_journal::question::Answer;
use taskrun_journal::runs::{
    ANSWERS_BYTES_MAX, CancelOutcome, ChangeOutcome, ChildRequest, EventPage, OutputPart, RunInfo,
    RunPage, RunsAnswer, RunsError, RunsFilter, RunsRequest, WaitOutcome,
};
use taskrun_policy::Capability;

use super::CallScope;
use super::ask::{Misfit, Origin, Question};
use super::runs::RunsAccess;

/// The most of its time that a wait leaves a call; a guest that is told that the time is up
/// is to be able to say so.
const WAIT_MARGIN_MAX: Duration = Duration::from_secs(1);

/// Most requests of one call that write to other runs, as for facts. A cancellation does not count:
/// it takes effect once.
const RUN_CHANGES_MAX: u32 = 1_000;

/// A question to the controller that is answered by an `A`. Each is made here, beside its type of
/// answer.
#[derive(Clone, Debug)]
pub struct RunsQuestion<A> {
    request: RunsRequest,
    answer: PhantomData<fn() -> A>,
}

impl<A> RunsQuestion<A> {
    fn new(request: RunsRequest) -> Self {
        Self { request, answer: PhantomData }
    }

    /// The request that the controller gets, before the host has named it.
    #[must_use]
    pub fn request(&self) -> &RunsRequest {
        &self.request
    }
}

/// Any request, whose answer is not looked into.
impl From<RunsRequest> for RunsQuestion<RunsAnswer> {
    fn from(request: RunsRequest) -> Self {
        Self::new(request)
    }
}

impl RunsQuestion<RunInfo> {
    /// Starts a run.
    #[must_use]
    pub fn spawn(child: ChildRequest) -> Self {
        Self::new(RunsRequest::Spawn(Box::new(child)))
    }

    /// Shows a run.
    #[must_use]
    pub fn get(id: String) -> Self {
        Self::new(RunsRequest::Get { id })
    }

    /// Says that an entry of the batch that the caller is was worked on.
    pub(crate) fn complete_entry(id: String, result: String, failed: bool) -> Self {
        Self::new(RunsRequest::CompleteEntry { id, result, failed })
    }

    /// Answers an item that a run asks for; the only open one if `item` is `None`.
    #[must_use]
    pub fn provide(id: String, item: Option<String>, answer: Answer) -> Self {
        Self::new(RunsRequest::Provide { id, item, answer })
    }
}

impl RunsQuestion<()> {
    /// Asks if these runs may be awaited.
    pub(crate) fn check_awaited(ids: Vec<String>) -> Self {
        Self::new(RunsRequest::CheckAwaited { ids })
    }
}

impl RunsQuestion<String> {
    /// Reads the last entries of a run's conversation, as JSON.
    pub(crate) fn transcript(id: String, limit: u32) -> Self {
        Self::new(RunsRequest::Transcript { id, limit })
    }
}

impl RunsQuestion<OutputPart> {
    /// Reads the part of a run's answer that begins with a byte of it.
    pub(crate) fn output(id: String, from: u64) -> Self {
        Self::new(RunsRequest::Output { id, from })
    }
}

impl RunsQuestion<RunPage> {
    /// Starts runs, all or none; the answer has them in this order.
    pub(crate) fn spawn_all(children: Vec<ChildRequest>) -> Self {
        Self::new(RunsRequest::SpawnAll { children })
    }

    /// Lists runs.
    #[must_use]
    pub fn list(filter: RunsFilter) -> Self {
        Self::new(RunsRequest::List(filter))
    }
}

impl RunsQuestion<CancelOutcome> {
    /// Cancels a run alone.
    #[must_use]
    pub fn cancel(id: String, reason: Option<String>) -> Self {
        Self::new(RunsRequest::Cancel { id, reason })
    }

    /// Cancels a run and everything beneath it.
    #[must_use]
    pub fn cancel_tree(id: String, reason: Option<String>) -> Self {
        Self::new(RunsRequest::CancelTree { id, reason })
    }
}

impl RunsQuestion<ChangeOutcome> {
    /// Pauses a run alone, until it is resumed or so many milliseconds are over.
    #[must_use]
    pub fn pause(id: String, reason: Option<String>, timeout_ms: Option<u64>) -> Self {
        Self::new(RunsRequest::Pause { id, reason, timeout_ms })
    }

    /// Ends the pause of a run.
    #[must_use]
    pub fn resume(id: String, note: Option<String>) -> Self {
        Self::new(RunsRequest::Resume { id, note })
    }
}

impl RunsQuestion<WaitOutcome> {
    /// Waits for the end of a run, at most so many milliseconds.
    #[must_use]
    pub fn wait(id: String, timeout_ms: Option<u64>) -> Self {
        Self::new(RunsRequest::Wait { id, timeout_ms })
    }
}

impl RunsQuestion<EventPage> {
    /// Reads the events of a run after a position, at most `limit`, and waits at most so many
    /// milliseconds for the first one.
    #[must_use]
    pub fn subscribe(id: String, after: Seq, limit: u32, timeout_ms: Option<u64>) -> Self {
        Self::new(RunsRequest::Subscribe { id, after, limit, timeout_ms })
    }
}

impl<A> Serialize for RunsQuestion<A> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.request.serialize(serializer)
    }
}

impl<A: TryFrom<RunsAnswer> + Send> Question for RunsQuestion<A> {
    type Answer = A;
    type Error = RunsError;
    type Source = RunsAccess;

    const KIND: &'static str = "a question to the controller";

    fn asked(&self) -> impl Serialize + Send + '_ {
        self
    }

    fn admit(&mut self, scope: &CallScope) -> Result<RunsAccess, RunsError> {
        let access = scope.parts.runs.as_ref().ok_or_else(|| {
            scope.note_absent(Capability::Controller);
            RunsError::NotStarted
        })?;
        self.request.check()?;
        let mut open = scope.open();
        if open.controller_bytes >= ANSWERS_BYTES_MAX {
            let kind = "controller-bytes".to_owned();
            return Err(RunsError::Limit { kind, cap: ANSWERS_BYTES_MAX as u64 });
        }
        if writes_to_others(&self.request) {
            if open.run_changes >= RUN_CHANGES_MAX {
                let kind = "changes of runs in a call".to_owned();
                return Err(RunsError::Limit { kind, cap: u64::from(RUN_CHANGES_MAX) });
            }
            open.run_changes += 1;
        }
        Ok(access.clone())
    }

    fn model_of(_source: &RunsAccess) -> Option<&str> {
        None
    }

    fn begin(&mut self, scope: &CallScope, digest: &str) {
        match &mut self.request {
            RunsRequest::Spawn(child) => child.key = scope.child_key(child.key.as_deref(), digest),
            RunsRequest::SpawnAll { children } => {
                let Some(key) = scope.child_key(None, digest) else { return };
                for (index, child) in children.iter_mut().enumerate() {
                    child.key = Some(key_of(&["one of", &key, &index.to_string()]));
                }
            }
            RunsRequest::List(_)
            | RunsRequest::Get { .. }
            | RunsRequest::Cancel { .. }
            | RunsRequest::CancelTree { .. }
            | RunsRequest::Pause { .. }
            | RunsRequest::Resume { .. }
            | RunsRequest::Wait { .. }
            | RunsRequest::Provide { .. }
            | RunsRequest::Transcript { .. }
            | RunsRequest::Output { .. }
            | RunsRequest::CompleteEntry { .. }
            | RunsRequest::CheckAwaited { .. }
            | RunsRequest::Subscribe { .. } => {}
        }
    }

    async fn put(self, scope: &CallScope, access: RunsAccess, _call: u32) -> HostAnswer {
        let operation = self.request.operation();
        let answer = access.runs.ask(&access.caller, self.request, scope.longest_wait()).await;
        let answer = match answer {
            // This process is about to stop the call; whichever runs it again asks for itself.
            Err(RunsError::Closed) => {
                scope.parts.stop.asked().await;
                Err(RunsError::Canceled)
            }
            answer => answer,
        };
        HostAnswer::Controller { operation, reply: answer.into() }
    }

    fn accept(
        scope: &CallScope,
        answer: HostAnswer,
        _origin: Origin,
    ) -> Result<Result<A, RunsError>, Misfit> {
        let HostAnswer::Controller { operation, reply } = answer else {
            return Err(Misfit(format!("{answer:?}")));
        };
        let answer = match reply {
            Reply::Given(answer) => answer,
            Reply::Error(error) => return Ok(Err(error)),
        };
        let bytes = answer.bytes();
        if operation == Operation::Spawn {
            let mut open = scope.open();
            match &answer {
                RunsAnswer::Run(run) => open.started.extend([run.id.clone()]),
                RunsAnswer::Page(page) => {
                    open.started.extend(page.runs.iter().map(|run| run.id.clone()));
                }
                RunsAnswer::Canceled(_)
                | RunsAnswer::Changed(_)
                | RunsAnswer::Waited(_)
                | RunsAnswer::Events(_)
                | RunsAnswer::Awaitable
                | RunsAnswer::Transcript(_)
                | RunsAnswer::Output(_) => {}
            }
        }
        let misfit = |_| Misfit(format!("an answer of the controller to {operation}"));
        let answer = A::try_from(answer).map_err(misfit)?;
        let mut open = scope.open();
        open.controller_bytes = open.controller_bytes.saturating_add(bytes);
        Ok(Ok(answer))
    }
}

impl CallScope {
    /// The key under which a request for a run is made again when the call is: made of that of the
    /// guest, or of the call, the request and the number of equal ones before it. So the order in
    /// which a repeated step asks does not matter, nor what else it asks.
    fn child_key(&self, key: Option<&str>, digest: &str) -> Option<String> {
        let access = self.parts.runs.as_ref()?;
        let run = access.caller.spec.id.as_str();
        // A blank one would be the same for all requests of the run.
        Some(match key.filter(|key| !key.trim().is_empty()) {
            Some(key) => key_of(&["key", run, key]),
            None => {
                let mut open = self.open();
                let before = open.spawns.entry(digest.to_owned()).or_default();
                let number = before.to_string();
                *before = before.saturating_add(1);
                drop(open);
                key_of(&["call", run, &access.caller.call, digest, &number])
            }
        })
    }

    /// The longest wait that leaves the guest time to go on.
    fn longest_wait(&self) -> Duration {
        let left = self.time_left();
        left.saturating_sub((left / 10).min(WAIT_MARGIN_MAX))
    }
}

/// True for a request that may be made of the same run over and over, each time with words that its
/// journal keeps.
fn writes_to_others(request: &RunsRequest) -> bool {
    matches!(
        request,
        RunsRequest::Pause { .. } | RunsRequest::Resume { .. } | RunsRequest::Provide { .. }
    )
}

/// The name of a child for the controller. Beginning with a word of the host's own, it meets no
/// key that a person would choose.
fn key_of(parts: &[&str]) -> String {
    let mut hash = blake3::Hasher::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    format!("taskrun.child:{}", &hash.finalize().to_hex()[..32])
}
