//! The port to language models: a request in, a stream of chunks out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use taskrun_journal::completion::{
    Chunk, Completion, CompletionBuilder, CompletionRequest, ModelError,
};
use taskrun_journal::money::Price;
use taskrun_policy::{Grants, RETRY_PATIENCE_DEFAULT, Use};

use super::CallScope;

/// A provider under one name of the policy's table of models.
#[async_trait]
pub trait Model: Send + Sync {
    /// Asks, and returns when the provider begins to answer. Dropping the stream, or this
    /// future, cancels the provider's request.
    ///
    /// The stream ends after [`Chunk::Stop`] or after an error, and yields exactly one of them.
    ///
    /// # Errors
    /// Every case of [`ModelError`] but `Denied`, `Budget` and `Canceled`, which are the host's.
    async fn stream(&self, request: CompletionRequest) -> Result<ModelStream, ModelError>;
}

/// An answer on its way.
pub type ModelStream = BoxStream<'static, Result<Chunk, ModelError>>;

/// Models that an agent may use.
pub struct Models {
    /// Providers by their name in the policy.
    pub by_name: BTreeMap<String, Arc<dyn Model>>,
    /// The prices of their tokens, as far as they are known.
    pub prices: BTreeMap<String, Price>,
    /// The settings of those that have other ones than the default.
    pub settings: BTreeMap<String, ModelSettings>,
    /// The agent's own.
    pub default: Option<String>,
}

/// The settings of a model that the host keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    /// The time for which a run may be put off in all, where it is pushed back.
    pub patience: Duration,
    /// The tokens of its context window, if they are known.
    pub context_tokens: Option<u32>,
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self { patience: RETRY_PATIENCE_DEFAULT, context_tokens: None }
    }
}

/// A model that was chosen for a question.
#[derive(Clone)]
pub struct ChosenModel {
    /// Its name in the policy.
    pub(super) name: String,
    /// `None` if the policy does not have it any more.
    pub(super) model: Option<Arc<dyn Model>>,
    /// The price of its tokens, if that is known.
    pub(super) price: Option<Price>,
    /// The time for which a run may be put off in all where it is pushed back.
    pub(super) patience: Duration,
}

impl Models {
    /// Chooses a model that the rules allow, whether the policy still has it or not.
    pub(super) fn choose(
        &self,
        wanted: Option<&str>,
        scope: &CallScope,
    ) -> Result<ChosenModel, ModelError> {
        let Some(name) = wanted.or(self.default.as_deref()) else {
            let unknown = "(this agent has no model of its own)";
            return Err(match scope.denial_of_models() {
                Some(denied) => ModelError::Denied(denied.for_guest),
                None => ModelError::UnknownModel(unknown.to_owned()),
            });
        };
        let decided = match wanted {
            Some(name) => scope.decide(&Use::Model(name)),
            None => scope.decide_own_model(name),
        };
        decided.map_err(|denied| ModelError::Denied(denied.for_guest))?;
        Ok(ChosenModel {
            name: name.to_owned(),
            model: self.by_name.get(name).map(Arc::clone),
            price: self.prices.get(name).copied(),
            patience: self.settings_of(name).patience,
        })
    }

    fn settings_of(&self, name: &str) -> ModelSettings {
        self.settings.get(name).copied().unwrap_or_default()
    }

    /// The tokens of the context window of the agent's own model, if they are known.
    pub(crate) fn context_tokens(&self) -> Option<u32> {
        self.settings_of(self.default.as_deref()?).context_tokens
    }

    /// True if an agent of these rules may ask a model, and the price of each that it may ask is
    /// known.
    #[must_use]
    pub(crate) fn has_prices(&self, rules: &Grants) -> bool {
        let may_ask = |name: &String| rules.decide(&Use::Model(name)).allowed;
        self.by_name.keys().any(may_ask) && self.unpriced(rules).is_none()
    }

    /// The first model that an agent of these rules may ask and of which no price is known.
    #[must_use]
    pub fn unpriced(&self, rules: &Grants) -> Option<&str> {
        let mut names = self.by_name.keys().map(String::as_str);
        names.find(|name| {
            rules.decide(&Use::Model(name)).allowed && !self.prices.contains_key(*name)
        })
    }
}

/// Drains a stream into a whole answer.
///
/// Its parts stand in the order of their chunks; text that follows on text is joined, usage summed.
/// A request for a tool without a name is dropped.
///
/// # Errors
/// The stream's error, or [`ModelError::CutOff`] if it ends without a stop.
pub async fn collect(mut stream: ModelStream) -> Result<Completion, ModelError> {
    let mut collected = CompletionBuilder::default();
    while let Some(chunk) = stream.next().await {
        if let Some(done) = collected.push(chunk?) {
            return Ok(done);
        }
    }
    Err(ModelError::CutOff)
}
