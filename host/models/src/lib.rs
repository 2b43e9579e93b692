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
mod regular_file;
mod remote;
mod replay;
mod scripted;
mod unusable;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

use taskrun::scope::model::Model;
use taskrun_journal::time::{Clock, Random};
use taskrun_policy::{ModelPolicy, Provider};

pub use cassette::CassetteError;
pub use echo::Echo;
pub use key::{KeyError, Secret};
pub use remote::RemoteError;
pub use scripted::ScriptError;

use scripted::ScriptedModel;
use unusable::Unusable;

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
    /// It stands before a model that cannot be used itself.
    #[error("model {0}, before which it stands, cannot be used")]
    Before(String),
}

/// The models of a policy.
pub struct OpenModels {
    /// All of them, by their names, ready to be asked. One that cannot be used refuses to answer.
    pub by_name: BTreeMap<String, Arc<dyn Model>>,
    /// Those that cannot be used, in the order of their names but for faulty ones, which are last.
    pub faults: Vec<OpenError>,
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
    let OpenModels { by_name, faults } = open_beside(policies, &BTreeMap::new(), clock, random);
    faults.into_iter().next().map_or(Ok(by_name), Err)
}

/// The same, where those that are `kept` are taken as they are, so that one that was asked before is
/// not asked from its beginning again, and one that cannot be used keeps no other from it.
pub fn open_beside(
    policies: &BTreeMap<String, ModelPolicy>,
    kept: &BTreeMap<String, Arc<dyn Model>>,
    clock: &Arc<dyn Clock>,
    random: &Arc<dyn Random>,
) -> OpenModels {
    let mut models: BTreeMap<String, Arc<dyn Model>> = BTreeMap::new();
    let mut faults: Vec<OpenError> = Vec::new();
    let is_faulty = |policy: &&ModelPolicy| matches!(policy.provider, Provider::Faulty { .. });
    let (faulty, others): (Vec<_>, Vec<_>) = policies.values().partition(is_faulty);
    // Faulty ones last: they stand before others.
    for policy in others.into_iter().chain(faulty) {
        let model = match kept.get(&policy.name) {
            Some(model) => Ok(Arc::clone(model)),
            None => provider(policy, (&models, &faults), clock, random)
                .and_then(|model| recorded(policy, model)),
        };
        let model = model.unwrap_or_else(|cause| {
            faults.push(OpenError { model: policy.name.clone(), cause });
            Arc::new(Unusable)
        });
        models.insert(policy.name.clone(), model);
    }
    OpenModels { by_name: models, faults }
}

fn provider(
    policy: &ModelPolicy,
    (models, unusable): (&BTreeMap<String, Arc<dyn Model>>, &[OpenError]),
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
            if unusable.iter().any(|error| error.model == *of) {
                return Err(OpenErrorCause::Before(of.clone()));
            }
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
