//! `memory`: facts of the session and the tenant, through the call's scope.

use taskrun::scope::{FactByKey, FactSearch};
use taskrun_journal::fact as domain;
use taskrun_journal::fact::MemoryScope;
use taskrun_policy::{Capability, Denial, Use};

use crate::bindings::interfaces::memory::{Fact, Host, MemoryError};
use crate::state::CallState;

impl CallState {
    /// The memories that the rules let the guest read, the nearest first.
    fn readable(&self) -> Result<Vec<MemoryScope>, MemoryError> {
        let mut scopes = Vec::new();
        let mut refusals: Vec<(MemoryScope, Denial)> = Vec::new();
        for scope in MemoryScope::ALL {
            match self.scope.decide(&Use::Memory(Capability::Memory, scope)) {
                Ok(()) => scopes.push(scope),
                Err(denied) => refusals.push((scope, denied)),
            }
        }
        // Not to be let into one of them is how a policy narrows a search, and no refusal of it.
        match refusals.into_iter().next() {
            Some((scope, denied)) if scopes.is_empty() => {
                self.record_denial(Capability::Memory, scope.as_str(), &denied);
                Err(MemoryError::Denied(denied.for_guest))
            }
            Some(_) | None => Ok(scopes),
        }
    }
}

impl Host for CallState {
    async fn get(&mut self, key: String) -> wasmtime::Result<Result<Option<Fact>, MemoryError>> {
        self.enter_capability("memory")?;
        let scopes = match self.readable() {
            Ok(scopes) => scopes,
            Err(denied) => return Ok(Err(denied)),
        };
        let found = self.scope.ask(FactByKey { key, scopes }).await;
        Ok(found.map(|fact| fact.map(Into::into)).map_err(Into::into))
    }

    async fn search(
        &mut self,
        query: String,
        limit: u32,
    ) -> wasmtime::Result<Result<Vec<Fact>, MemoryError>> {
        self.enter_capability("memory")?;
        let scopes = match self.readable() {
            Ok(scopes) => scopes,
            Err(denied) => return Ok(Err(denied)),
        };
        let found = self.scope.ask(FactSearch { query, limit, scopes }).await;
        Ok(found.map(|facts| facts.into_iter().map(Into::into).collect()).map_err(Into::into))
    }
}

impl From<domain::Fact> for Fact {
    fn from(fact: domain::Fact) -> Self {
        Self {
            key: fact.key,
            text: fact.text,
            labels: fact.labels.into_iter().collect(),
            written_at: fact.written_at.0,
        }
    }
}

impl From<domain::MemoryError> for MemoryError {
    fn from(error: domain::MemoryError) -> Self {
        Self::Other(error.to_string())
    }
}
