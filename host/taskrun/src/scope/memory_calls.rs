//! Asking memory, through the tape and the journal, and changing it.

use taskrun_journal::event::{Event, MemoryAnswer};
use taskrun_journal::fact::{
    FACT_CHANGES_MAX, FACTS_ANSWER_BYTES_MAX, FACTS_MAX, Fact, MemoryError, MemoryRequest,
    MemoryScope, QUERY_BYTES_MAX, SEARCH_MAX, check_key, query_words,
};
use taskrun_journal::memory::{FactChange, FactOutcome, FactWriter};
use taskrun_journal::runs::ANSWERS_BYTES_MAX;
use taskrun_journal::text::cut;

use super::CallScope;
use super::digest::digest;
use super::memory::MemoryAccess;
use super::tape::Answered;

impl CallScope {
    fn memory(&self) -> Result<&MemoryAccess, MemoryError> {
        self.parts.services.memory.as_ref().ok_or(MemoryError::Absent)
    }

    /// Looks for facts.
    ///
    /// # Errors
    /// [`MemoryError`]: [`MemoryError::Absent`] if the call has no memory,
    /// [`MemoryError::Limit`] if it was given too much already.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn ask_memory(&self, request: MemoryRequest) -> Result<Vec<Fact>, MemoryError> {
        let access = self.memory()?;
        let request = bounded(request)?;
        if self.open().memory_bytes >= ANSWERS_BYTES_MAX {
            let kind = "memory-bytes".to_owned();
            return Err(MemoryError::Limit { kind, cap: ANSWERS_BYTES_MAX as u64 });
        }
        let digest = digest(&request).await;
        let (call, recorded) = self.recorded_answer(&digest).ok_or(MemoryError::Canceled)?;
        let answer = match recorded {
            Some(Answered::Memory(answer)) => (*answer).into(),
            Some(other @ (Answered::Model(_) | Answered::Controller(_))) => {
                self.diverged(&format!("{other:?}"), "a question to memory");
                return Err(MemoryError::Canceled);
            }
            None => {
                let operation = request.operation().to_owned();
                let answer = tokio::select! {
                    biased;
                    () = self.parts.stop.asked() => return Err(MemoryError::Canceled),
                    answer = look(access, &request) => answer,
                };
                self.keep_memory_answer(call, operation, digest, &answer).await?;
                answer
            }
        };
        let bytes = answer.as_ref().map_or(0, |facts| facts.iter().map(Fact::bytes).sum());
        let mut open = self.open();
        open.memory_bytes = open.memory_bytes.saturating_add(bytes);
        drop(open);
        answer
    }

    /// Records an answer and returns when that is durable: a step that runs again is given what it
    /// was given before, whatever was written meanwhile.
    async fn keep_memory_answer(
        &self,
        call: u32,
        operation: String,
        request: String,
        answer: &Result<Vec<Fact>, MemoryError>,
    ) -> Result<(), MemoryError> {
        if !self.is_journalled() {
            return Ok(());
        }
        let answer = Box::new(MemoryAnswer::from(answer.clone()));
        let durable =
            self.record_durably(Event::MemoryAnswered { call, operation, request, answer });
        tokio::select! {
            biased;
            () = self.parts.stop.asked() => Err(MemoryError::Canceled),
            () = durable => Ok(()),
        }
    }

    /// Changes a fact and says whether there was something to change. The same change of a call that
    /// is repeated is made once.
    ///
    /// # Errors
    /// [`MemoryError`]; the change may have been made after [`MemoryError::Storage`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the change may have been made.
    pub async fn change_memory(
        &self,
        scope: MemoryScope,
        change: FactChange,
    ) -> Result<bool, MemoryError> {
        let access = self.memory()?;
        let (key, bytes) = match &change {
            FactChange::Put(fact) => {
                fact.check()?;
                (fact.key.clone(), Some(fact.bytes() as u64))
            }
            FactChange::Delete(key) => {
                check_key(key)?;
                (key.clone(), None)
            }
        };
        let by = self.named_change(access, scope, &change)?;
        let changed = tokio::select! {
            biased;
            () = self.parts.stop.asked() => return Err(MemoryError::Canceled),
            changed = access.memory.change_fact(access.place(scope), change, by) => changed?,
        };
        match changed {
            FactOutcome::Full => {
                return Err(MemoryError::Full { scope, cap: FACTS_MAX as u64 });
            }
            FactOutcome::Absent => return Ok(false),
            // Whether the event of the first time is there is not known: its host died.
            FactOutcome::Done | FactOutcome::Repeated => {}
        }
        self.open().events.push(Event::MemoryAppended { scope, key, bytes });
        self.parts.wake.notify_one();
        Ok(true)
    }

    /// The name of a change: the call, what is changed, and how many equal ones were before it. So
    /// the order in which a repeated call makes its changes does not matter.
    fn named_change(
        &self,
        access: &MemoryAccess,
        scope: MemoryScope,
        change: &FactChange,
    ) -> Result<Option<FactWriter>, MemoryError> {
        let mut hash = blake3::Hasher::new();
        let mut add = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        add(scope.as_str());
        match change {
            // When it is written is no part of what is asked for.
            FactChange::Put(fact) => {
                add("put");
                add(&fact.key);
                add(&fact.text);
                fact.labels.iter().flat_map(|(key, value)| [key, value]).for_each(|part| add(part));
            }
            FactChange::Delete(key) => {
                add("delete");
                add(key);
            }
        }
        let what = hash.finalize().to_hex()[..32].to_owned();
        let mut open = self.open();
        open.memory_changes += 1;
        if open.memory_changes > FACT_CHANGES_MAX {
            let kind = "changes of facts in a call".to_owned();
            return Err(MemoryError::Limit { kind, cap: u64::from(FACT_CHANGES_MAX) });
        }
        let before = open.equal_changes.entry(what.clone()).or_default();
        let number = *before;
        *before += 1;
        drop(open);
        Ok(access.writer.as_ref().map(|(run, call)| FactWriter {
            run: run.clone(),
            change: format!("{call}:{what}:{number}"),
        }))
    }
}

/// Holds a request to its bounds, so that what the journal says of it is bounded too.
fn bounded(request: MemoryRequest) -> Result<MemoryRequest, MemoryError> {
    Ok(match request {
        MemoryRequest::Get { key, scopes } => {
            check_key(&key)?;
            MemoryRequest::Get { key, scopes }
        }
        MemoryRequest::Search { query, limit, scopes } => {
            let limit = limit.min(u32::try_from(SEARCH_MAX).unwrap_or(u32::MAX));
            MemoryRequest::Search { query: cut(&query, QUERY_BYTES_MAX).to_owned(), limit, scopes }
        }
    })
}

/// Facts that answer a request, up to [`FACTS_ANSWER_BYTES_MAX`].
async fn look(access: &MemoryAccess, request: &MemoryRequest) -> Result<Vec<Fact>, MemoryError> {
    let mut found: Vec<Fact> = Vec::new();
    match request {
        MemoryRequest::Get { key, scopes } => {
            for scope in scopes {
                if let Some(fact) = access.memory.fact(access.place(*scope), key).await? {
                    found.push(fact);
                    break;
                }
            }
        }
        MemoryRequest::Search { query, limit, scopes } => {
            let words = query_words(query);
            let mut left = *limit as usize;
            for scope in scopes {
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
        }
    }
    let mut bytes = 0_usize;
    found.retain(|fact| {
        bytes = bytes.saturating_add(fact.bytes());
        bytes <= FACTS_ANSWER_BYTES_MAX
    });
    Ok(found)
}
