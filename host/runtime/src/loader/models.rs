//! The models of a policy, and those that cannot be used.

use std::collections::BTreeMap;
use std::sync::Arc;

use taskrun::clock::{SystemClock, SystemRandom};
use taskrun::scope::model::Model;
use taskrun_engine::AgentError;
use taskrun_journal::time::{Clock, Random};
use taskrun_models::{OpenErrorCause, OpenModels};
use taskrun_policy::{AgentPolicy, Policy};

/// A model of a policy that cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("model {model} cannot be used")]
pub struct ModelError {
    /// Its name in the policy.
    pub model: String,
    /// The place where the policy names it.
    pub place: String,
    /// The model's error.
    pub source: Arc<OpenErrorCause>,
}

/// The models of a policy that cannot be used, by their names.
pub(crate) type ModelFaults = BTreeMap<String, ModelError>;

/// The models of a policy that cannot be used: scripts, cassettes and keys are read, and no model is
/// asked.
#[must_use]
pub fn check_models(policy: &Policy) -> Vec<ModelError> {
    open_models(policy, &BTreeMap::new()).1.into_values().collect()
}

/// The models of a policy, ready to be asked; those that are kept as they are. Beside them those that
/// cannot be used.
pub(crate) fn open_models(
    policy: &Policy,
    kept: &BTreeMap<String, Arc<dyn Model>>,
) -> (BTreeMap<String, Arc<dyn Model>>, ModelFaults) {
    let (clock, random): (Arc<dyn Clock>, Arc<dyn Random>) =
        (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    let OpenModels { by_name, faults } =
        taskrun_models::open_beside(&policy.models, kept, &clock, &random);
    let faults = faults.into_iter().map(|error| model_error(policy, error));
    (by_name, faults.map(|fault| (fault.model.clone(), fault)).collect())
}

/// Says whether the model that an agent asks, if it does not name one, can be used.
///
/// # Errors
/// [`AgentError::Model`].
pub(crate) fn check_model(faults: &ModelFaults, agent: &AgentPolicy) -> Result<(), AgentError> {
    let fault = agent.model.as_ref().and_then(|model| faults.get(model));
    let Some(ModelError { model, place, source }) = fault else { return Ok(()) };
    Err(AgentError::Model {
        agent: agent.name.clone(),
        model: model.clone(),
        place: place.clone(),
        source: Arc::<OpenErrorCause>::clone(source),
    })
}

/// The error of a model, with the place of its table in the policy.
pub(crate) fn model_error(policy: &Policy, error: taskrun_models::OpenError) -> ModelError {
    let place = policy.models.get(&error.model).map(|model| model.location.to_string());
    let place = place.unwrap_or_else(|| policy.path.display().to_string());
    ModelError { model: error.model, place, source: Arc::new(error.cause) }
}
