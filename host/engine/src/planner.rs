//! Agents' components behind the port [`Planner`].

use std::sync::Arc;

use async_trait::async_trait;
use taskrun::ports::planner::{ConversationView, FinalizeInput, PlanInput, PlanResult, Planner};
use taskrun::scope::CallScope;
use taskrun_journal::message::Labels;
use taskrun_journal::plan::PlannerError;
use taskrun_journal::stop::CallAbort;
use taskrun_journal::text::cut;
use wasmtime::Store;
use wasmtime::component::{ComponentExportIndex, Instance, InstancePre, TypedFunc};

use crate::bindings::agent::exports::taskrun::plugin::planner as guest;
use crate::bindings::finalizer::AgentFinalizerPre;
use crate::bindings::finalizer::exports::taskrun::plugin::finalizer;
use crate::component::LoadedComponent;
use crate::convert::finalizer::{finalize_input, metadata};
use crate::convert::input::{self, ResumeInput, StartInput};
use crate::engine::Engine;
use crate::error::LoadError;
use crate::failure::Violation;
use crate::grants::Role;
use crate::guest::Mode;
use crate::guest::{AgentGrants, Guest};
use crate::inspect::{FINALIZER, PLANNER};
use crate::link::link;
use crate::state::CallState;
use crate::{call, exports, measure};

struct AgentComponent {
    pre: InstancePre<CallState>,
    exports: PlannerExports,
    /// The same component by its other export, if it has that. Where its form is another than this
    /// host's that is the answer of each call.
    finalizer: Option<Result<AgentFinalizerPre<CallState>, CallAbort>>,
    guest: Arc<Guest>,
}

/// The answer of a plan step.
type Answer = (Result<guest::PlanResult, guest::PlannerError>,);
type Start<'a> = TypedFunc<(StartInput<'a>,), Answer>;
type Resume<'a> = TypedFunc<(ResumeInput<'a>,), Answer>;
/// The answer of a finalizer.
type FinalizerAnswer = (Result<Vec<(String, String)>, finalizer::FinalizerError>,);

/// The functions of an agent's component. Their parameters are not of the types that are generated
/// for them, which would own a copy of the conversation.
#[derive(Clone, Copy)]
struct PlannerExports {
    start: ComponentExportIndex,
    resume: ComponentExportIndex,
}

impl PlannerExports {
    fn of(pre: &InstancePre<CallState>) -> Result<Self, LoadError> {
        let start = exports::function::<(StartInput<'_>,), Answer>(pre, PLANNER, "plan-start")?;
        let resume = exports::function::<(ResumeInput<'_>,), Answer>(pre, PLANNER, "plan-resume")?;
        Ok(Self { start, resume })
    }

    fn start<'a>(
        &self,
        store: &mut Store<CallState>,
        instance: &Instance,
    ) -> wasmtime::Result<Start<'a>> {
        instance.get_typed_func(store, self.start)
    }

    fn resume<'a>(
        &self,
        store: &mut Store<CallState>,
        instance: &Instance,
    ) -> wasmtime::Result<Resume<'a>> {
        instance.get_typed_func(store, self.resume)
    }

    /// Asks an instance for a plan.
    async fn plan(
        &self,
        store: &mut Store<CallState>,
        instance: &Instance,
        input: &PlanInput,
    ) -> wasmtime::Result<Result<guest::PlanResult, guest::PlannerError>> {
        let parts = input::parts(&input.messages);
        let (plan,) = match &input.resume {
            None => {
                let start = self.start(store, instance)?;
                start.call_async(store, (StartInput::new(input, &parts),)).await?
            }
            Some(resume) => {
                let next = self.resume(store, instance)?;
                next.call_async(store, (ResumeInput::new(input, resume, &parts),)).await?
            }
        };
        Ok(plan)
    }
}

/// True if the host ended a step in the middle of its work: it is executed again on its record, and
/// reads on then in the answers that it has open.
fn was_stopped<R>(result: &wasmtime::Result<R>, call: &CallState) -> bool {
    let Err(error) = result else { return false };
    let violation = call.violation().or_else(|| error.downcast_ref());
    matches!(violation, Some(Violation::Stopped(_)))
}

/// An agent's component by its finalizer.
fn finalizer_of(pre: InstancePre<CallState>) -> Result<AgentFinalizerPre<CallState>, LoadError> {
    type Params<'a> = (&'a finalizer::FinalizeInput,);
    exports::function::<Params<'_>, FinalizerAnswer>(&pre, FINALIZER, "finalize")?;
    AgentFinalizerPre::new(pre).map_err(|error| LoadError::mismatch(&error))
}

/// The end of each call of a finalizer that cannot be called. It goes on record with each run, and
/// the component may have names of any length.
fn unfit(error: &LoadError) -> CallAbort {
    const WORDS_BYTES_MAX: usize = 1 << 10;
    CallAbort::Contract { detail: cut(&error.to_string(), WORDS_BYTES_MAX).to_owned() }
}

impl Engine {
    /// Checks an agent's component against its grants and links it. A finalizer that does not fit
    /// keeps it from nothing, as it cannot change the outcome of a run: it adds nothing.
    ///
    /// # Errors
    /// [`LoadError::WrongWorld`], [`LoadError::Denied`], [`LoadError::Preopens`],
    /// [`LoadError::Workspace`], [`LoadError::TooMuch`] or [`LoadError::Mismatch`].
    pub fn agent(
        self: &Arc<Self>,
        loaded: &LoadedComponent,
        with: AgentGrants,
    ) -> Result<Arc<dyn Planner>, LoadError> {
        let (pre, guest) = link(self, loaded, Role::Agent, with)?;
        let exports = PlannerExports::of(&pre)?;
        let finalizer = loaded.inspect().exports(FINALIZER).then(|| {
            finalizer_of(pre.clone()).map_err(|error| {
                tracing::warn!(agent = %guest.source, %error, "the finalizer adds nothing");
                unfit(&error)
            })
        });
        Ok(Arc::new(AgentComponent { pre, exports, finalizer, guest }))
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

    fn view(&self) -> ConversationView {
        self.guest.view
    }

    fn has_finalizer(&self) -> bool {
        self.finalizer.is_some()
    }

    async fn finalize(
        &self,
        input: FinalizeInput,
        scope: Arc<CallScope>,
    ) -> Result<Result<Labels, PlannerError>, CallAbort> {
        let Some(finalizer) = self.finalizer.clone() else { return Ok(Ok(Labels::new())) };
        let pre = finalizer?;
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
        let (pre, exports) = (self.pre.clone(), self.exports);
        let limit = self.guest.limits.result_bytes;
        call::run(&self.guest, scope, Mode::Call, move |store| {
            Box::pin(async move {
                let instance = pre.instantiate_async(&mut *store).await?;
                let result = exports.plan(&mut *store, &instance, &input).await;
                if !was_stopped(&result, store.data()) {
                    // They are on record also where it forgot them, or ended by a fault of its own.
                    store.data_mut().abandon_streams();
                }
                let result = result?;
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
