//! `memory-write`: keeping and forgetting facts, through the call's scope.

use taskrun_journal::fact::{Fact, MemoryError, MemoryScope as Scope};
use taskrun_journal::memory::FactChange;
use taskrun_policy::{Capability, Use};

use crate::bindings::memory_write::{Host, MemoryScope, NewFact, WriteError};
use crate::state::CallState;

impl CallState {
    /// Decides about a change, and makes it.
    async fn change_memory(
        &mut self,
        scope: MemoryScope,
        change: FactChange,
    ) -> wasmtime::Result<Result<bool, WriteError>> {
        self.enter_capability("memory-write")?;
        let scope = match scope {
            MemoryScope::Session => Scope::Session,
            MemoryScope::Tenant => Scope::Tenant,
        };
        if let Err(denied) = self.allow(&Use::Memory(Capability::MemoryWrite, scope)) {
            return Ok(Err(WriteError::Denied(denied)));
        }
        Ok(self.scope.change_memory(scope, change).await.map_err(to_guest))
    }
}

impl Host for CallState {
    async fn put(
        &mut self,
        scope: MemoryScope,
        fact: NewFact,
    ) -> wasmtime::Result<Result<(), WriteError>> {
        let labels = fact.labels.into_iter().collect();
        let written_at = self.scope.now();
        let fact = Fact { key: fact.key, text: fact.text, labels, written_at };
        let kept = self.change_memory(scope, FactChange::Put(fact)).await?;
        Ok(kept.map(|_| ()))
    }

    async fn delete(
        &mut self,
        scope: MemoryScope,
        key: String,
    ) -> wasmtime::Result<Result<bool, WriteError>> {
        self.change_memory(scope, FactChange::Delete(key)).await
    }
}

fn to_guest(error: MemoryError) -> WriteError {
    match error {
        MemoryError::Invalid { reason, .. } => WriteError::Invalid(reason),
        MemoryError::Full { .. } => WriteError::Full,
        limit @ MemoryError::Limit { .. } => WriteError::Invalid(limit.to_string()),
        MemoryError::Canceled => WriteError::Canceled,
        other @ (MemoryError::Absent | MemoryError::Storage { .. }) => {
            WriteError::Other(other.to_string())
        }
    }
}
