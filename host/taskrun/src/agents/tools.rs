//! The functions that an agent may call: those of components, agents as tools, tools of the host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use taskrun_journal::autonomy::{Autonomy, means_done};
use taskrun_journal::operation::Operation;
use taskrun_journal::stop::CallAbort;
use taskrun_journal::tool::{ToolFailure, ToolSpec};
use taskrun_policy::{CallTimeouts, HOST, HostFunction, InterruptionPolicy, Limits, Pattern};

use super::contract::{broken_promise, check_result};
use super::loaded::{LoadedTool, ToolsError};
use crate::arguments::{Arguments, TurnSteps};
use crate::form::Form;
use crate::host_tools::{ANY_ARGUMENTS, Callee, OwnTools, accepted_schema};
use crate::ports::tool::{Tool, ToolReply, ToolResult};
use crate::schema::Allowance;

/// The functions that one agent may call.
#[derive(Clone)]
pub struct AgentTools {
    by_name: BTreeMap<String, Arc<AgentTool>>,
    specs: Arc<Vec<ToolSpec>>,
    /// Time-outs of a run, where they are shorter than those of the functions.
    timeouts: CallTimeouts,
    /// The name of the one by which a run says that it is done, where it goes on by itself: other
    /// names that mean it are taken for that one.
    done: Option<String>,
}

/// One function that one agent may call.
#[derive(Clone)]
pub struct AgentTool {
    /// Its own name.
    pub function: String,
    /// Its description under its qualified name.
    pub spec: ToolSpec,
    /// The code that answers.
    pub tool: Arc<dyn Tool>,
    /// The time that a call may take.
    pub deadline: Duration,
    /// The time that the policy states for what a call waits for after it has returned.
    stated_timeout: Option<Duration>,
    /// Limits of a call.
    pub limits: Limits,
    /// The treatment of a call that was cut off.
    pub interrupted: InterruptionPolicy,
    /// True if a run only speaks of itself by it: that is no work, costs no call, and needs nobody's
    /// consent.
    pub is_own: bool,
    /// True if a call of it starts runs, and returns once they are accepted.
    pub(crate) starts_runs: bool,
    arguments: Arc<Arguments>,
    /// Another form of them that is accepted too, and not described to models.
    also_accepted: Option<Arc<Arguments>>,
    /// The form of its results, where it promises one.
    results: Option<Arc<Form>>,
}

/// The bound that the policy of now sets to calls of a function of an earlier one.
#[derive(Clone, Copy, Debug)]
pub struct CallBound<'b> {
    /// The time that a call may take.
    pub time: Duration,
    /// The tags of the function.
    pub tags: BoundTags<'b>,
}

/// The tags of a function under the policy of now.
#[derive(Clone, Copy, Debug)]
pub enum BoundTags<'b> {
    /// As ever: it is the host's own.
    Same,
    /// The policy states them.
    Stated(&'b [String]),
    /// Those that the tool says of itself.
    Claimed,
}

impl AgentTools {
    /// No tools.
    #[must_use]
    pub fn none() -> Self {
        Self::of(BTreeMap::new())
    }

    /// The functions of the tools that any of the patterns means.
    ///
    /// # Errors
    /// [`ToolsError`] if a pattern names a function that does not exist, or a schema is none.
    pub fn select(patterns: &[Pattern], tools: &[LoadedTool]) -> Result<Self, ToolsError> {
        let mut by_name = BTreeMap::new();
        for loaded in tools {
            let mut allowances = <(Allowance, Allowance)>::default();
            for spec in loaded.selected(patterns)? {
                let tool = AgentTool::new(loaded, spec, &mut allowances)?;
                by_name.insert(tool.spec.name.clone(), Arc::new(tool));
            }
        }
        Ok(Self::of(by_name))
    }

    /// These and agents as tools, each as `agent/NAME`. `limits` are those of a call, which only
    /// starts the run; a time-out that is stated for one bounds the run.
    ///
    /// # Errors
    /// [`ToolsError::Schema`], if the host's own schema is none.
    pub fn with_agents(
        &self,
        callees: &[Callee],
        (limits, timeouts): (&Limits, &CallTimeouts),
    ) -> Result<Self, ToolsError> {
        let mut by_name = self.by_name.clone();
        for callee in callees {
            let loaded = LoadedTool::of_callee(callee, limits);
            for spec in loaded.tool.specs() {
                let mut tool = AgentTool::new(&loaded, spec, &mut Default::default())?
                    .waiting(timeouts)
                    .accepting(&accepted_schema())?;
                tool.starts_runs = true;
                by_name.insert(tool.spec.name.clone(), Arc::new(tool));
            }
        }
        Ok(Self::of(by_name))
    }

    /// These and tools of the host, each as `host/NAME`, for an agent with these members.
    ///
    /// # Errors
    /// [`ToolsError::Schema`], if the host's own schema is none.
    pub fn with_host_tools(
        &self,
        functions: &[HostFunction],
        members: &[Callee],
        (limits, timeouts): (&Limits, &CallTimeouts),
    ) -> Result<Self, ToolsError> {
        let mut by_name = self.by_name.clone();
        let loaded = LoadedTool::of_functions(functions, members, limits);
        for spec in loaded.tool.specs() {
            let mut tool =
                AgentTool::new(&loaded, spec, &mut Default::default())?.waiting(timeouts);
            let function = HostFunction::parse(&spec.name);
            tool.is_own = function.is_some_and(HostFunction::is_own);
            let operation = function.and_then(HostFunction::operation);
            tool.starts_runs = operation == Some(Operation::Spawn);
            by_name.insert(tool.spec.name.clone(), Arc::new(tool));
        }
        Ok(Self::of(by_name))
    }

    fn of(by_name: BTreeMap<String, Arc<AgentTool>>) -> Self {
        let specs = Arc::new(by_name.values().map(|tool| tool.spec.clone()).collect());
        Self { by_name, specs, timeouts: CallTimeouts::default(), done: None }
    }

    /// These and the tools by which a run speaks of itself that goes on so.
    ///
    /// # Errors
    /// [`ToolsError::Schema`], if the schema of its result is none.
    pub(crate) fn with_own(
        &self,
        autonomy: &Autonomy,
        limits: &Limits,
    ) -> Result<Self, ToolsError> {
        let done = format!("{HOST}/{}", autonomy.done_name());
        let tool = OwnTools::new(autonomy)
            .map_err(|detail| ToolsError::Schema { name: done.clone(), detail })?;
        let loaded = LoadedTool::of_host(HOST, Arc::new(tool), limits);
        let mut by_name = self.by_name.clone();
        by_name.retain(|_, tool| !tool.is_own);
        for spec in loaded.tool.specs() {
            let permissive = ToolSpec { input_schema: ANY_ARGUMENTS.to_owned(), ..spec.clone() };
            let mut tool = AgentTool::new(&loaded, &permissive, &mut Default::default())?;
            tool.spec.input_schema.clone_from(&spec.input_schema);
            tool.is_own = true;
            by_name.insert(tool.spec.name.clone(), Arc::new(tool));
        }
        Ok(Self { timeouts: self.timeouts.clone(), done: Some(done), ..Self::of(by_name) })
    }

    /// True if a call of this name says that the run is done.
    #[must_use]
    pub(crate) fn says_done(&self, name: &str) -> bool {
        let tool = self.get(name);
        tool.is_some_and(|tool| Some(&tool.spec.name) == self.done.as_ref())
    }

    /// Those of them for whose qualified names there is a bound, each within that; and tools of the
    /// host wait no longer than `waits` state.
    ///
    /// The run of an agent as a tool keeps the time of then: it is part of the request by which a
    /// repeated call finds it.
    #[must_use]
    pub fn within<'b>(
        &self,
        bound: impl Fn(&str) -> Option<CallBound<'b>>,
        waits: &CallTimeouts,
    ) -> Self {
        let bound = |(name, tool): (&String, &Arc<AgentTool>)| {
            let bound = bound(name)?;
            let deadline = tool.deadline.min(bound.time);
            let spec = tool.spec.clone();
            let spec = match bound.tags {
                BoundTags::Same => spec,
                BoundTags::Stated(stated) => spec.with_tags_of(Some(stated), &[]),
                BoundTags::Claimed => spec.with_tags_of(None, tool.claimed_tags()),
            };
            let is_of_host = name.strip_prefix(HOST).is_some_and(|rest| rest.starts_with('/'));
            let now = waits.of_wait(name).filter(|_| is_of_host);
            let stated_timeout = tool.stated_timeout.into_iter().chain(now).min();
            let bound = AgentTool { deadline, stated_timeout, spec, ..AgentTool::clone(tool) };
            Some((name.clone(), Arc::new(bound)))
        };
        let bound = self.by_name.iter().filter_map(bound).collect();
        Self { timeouts: self.timeouts.clone(), done: self.done.clone(), ..Self::of(bound) }
    }

    /// Those of them that are wanted, by their descriptions under their qualified names.
    #[must_use]
    pub(crate) fn only(&self, wanted: impl Fn(&ToolSpec) -> bool) -> Self {
        let kept = self.by_name.iter().filter(|(_, tool)| wanted(&tool.spec));
        let kept = kept.map(|(name, tool)| (name.clone(), Arc::clone(tool))).collect();
        Self { timeouts: self.timeouts.clone(), done: self.done.clone(), ..Self::of(kept) }
    }

    /// The same functions, whose calls take no longer than this.
    #[must_use]
    pub(crate) fn no_longer_than(self, timeouts: CallTimeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// The time that a call of one of them may take.
    #[must_use]
    pub(crate) fn deadline(&self, tool: &AgentTool) -> Duration {
        let timeout = self.timeouts.of(&tool.spec.name);
        timeout.map_or(tool.deadline, |timeout| timeout.min(tool.deadline))
    }

    /// The time that is stated for what calls of one of them wait for, by the policy or by a request.
    #[must_use]
    pub(crate) fn stated_timeout(&self, tool: &AgentTool) -> Option<Duration> {
        let of_request = self.timeouts.of_wait(&tool.spec.name);
        of_request.into_iter().chain(tool.stated_timeout).min()
    }

    /// The function of this qualified name, if the agent may call it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&AgentTool> {
        let done = || self.done.as_ref().filter(|_| means_done(name));
        let tool = self.by_name.get(name).or_else(|| self.by_name.get(done()?));
        tool.map(Arc::as_ref)
    }

    /// All of them, sorted by name.
    #[must_use]
    pub fn specs(&self) -> &Arc<Vec<ToolSpec>> {
        &self.specs
    }
}

/// True if the schemas of all functions of a tool can be used together.
#[must_use]
pub fn schemas_are_usable(specs: &[ToolSpec]) -> bool {
    let mut allowances = Default::default();
    specs.iter().all(|spec| forms(spec, &mut allowances).is_ok())
}

/// The forms of a function's arguments and results. `allowances` are those of its tool for schemas of
/// arguments and of results.
fn forms(
    spec: &ToolSpec,
    (of_arguments, of_results): &mut (Allowance, Allowance),
) -> Result<(Arguments, Option<Form>), ToolsError> {
    let name = &spec.name;
    let arguments = Arguments::new(name, &spec.input_schema, of_arguments)
        .map_err(|detail| ToolsError::Schema { name: name.clone(), detail })?;
    let output = spec.output_schema.as_deref();
    let results = output.map(|schema| Form::new(schema, of_results)).transpose();
    let results =
        results.map_err(|detail| ToolsError::OutputSchema { name: name.clone(), detail })?;
    Ok((arguments, results.map(|(form, _)| form)))
}

impl AgentTool {
    /// `allowances` are those of its tool for schemas of arguments and of results.
    fn new(
        loaded: &LoadedTool,
        spec: &ToolSpec,
        allowances: &mut (Allowance, Allowance),
    ) -> Result<Self, ToolsError> {
        let function = spec.name.clone();
        let spec = loaded.qualified(spec);
        let (arguments, results) = forms(&spec, allowances)?;
        let allowed = loaded.timeouts.of(&spec.name).unwrap_or(loaded.limits.call);
        Ok(Self {
            function,
            tool: Arc::clone(&loaded.tool),
            stated_timeout: None,
            deadline: spec.timeout.map_or(allowed, |own| own.min(allowed)),
            spec,
            limits: loaded.limits.clone(),
            interrupted: loaded.interrupted,
            is_own: false,
            starts_runs: false,
            arguments: Arc::new(arguments),
            also_accepted: None,
            results: results.map(Arc::new),
        })
    }

    /// The tags that the tool says of itself.
    fn claimed_tags(&self) -> &[String] {
        let own = self.tool.specs().iter().find(|spec| spec.name == self.function);
        own.map_or(&[], |spec| &spec.tags)
    }

    /// The same, with what is stated for waits of its calls.
    fn waiting(self, timeouts: &CallTimeouts) -> Self {
        Self { stated_timeout: timeouts.of_wait(&self.spec.name), ..self }
    }

    /// The same, which accepts arguments of this schema too.
    fn accepting(self, schema: &str) -> Result<Self, ToolsError> {
        let name = &self.spec.name;
        let also = Arguments::new(name, schema, &mut Allowance::default())
            .map_err(|detail| ToolsError::Schema { name: name.clone(), detail })?;
        Ok(Self { also_accepted: Some(Arc::new(also)), ..self })
    }

    /// Holds a call's arguments to the schema. `steps` are those that the calls of its turn may
    /// take together where they are large.
    ///
    /// # Errors
    /// The failure to be given to the caller, with a hint how to try again.
    ///
    /// # Cancel safety
    /// Dropping the future ends the look at once.
    pub async fn check(&self, payload: &str, steps: &TurnSteps) -> Result<(), ToolFailure> {
        let Err(failure) = self.arguments.check(payload, steps).await else { return Ok(()) };
        match &self.also_accepted {
            Some(also) if also.check(payload, steps).await.is_ok() => Ok(()),
            Some(_) | None => Err(failure),
        }
    }

    /// The answer of a call, held to the contract of tools: to all that is asked of every result,
    /// and to the schema that the function promises of its own. Calls in runs and outside of them
    /// are judged by this. `steps` are those that the results of its turn may take together where
    /// they are large.
    ///
    /// # Errors
    /// That of the call.
    ///
    /// # Cancel safety
    /// Dropping the future ends the look at once.
    pub async fn keep_promise(
        &self,
        answer: Result<Result<ToolReply, ToolFailure>, CallAbort>,
        steps: &TurnSteps,
    ) -> Result<Result<ToolReply, ToolFailure>, CallAbort> {
        let fault = match &answer {
            Ok(Ok(ToolReply::Value(result) | ToolReply::Marked(result, _))) => {
                self.fault(result, steps).await
            }
            Ok(Ok(ToolReply::Park(_)) | Err(_)) | Err(_) => None,
        };
        match fault {
            Some(detail) => Ok(Err(broken_promise(&self.spec.name, &detail))),
            None => answer,
        }
    }

    /// The fault of a result, in words.
    async fn fault(&self, result: &ToolResult, steps: &TurnSteps) -> Option<String> {
        if let Err(detail) = check_result(self.spec.hints, result) {
            return Some(detail);
        }
        let checked = self.results.as_ref()?.check(&result.value, steps).await;
        checked.err().map(|fault| format!("its result {}", fault.words()))
    }
}
