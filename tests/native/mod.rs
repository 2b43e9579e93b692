//! A host without components: agents and tools are closures of the test, time stands still until
//! the test moves it, and the store fails when it is told to.

mod failing;
mod gate;
mod hearts;
mod host;
mod looks;
mod world;

pub use failing::{Failing, FailingDispatches, Op, Side};
pub use gate::Gate;
pub use hearts::Hearts;
pub use host::{Native, in_time};
pub use looks::Looks;
pub use world::{
    OWNER, PAUSE_OVER, SESSION, World, answer, call_of, change_code, clarification, decided,
    failed, grants, request, value,
};

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use taskrun::ports::planner::{ConversationView, FinalizeInput, PlanInput, PlanResult, Planner};
use taskrun::ports::tool::{Tool, ToolCall, ToolReply};
use taskrun::scope::CallScope;
use taskrun_journal::message::Labels;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::stop::CallAbort;
use taskrun_journal::tool::{ToolFailure, ToolHints, ToolSpec};

/// The answer of a planner.
pub type Planned = Result<Result<PlanResult, PlannerError>, CallAbort>;
/// The answer of a tool.
pub type Replied = Result<Result<ToolReply, ToolFailure>, CallAbort>;
/// The answer of a finalizer.
pub type Finalized = Result<Result<Labels, PlannerError>, CallAbort>;

type PlanFn = Arc<dyn Fn(PlanInput, Arc<CallScope>) -> BoxFuture<'static, Planned> + Send + Sync>;
type CallFn = Arc<dyn Fn(ToolCall, Arc<CallScope>) -> BoxFuture<'static, Replied> + Send + Sync>;
type EndFn =
    Arc<dyn Fn(FinalizeInput, Arc<CallScope>) -> BoxFuture<'static, Finalized> + Send + Sync>;

/// An agent that is a closure.
#[derive(Clone)]
pub struct ClosurePlanner {
    plan: PlanFn,
    finalizer: Option<EndFn>,
    hears: bool,
}

impl ClosurePlanner {
    /// Decides by a closure; cannot hear that it is asked to stop.
    pub fn new<F>(plan: impl Fn(PlanInput, Arc<CallScope>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Planned> + Send + 'static,
    {
        let plan: PlanFn = Arc::new(move |input, scope| Box::pin(plan(input, scope)));
        Self { plan, finalizer: None, hears: false }
    }

    /// The same, hearing that it is asked to stop.
    #[must_use]
    pub fn hearing(mut self) -> Self {
        self.hears = true;
        self
    }

    /// The same with a finalizer.
    #[must_use]
    pub fn finalizer<F>(
        mut self,
        end: impl Fn(FinalizeInput, Arc<CallScope>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Finalized> + Send + 'static,
    {
        self.finalizer = Some(Arc::new(move |input, scope| Box::pin(end(input, scope))));
        self
    }
}

#[async_trait]
impl Planner for ClosurePlanner {
    fn digest(&self) -> &str {
        "closure"
    }

    fn hears_cancellation(&self) -> bool {
        self.hears
    }

    fn view(&self) -> ConversationView {
        ConversationView::Whole
    }

    fn has_finalizer(&self) -> bool {
        self.finalizer.is_some()
    }

    async fn finalize(&self, input: FinalizeInput, scope: Arc<CallScope>) -> Finalized {
        let Some(end) = &self.finalizer else { return Ok(Ok(Labels::new())) };
        let (stop, end) = (scope.stop().clone(), end(input, Arc::clone(&scope)));
        stoppable(&stop, end).await
    }

    async fn plan(&self, input: PlanInput, scope: Arc<CallScope>) -> Planned {
        let (stop, plan) = (scope.stop().clone(), (self.plan)(input, Arc::clone(&scope)));
        stoppable(&stop, plan).await
    }
}

/// Stops like the engine does: a call that is forced is dropped.
async fn stoppable<T>(
    stop: &taskrun::scope::StopSignal,
    call: impl Future<Output = Result<T, CallAbort>>,
) -> Result<T, CallAbort> {
    tokio::select! {
        biased;
        answer = call => answer,
        () = stop.forced() => {
            let cause = stop.cause().expect("a forced stop has a cause");
            Err(CallAbort::Stopped { cause })
        }
    }
}

/// A tool with one function that is a closure.
pub struct ClosureTool {
    specs: Vec<ToolSpec>,
    call: CallFn,
    hears: bool,
    digest: &'static str,
}

impl ClosureTool {
    /// Answers by a closure, under these promises.
    pub fn new<F>(
        function: &str,
        hints: ToolHints,
        call: impl Fn(ToolCall, Arc<CallScope>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Replied> + Send + 'static,
    {
        let spec = ToolSpec {
            name: function.to_owned(),
            title: None,
            description: "a closure of a test".to_owned(),
            input_schema: "{}".to_owned(),
            output_schema: None,
            hints,
            timeout: Some(Duration::from_secs(3_600)),
            tags: Vec::new(),
            stated_tags: Vec::new(),
        };
        let call: CallFn = Arc::new(move |one, scope| Box::pin(call(one, scope)));
        Self { specs: vec![spec], call, hears: false, digest: "closure" }
    }

    fn described(mut self, describe: impl Fn(&mut ToolSpec)) -> Self {
        self.specs.iter_mut().for_each(describe);
        self
    }

    /// The same, hearing that it is asked to stop.
    #[must_use]
    pub fn hearing(mut self) -> Self {
        self.hears = true;
        self
    }

    /// The same with another digest, as other code has.
    #[must_use]
    pub fn with_digest(mut self, digest: &'static str) -> Self {
        self.digest = digest;
        self
    }

    /// The same with a schema of its arguments.
    #[must_use]
    pub fn schema(self, schema: &str) -> Self {
        self.described(|spec| schema.clone_into(&mut spec.input_schema))
    }

    /// The same with another longest call than an hour.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.described(|spec| spec.timeout = Some(timeout))
    }

    /// The same with tags.
    #[must_use]
    pub fn tagged(self, tags: &[&str]) -> Self {
        self.described(|spec| spec.tags.extend(tags.iter().map(|tag| (*tag).to_owned())))
    }
}

#[async_trait]
impl Tool for ClosureTool {
    fn digest(&self) -> &str {
        self.digest
    }

    fn hears_cancellation(&self) -> bool {
        self.hears
    }

    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(&self, call: ToolCall, scope: Arc<CallScope>) -> Replied {
        let (stop, call) = (scope.stop().clone(), (self.call)(call, Arc::clone(&scope)));
        stoppable(&stop, call).await
    }
}
