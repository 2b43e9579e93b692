//! Providers of language models behind [`taskrun::scope::model::Model`].
//!
//! *Remote* ones speak one of the usual protocols over HTTP, to the address that the policy names
//! and with the key that it names. Those without a network are for tests, demonstrations and
//! replay: *scripted*, *echo*, *replay*; *faulty* puts failures before another one, and any of
//! them may be recorded.

mod cassette;
mod echo;
mod faulty;
mod key;
mod record;
mod remote;
mod replay;
mod scripted;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

use taskrun::scope::model::Model;
use taskrun_journal::time::{Clock, Random};
use taskrun_policy::{ModelPolicy, Provider};

pub use cassette::{
    CASSETTE_BYTES_MAX, CASSETTE_ENTRIES_MAX, CASSETTE_LINE_BYTES_MAX, CassetteError,
};
pub use echo::Echo;
pub use key::KeyError;
pub use remote::RemoteError;
pub use scripted::{LINE_BYTES_MAX, ScriptError, ScriptedModel};

/// The reason that a model of a policy cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("model {model} cannot be used")]
pub struct OpenError {
    /// Its name in the policy.
    pub model: String,
    /// The fault of the model.
    #[source]
    pub cause: OpenErrorCause,
}

/// The fault of a model.
#[derive(Debug, thiserror::Error)]
pub enum OpenErrorCause {
    /// The model's script.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The cassette that it answers from or records into.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// The model's provider.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// It stands before a model that the policy does not have.
    #[error("there is no model {0:?}")]
    Unknown(String),
}

/// The models of a policy, by their names, ready to be asked. Scripts, cassettes and keys are read
/// at once; no connection is made.
///
/// # Errors
/// The first one that cannot be used.
pub fn open(
    policies: &BTreeMap<String, ModelPolicy>,
    clock: &Arc<dyn Clock>,
    random: &Arc<dyn Random>,
) -> Result<BTreeMap<String, Arc<dyn Model>>, OpenError> {
    open_beside(policies, &BTreeMap::new(), clock, random)
}

/// The same, where those that are `kept` are taken as they are: so one that was asked before is not
/// asked from its beginning again.
///
/// # Errors
/// As [`open`].
pub fn open_beside(
    policies: &BTreeMap<String, ModelPolicy>,
    kept: &BTreeMap<String, Arc<dyn Model>>,
    clock: &Arc<dyn Clock>,
    random: &Arc<dyn Random>,
) -> Result<BTreeMap<String, Arc<dyn Model>>, OpenError> {
    let mut models: BTreeMap<String, Arc<dyn Model>> = BTreeMap::new();
    let is_faulty = |policy: &&ModelPolicy| matches!(policy.provider, Provider::Faulty { .. });
    let (faulty, others): (Vec<_>, Vec<_>) = policies.values().partition(is_faulty);
    // Faulty ones last: they stand before others.
    for policy in others.into_iter().chain(faulty) {
        if let Some(model) = kept.get(&policy.name) {
            models.insert(policy.name.clone(), Arc::clone(model));
            continue;
        }
        let model = provider(policy, &models, clock, random)
            .and_then(|model| recorded(policy, model))
            .map_err(|cause| OpenError { model: policy.name.clone(), cause })?;
        models.insert(policy.name.clone(), model);
    }
    Ok(models)
}

fn provider(
    policy: &ModelPolicy,
    models: &BTreeMap<String, Arc<dyn Model>>,
    clock: &Arc<dyn Clock>,
    random: &Arc<dyn Random>,
) -> Result<Arc<dyn Model>, OpenErrorCause> {
    let name = policy.model.as_deref();
    Ok(match &policy.provider {
        Provider::Scripted { script, strict } => {
            Arc::new(ScriptedModel::load(script, *strict, name)?)
        }
        Provider::Echo => Arc::new(Echo::new(name)),
        Provider::Remote(remote) => {
            Arc::new(remote::Remote::new(policy, remote, Arc::clone(clock), Arc::clone(random))?)
        }
        Provider::Replay { file, strict } => Arc::new(replay::Replay::load(file, *strict)?),
        Provider::Faulty { of, faults, seed } => {
            let model = models.get(of).ok_or_else(|| OpenErrorCause::Unknown(of.clone()))?;
            Arc::new(faulty::Faulty::new(Arc::clone(model), faults.clone(), *seed))
        }
    })
}

fn recorded(policy: &ModelPolicy, model: Arc<dyn Model>) -> Result<Arc<dyn Model>, OpenErrorCause> {
    Ok(match &policy.record {
        Some(path) => Arc::new(record::Record::new(model, path)?),
        None => model,
    })
}
