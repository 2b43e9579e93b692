//! Providers of language models behind [`taskrun::ports::model::Model`]: those that need no
//! network, for tests, demonstrations and replay.

mod echo;
mod scripted;

use std::sync::Arc;

use taskrun::policy::{ModelPolicy, Provider};
use taskrun::ports::model::Model;

pub use echo::Echo;
pub use scripted::{LINE_BYTES_MAX, ScriptError, Scripted};

/// The provider that a policy names.
///
/// # Errors
/// [`ScriptError`] if its script cannot be read.
pub fn provider(policy: &ModelPolicy) -> Result<Arc<dyn Model>, ScriptError> {
    Ok(match &policy.provider {
        Provider::Scripted { script, strict } => {
            Arc::new(Scripted::load(script, *strict, policy.model.as_deref())?)
        }
        Provider::Echo => Arc::new(Echo::new(policy.model.as_deref())),
    })
}
