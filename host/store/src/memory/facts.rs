//! Facts, and the words in them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;

use async_trait::async_trait;
use taskrun_journal::fact::{FACTS_MAX, Fact, FactNamespace, rank};
use taskrun_journal::ids::RunId;
use taskrun_journal::memory::{FactChange, FactOutcome, FactWriter, Memory};
use taskrun_journal::store::StoreError;

use super::MemoryStore;

/// All facts.
#[derive(Clone, Default)]
pub(super) struct Facts {
    places: BTreeMap<FactNamespace, BTreeMap<String, IndexedFact>>,
    /// Changes that runs made.
    changes: HashMap<RunId, HashSet<String>>,
}

/// A fact and the words in it.
#[derive(Clone)]
struct IndexedFact {
    fact: Fact,
    words: BTreeSet<String>,
}

impl Facts {
    /// Makes a change; `by` only for a run that is there.
    pub(super) fn change(
        &mut self,
        place: &FactNamespace,
        change: FactChange,
        by: Option<FactWriter>,
    ) -> FactOutcome {
        let made =
            |by: &FactWriter| self.changes.get(&by.run).is_some_and(|c| c.contains(&by.change));
        if by.as_ref().is_some_and(made) {
            return FactOutcome::Repeated;
        }
        let changed = match change {
            FactChange::Put(fact) => self.put(place, fact),
            FactChange::Delete(key) => self.delete(place, &key),
        };
        if let (Some(by), FactOutcome::Done) = (by, changed) {
            self.changes.entry(by.run).or_default().insert(by.change);
        }
        changed
    }

    fn put(&mut self, place: &FactNamespace, fact: Fact) -> FactOutcome {
        let facts = self.places.entry(place.clone()).or_default();
        if facts.len() >= FACTS_MAX && !facts.contains_key(&fact.key) {
            return FactOutcome::Full;
        }
        let words = fact.words();
        facts.insert(fact.key.clone(), IndexedFact { fact, words });
        FactOutcome::Done
    }

    fn delete(&mut self, place: &FactNamespace, key: &str) -> FactOutcome {
        let Some(facts) = self.places.get_mut(place) else { return FactOutcome::Absent };
        let changed = facts.remove(key).map_or(FactOutcome::Absent, |_| FactOutcome::Done);
        if facts.is_empty() {
            self.places.remove(place);
        }
        changed
    }

    pub(super) fn get(&self, place: &FactNamespace, key: &str) -> Option<Fact> {
        Some(self.places.get(place)?.get(key)?.fact.clone())
    }

    pub(super) fn search(
        &self,
        place: &FactNamespace,
        words: &[String],
        limit: usize,
    ) -> Vec<Fact> {
        let facts = self.places.get(place).into_iter().flat_map(BTreeMap::values);
        let hits =
            |known: &IndexedFact| words.iter().filter(|word| known.words.contains(*word)).count();
        let mut found: Vec<_> =
            facts.map(|known| (hits(known), &known.fact)).filter(|(hits, _)| *hits > 0).collect();
        found.sort_by_cached_key(|(hits, fact)| rank(*hits, fact));
        found.into_iter().take(limit).map(|(_, fact)| fact.clone()).collect()
    }

    pub(super) fn list(
        &self,
        place: &FactNamespace,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<Fact> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let facts = self.places.get(place).into_iter();
        let facts = facts.flat_map(|facts| facts.range::<str, _>((from, Bound::Unbounded)));
        facts.take(limit).map(|(_, known)| known.fact.clone()).collect()
    }

    pub(super) fn forget_session(
        &mut self,
        tenant: &str,
        owner: Option<&str>,
        session: &str,
    ) -> u64 {
        let ends = |place: &FactNamespace| {
            place.tenant == tenant
                && place.session.as_ref().is_some_and(|own| {
                    own.id == session && owner.is_none_or(|owner| owner == own.owner_user_id)
                })
        };
        let mut forgotten = 0;
        self.places.retain(|place, facts| {
            let ends = ends(place);
            forgotten += if ends { facts.len() as u64 } else { 0 };
            !ends
        });
        forgotten
    }

    /// Forgets what is known of the changes of a run.
    pub(super) fn remove(&mut self, run: &RunId) {
        self.changes.remove(run);
    }
}

#[async_trait]
impl Memory for MemoryStore {
    async fn change_fact(
        &self,
        place: &FactNamespace,
        change: FactChange,
        by: Option<FactWriter>,
    ) -> Result<FactOutcome, StoreError> {
        let mut state = self.lock();
        // The changes of a run are forgotten with the run.
        let by = by.filter(|by| state.runs.contains_key(&by.run));
        Ok(state.facts.change(place, change, by))
    }

    async fn fact(&self, place: &FactNamespace, key: &str) -> Result<Option<Fact>, StoreError> {
        Ok(self.lock().facts.get(place, key))
    }

    async fn search_facts(
        &self,
        place: &FactNamespace,
        words: &[String],
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError> {
        Ok(self.lock().facts.search(place, words, limit))
    }

    async fn facts(
        &self,
        place: &FactNamespace,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Fact>, StoreError> {
        Ok(self.lock().facts.list(place, after, limit))
    }

    async fn forget_session(
        &self,
        tenant: &str,
        owner: Option<&str>,
        session: &str,
    ) -> Result<u64, StoreError> {
        Ok(self.lock().facts.forget_session(tenant, owner, session))
    }
}
