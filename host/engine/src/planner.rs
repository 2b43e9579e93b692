//! Agents' components behind the port [`Planner`].

use std::sync::Arc;

use async_trait::async_trait;
use taskrun::ports::planner::{FinalizeInput, PlanInput, PlanResult, Planner};
use taskrun::scope::CallScope;
use taskrun_journal::message::Labels;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::stop::CallAbort;

use crate::bindings::agent::AgentPre;
use crate::bindings::finalizer::AgentFinalizerPre;
use crate::component::LoadedComponent;
use crate::convert::finalizer::{finalize_input, metadata};
use crate::convert::planner::{resume_input, start_input};
use crate::engine::Engine;
use crate::error::LoadError;
use crate::grants::Role;
use crate::guest::Mode;
use crate::guest::{AgentGrants, Guest};
use crate::inspect::FINALIZER;
use crate::link::link;
use crate::state::CallState;
use crate::{call, measure};

struct AgentComponent {
    pre: AgentPre<CallState>,
    /// The same component by its other export, if it has that.
    finalizer: Option<AgentFinalizerPre<CallState>>,
    guest: Arc<Guest>,
}

impl Engine {
    /// Checks an agent's component against its grants and links it.
    ///
    /// # Errors
    /// [`LoadError::WrongWorld`], [`LoadError::Denied`], [`LoadError::Preopens`],
    /// [`LoadError::Workspace`] or [`LoadError::Mismatch`].
    pub fn agent(
        self: &Arc<Self>,
        loaded: &LoadedComponent,
        with: AgentGrants,
    ) -> Result<Arc<dyn Planner>, LoadError> {
        let (pre, guest) = link(self, loaded, Role::Agent, with)?;
        let mismatch = |error| LoadError::Mismatch { detail: format!("{error:#}") };
        let finalizer = match loaded.inspect().exports(FINALIZER) {
            true => Some(AgentFinalizerPre::new(pre.clone()).map_err(mismatch)?),
            false => None,
        };
        let pre = AgentPre::new(pre).map_err(mismatch)?;
        Ok(Arc::new(AgentComponent { pre, finalizer, guest }))
    }
}

#[async_trait]
impl Planner for AgentComponent {
    fn digest(&self) -> &str {
        &self.guest.digest
    }

    fn hears_cancellation(&self) -> bool {
        self.guest.hears_cancellation
    }

    fn has_finalizer(&self) -> bool {
        self.finalizer.is_some()
    }

    async fn finalize(
        &self,
        input: FinalizeInput,
        scope: Arc<CallScope>,
    ) -> Result<Result<Labels, PlannerError>, CallAbort> {
        let Some(pre) = self.finalizer.clone() else { return Ok(Ok(Labels::new())) };
        let result = call::run(&self.guest, scope, Mode::Call, move |store| {
            Box::pin(async move {
                let agent = pre.instantiate_async(&mut *store).await?;
                let finalizer = agent.taskrun_plugin_finalizer();
                finalizer.call_finalize(store, &finalize_input(&input)).await
            })
        })
        .await?;
        let limit = self.guest.limits.result_bytes;
        match result {
            Ok(labels) => {
                measure::check(measure::labels(&labels), limit)?;
                Ok(Ok(metadata(labels)?))
            }
            Err(error) => {
                let error = PlannerError::from(error);
                measure::check(measure::planner_error(&error), limit)?;
                Ok(Err(error))
            }
        }
    }

    async fn plan(
        &self,
        input: PlanInput,
        scope: Arc<CallScope>,
    ) -> Result<Result<PlanResult, PlannerError>, CallAbort> {
        let (pre, limit) = (self.pre.clone(), self.guest.limits.result_bytes);
        call::run(&self.guest, scope, Mode::Call, move |store| {
            Box::pin(async move {
                let agent = pre.instantiate_async(&mut *store).await?;
                let planner = agent.taskrun_plugin_planner();
                let result = match &input.resume {
                    None => planner.call_plan_start(&mut *store, &start_input(&input)).await?,
                    Some(resume) => {
                        let input = resume_input(&input, resume);
                        planner.call_plan_resume(&mut *store, &input).await?
                    }
                };
                // Looking at what it decided is part of the step: of its slice, and its deadline.
                Ok(match result {
                    Ok(result) => {
                        let result = PlanResult::from(result);
                        measure::check(measure::plan_result(&result), limit).map(|()| Ok(result))
                    }
                    Err(error) => {
                        let error = PlannerError::from(error);
                        measure::check(measure::planner_error(&error), limit).map(|()| Err(error))
                    }
                })
            })
        })
        .await?
    }
}
