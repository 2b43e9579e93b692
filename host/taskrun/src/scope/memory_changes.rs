//! Changes of facts. They are not on the tape: memory knows the change of a call that is repeated.

use taskrun_journal::event::Event;
use taskrun_journal::fact::{FACT_CHANGES_MAX, FACTS_MAX, MemoryError, MemoryScope, check_key};
use taskrun_journal::memory::{FactChange, FactOutcome, FactWriter};
use taskrun_policy::Capability;

use super::CallScope;
use super::memory::MemoryAccess;

impl CallScope {
    /// Changes a fact; gives `false` if there was nothing to change. The same change of a call that
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
        let access = self.memory(Capability::MemoryWrite)?;
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
        let change = access.memory.change_fact(access.place(scope), change, by);
        let changed = self.unless_stopped(change).await??;
        match changed {
            FactOutcome::Full => {
                return Err(MemoryError::Full { scope, cap: FACTS_MAX as u64 });
            }
            FactOutcome::Absent => return Ok(false),
            // It is not known if the event of the first time is there: its host died.
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
