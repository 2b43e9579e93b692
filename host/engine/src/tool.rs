//! Tools' components behind the port [`Tool`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::ports::tool::{Tool, ToolCall, ToolReply, ToolResult};
use taskrun::scope::{CallScope, RunContext};
use taskrun_journal::json;
use taskrun_journal::stop::CallAbort;
use taskrun_journal::time::millis;
use taskrun_journal::tool::{ToolFailure, ToolSpec};

use crate::bindings::interfaces::types;
use crate::bindings::tool::ToolPre;
use crate::bindings::tool::exports::taskrun::plugin::tools;
use crate::component::LoadedComponent;
use crate::course::Course;
use crate::engine::Engine;
use crate::error::LoadError;
use crate::grants::Role;
use crate::guest::Mode;
use crate::guest::{AgentGrants, Guest};
use crate::inspect::TOOLS;
use crate::link::link;
use crate::state::CallState;
use crate::{apart, call, exports, measure, spec};

/// Times its CPU time that a tool may take to describe itself, for hosts that have little of it.
const PATIENCE: u32 = 10;

/// The answer of `describe`.
type Descriptions = (Vec<types::ToolSpec>,);
/// The answer of `call`.
type Answer = (Result<tools::ToolResult, types::ToolFailure>,);

struct ToolComponent {
    pre: ToolPre<CallState>,
    guest: Arc<Guest>,
    specs: Vec<ToolSpec>,
}

impl Engine {
    /// Checks a tool's component against the grants of the agent that will call it, links it,
    /// and has it describe itself.
    ///
    /// # Errors
    /// As [`Engine::agent`], [`LoadError::Describe`], [`LoadError::Starved`] or
    /// [`LoadError::Description`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the instance at once.
    pub async fn tool(
        self: &Arc<Self>,
        loaded: &LoadedComponent,
        with: AgentGrants,
    ) -> Result<Arc<dyn Tool>, LoadError> {
        let (pre, guest) = link(self, loaded, Role::Tool, with)?;
        exports::function::<(), Descriptions>(&pre, TOOLS, "describe")?;
        exports::function::<(&tools::ToolCall,), Answer>(&pre, TOOLS, "call")?;
        let pre = ToolPre::new(pre).map_err(|error| LoadError::mismatch(&error))?;
        let specs = describe(&pre, &guest, self.options().describe_deadline).await?;
        spec::check(&specs)?;
        Ok(Arc::new(ToolComponent { pre, guest, specs }))
    }
}

/// Asks a tool for its functions. It sees no time pass and the same random numbers each time, so
/// that it can only say the same. One that would go on at the end of its time, had it a processor,
/// is kept from it by the host.
async fn describe(
    pre: &ToolPre<CallState>,
    guest: &Arc<Guest>,
    deadline: Duration,
) -> Result<Vec<ToolSpec>, LoadError> {
    let scope = apart::scope(RunContext::default(), deadline.saturating_mul(PATIENCE));
    let pre = pre.clone();
    let course = Course::bounded(guest.engine.options().slice, deadline);
    let on = (Mode::Describe, course.clone());
    let described = call::run_on(guest, Arc::clone(&scope), on, move |store| {
        Box::pin(async move {
            let tool = pre.instantiate_async(&mut *store).await?;
            tool.taskrun_plugin_tools().call_describe(store).await
        })
    })
    .await;
    apart::show_log(guest, &scope, "describe");
    let is_used_up = course.cpu_limit_met().is_some();
    let starved_at = course.cpu_time_if_ready().filter(|_| !is_used_up);
    let described = described.map_err(|abort| match (abort, starved_at) {
        (CallAbort::Deadline { limit_ms }, Some(cpu)) => {
            LoadError::Starved { limit_ms, cpu_ms: millis(cpu) }
        }
        (abort, _) => LoadError::Describe(abort),
    })?;
    let specs: Vec<ToolSpec> = described.into_iter().map(ToolSpec::from).collect();
    measure::check(measure::specs(&specs), guest.limits.result_bytes)
        .map_err(LoadError::Describe)?;
    Ok(specs)
}

#[async_trait]
impl Tool for ToolComponent {
    fn digest(&self) -> &str {
        &self.guest.digest
    }

    fn hears_cancellation(&self) -> bool {
        self.guest.hears_cancellation
    }

    fn specs(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(
        &self,
        call: ToolCall,
        scope: Arc<CallScope>,
    ) -> Result<Result<ToolReply, ToolFailure>, CallAbort> {
        let (pre, limit) = (self.pre.clone(), self.guest.limits.result_bytes);
        call::run(&self.guest, scope, Mode::Call, move |store| {
            Box::pin(async move {
                let tool = pre.instantiate_async(&mut *store).await?;
                let tools = tool.taskrun_plugin_tools();
                let result = tools.call_call(&mut *store, &(&call).into()).await?;
                // Looking at what it answered is part of the call: of its slice, and its deadline.
                Ok(match result {
                    Ok(value) => {
                        let value = ToolResult::from(value);
                        let bytes = measure::tool_result(&value);
                        store.data().before_work(bytes).await;
                        checked(value, bytes, limit)
                            .map(|value| Ok(ToolReply::Value(Box::new(value))))
                    }
                    Err(failure) => {
                        let failure = ToolFailure::from(failure);
                        let bytes = measure::tool_failure(&failure);
                        store.data().before_work(bytes).await;
                        checked_failure(failure, bytes, limit).map(Err)
                    }
                })
            })
        })
        .await?
    }
}

/// Holds a value to its limit and its form.
fn checked(value: ToolResult, bytes: usize, limit: u64) -> Result<ToolResult, CallAbort> {
    measure::check(bytes, limit)?;
    check_json("its result", &value.value)?;
    let bounds = value.bounds.as_ref().and_then(|bounds| bounds.continuation.as_ref());
    let extra = value.telemetry.as_ref().and_then(|telemetry| telemetry.extra.as_ref());
    for (what, text) in [
        ("its server data", value.server_data.as_ref()),
        ("what continues its result", bounds),
        ("its telemetry", extra),
    ] {
        text.map_or(Ok(()), |text| check_json(what, text))?;
    }
    Ok(value)
}

/// The same for a failure.
fn checked_failure(
    failure: ToolFailure,
    bytes: usize,
    limit: u64,
) -> Result<ToolFailure, CallAbort> {
    measure::check(bytes, limit)?;
    if let Some(hint) = &failure.retry_hint {
        let mut inputs = [&hint.example_input, &hint.prior_input].into_iter().flatten();
        inputs.try_for_each(|input| check_json("an input in its hint", input))?;
    }
    Ok(failure)
}

fn check_json(what: &str, text: &str) -> Result<(), CallAbort> {
    json::check(text)
        .map_err(|problem| CallAbort::Contract { detail: format!("{what} is not JSON: {problem}") })
}
