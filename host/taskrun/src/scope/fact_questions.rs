//! Questions to memory.

use serde::Serialize;
use taskrun_journal::event::{HostAnswer, MemoryAnswer};
use taskrun_journal::fact::{
    FACTS_ANSWER_BYTES_MAX, Fact, MemoryError, MemoryScope, QUERY_BYTES_MAX, SEARCH_MAX, check_key,
    query_words,
};
use taskrun_journal::runs::ANSWERS_BYTES_MAX;
use taskrun_journal::text::cut;
use taskrun_policy::Capability;

use super::CallScope;
use super::ask::{Misfit, Origin, Question};
use super::memory::MemoryAccess;

/// Asks for the fact of a key, of the first scope that has one.
#[derive(Clone, Debug, Serialize)]
pub struct FactByKey {
    /// The key.
    pub key: String,
    /// The scopes in which it is looked for, the nearest first.
    pub scopes: Vec<MemoryScope>,
}

/// Asks for facts with words of a query, those of the first scope before those of the next.
#[derive(Clone, Debug, Serialize)]
pub struct FactSearch {
    /// The query, as the guest wrote it, at most [`QUERY_BYTES_MAX`] of it.
    pub query: String,
    /// At most so many, and at most [`SEARCH_MAX`].
    pub limit: u32,
    /// The scopes in which they are looked for, the nearest first.
    pub scopes: Vec<MemoryScope>,
}

/// Both kinds, in words.
const KIND: &str = "a question to memory";

impl Question for FactByKey {
    type Answer = Option<Fact>;
    type Error = MemoryError;
    type Source = MemoryAccess;

    const KIND: &'static str = KIND;

    fn asked(&self) -> impl Serialize + Send + '_ {
        self
    }

    fn admit(&mut self, scope: &CallScope) -> Result<MemoryAccess, MemoryError> {
        let access = scope.memory(Capability::Memory)?.clone();
        check_key(&self.key)?;
        scope.has_memory_left()?;
        Ok(access)
    }

    fn model_of(_source: &MemoryAccess) -> Option<&str> {
        None
    }

    fn begin(&mut self, _scope: &CallScope, _digest: &str) {}

    async fn put(self, _scope: &CallScope, access: MemoryAccess, _call: u32) -> HostAnswer {
        HostAnswer::Memory(MemoryAnswer::Get(find(&access, &self).await.into()))
    }

    fn accept(
        scope: &CallScope,
        answer: HostAnswer,
        _origin: Origin,
    ) -> Result<Result<Option<Fact>, MemoryError>, Misfit> {
        let HostAnswer::Memory(MemoryAnswer::Get(reply)) = answer else {
            return Err(Misfit(format!("{answer:?}")));
        };
        let found: Result<Option<Fact>, MemoryError> = reply.into();
        scope.count_facts(found.iter().flatten());
        Ok(found)
    }
}

impl Question for FactSearch {
    type Answer = Vec<Fact>;
    type Error = MemoryError;
    type Source = MemoryAccess;

    const KIND: &'static str = KIND;

    fn asked(&self) -> impl Serialize + Send + '_ {
        self
    }

    fn admit(&mut self, scope: &CallScope) -> Result<MemoryAccess, MemoryError> {
        let access = scope.memory(Capability::Memory)?.clone();
        self.limit = self.limit.min(u32::try_from(SEARCH_MAX).unwrap_or(u32::MAX));
        let bounded = cut(&self.query, QUERY_BYTES_MAX).len();
        self.query.truncate(bounded);
        scope.has_memory_left()?;
        Ok(access)
    }

    fn model_of(_source: &MemoryAccess) -> Option<&str> {
        None
    }

    fn begin(&mut self, _scope: &CallScope, _digest: &str) {}

    async fn put(self, _scope: &CallScope, access: MemoryAccess, _call: u32) -> HostAnswer {
        HostAnswer::Memory(MemoryAnswer::Search(search(&access, &self).await.into()))
    }

    fn accept(
        scope: &CallScope,
        answer: HostAnswer,
        _origin: Origin,
    ) -> Result<Result<Vec<Fact>, MemoryError>, Misfit> {
        let HostAnswer::Memory(MemoryAnswer::Search(reply)) = answer else {
            return Err(Misfit(format!("{answer:?}")));
        };
        let found: Result<Vec<Fact>, MemoryError> = reply.into();
        scope.count_facts(found.iter().flatten());
        Ok(found)
    }
}

impl CallScope {
    /// Memory, if the call has one, for the use of a capability.
    pub(super) fn memory(&self, capability: Capability) -> Result<&MemoryAccess, MemoryError> {
        self.parts.services.memory.as_ref().ok_or_else(|| {
            self.note_absent(capability);
            MemoryError::Absent
        })
    }

    fn has_memory_left(&self) -> Result<(), MemoryError> {
        if self.open().memory_bytes >= ANSWERS_BYTES_MAX {
            let kind = "memory-bytes".to_owned();
            return Err(MemoryError::Limit { kind, cap: ANSWERS_BYTES_MAX as u64 });
        }
        Ok(())
    }

    fn count_facts<'f>(&self, facts: impl Iterator<Item = &'f Fact>) {
        let bytes = facts.map(Fact::bytes).sum();
        let mut open = self.open();
        open.memory_bytes = open.memory_bytes.saturating_add(bytes);
    }
}

async fn find(access: &MemoryAccess, question: &FactByKey) -> Result<Option<Fact>, MemoryError> {
    for scope in &question.scopes {
        let fact = access.memory.fact(access.place(*scope), &question.key).await?;
        if let Some(fact) = fact {
            return Ok(Some(fact));
        }
    }
    Ok(None)
}

/// Facts that answer a query, up to [`FACTS_ANSWER_BYTES_MAX`].
async fn search(access: &MemoryAccess, question: &FactSearch) -> Result<Vec<Fact>, MemoryError> {
    let mut found: Vec<Fact> = Vec::new();
    let words = query_words(&question.query);
    let mut left = question.limit as usize;
    for scope in &question.scopes {
        if words.is_empty() || left == 0 {
            break;
        }
        let place = access.place(*scope);
        let mut facts = access.memory.search_facts(place, &words, SEARCH_MAX).await?;
        // A fact of the session stands before that of the tenant with the same key.
        facts.retain(|fact| found.iter().all(|nearer| nearer.key != fact.key));
        facts.truncate(left);
        left -= facts.len();
        found.extend(facts);
    }
    let mut bytes = 0_usize;
    found.retain(|fact| {
        bytes = bytes.saturating_add(fact.bytes());
        bytes <= FACTS_ANSWER_BYTES_MAX
    });
    Ok(found)
}
