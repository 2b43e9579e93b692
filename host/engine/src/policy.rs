//! Policies' components behind the port [`PolicyEngine`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskrun::ports::policy_engine::{PolicyEngine, PolicyFailure, PolicyInput};
use taskrun_policy::PolicyDecision;

use crate::bindings::interfaces::types;
use crate::bindings::policy::PolicyEnginePre;
use crate::bindings::policy::exports::taskrun::plugin::policy as guest;
use crate::component::LoadedComponent;
use crate::engine::Engine;
use crate::error::LoadError;
use crate::grants::Role;
use crate::guest::Mode;
use crate::guest::{AgentGrants, Guest};
use crate::inspect::POLICY;
use crate::link::link;
use crate::state::CallState;
use crate::{apart, call, exports, measure};

/// The answer of a policy.
type Decision = (Result<guest::PolicyDecision, types::ToolError>,);

struct PolicyComponent {
    pre: PolicyEnginePre<CallState>,
    guest: Arc<Guest>,
    name: String,
    timeout: Duration,
}

impl Engine {
    /// Links a policy's component, which may use nothing but its log. `name` names it in journals;
    /// a decision takes no longer than `timeout`, and no more than the agent's own limits.
    ///
    /// # Errors
    /// [`LoadError::WrongWorld`], [`LoadError::Denied`], [`LoadError::TooMuch`] or
    /// [`LoadError::Mismatch`].
    pub fn policy(
        self: &Arc<Self>,
        loaded: &LoadedComponent,
        with: AgentGrants,
        name: String,
        timeout: Duration,
    ) -> Result<Arc<dyn PolicyEngine>, LoadError> {
        let (pre, guest) = link(self, loaded, Role::Policy, with)?;
        exports::function::<(&guest::PolicyInput,), Decision>(&pre, POLICY, "decide")?;
        let pre = PolicyEnginePre::new(pre).map_err(|error| LoadError::mismatch(&error))?;
        Ok(Arc::new(PolicyComponent { pre, guest, name, timeout }))
    }
}

#[async_trait]
impl PolicyEngine for PolicyComponent {
    fn name(&self) -> &str {
        &self.name
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn decide(&self, input: &PolicyInput) -> Result<PolicyDecision, PolicyFailure> {
        let scope = apart::scope(input.run.clone(), self.timeout);
        let (pre, input) = (self.pre.clone(), input.into());
        let decided = call::run(&self.guest, Arc::clone(&scope), Mode::Call, move |store| {
            Box::pin(async move {
                let policy = pre.instantiate_async(&mut *store).await?;
                policy.taskrun_plugin_policy().call_decide(store, &input).await
            })
        })
        .await;
        apart::show_log(&self.guest, &scope, "decide");
        let failed = |failure: taskrun_journal::stop::CallAbort| PolicyFailure(failure.to_string());
        let decision = match decided.map_err(failed)? {
            Ok(decision) => decision,
            Err(error) => return Err(PolicyFailure(error.message)),
        };
        let names = decision.allowed_tools.as_deref().unwrap_or_default();
        let bytes = measure::texts(names)
            + measure::labels(&decision.labels)
            + measure::labels(&decision.metadata);
        measure::check(bytes, self.guest.limits.result_bytes).map_err(failed)?;
        Ok(decision.into())
    }
}
