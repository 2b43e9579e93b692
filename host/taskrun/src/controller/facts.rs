//! Facts, for people and programs outside of runs.

use taskrun_journal::fact::{
    Fact, FactNamespace, InvalidFact, OwnerSession, SEARCH_MAX, check_key, query_words,
};
use taskrun_journal::list::Scope;
use taskrun_journal::memory::{FactChange, FactOutcome};
use taskrun_journal::message::Labels;
use taskrun_journal::spec::KEY_BYTES_MAX;

use super::Client;
use crate::error::ControllerError;

/// Most facts on a page.
pub const FACTS_PAGE_MAX: usize = 200;

impl From<InvalidFact> for ControllerError {
    fn from(invalid: InvalidFact) -> Self {
        Self::Invalid { field: invalid.field, reason: invalid.reason }
    }
}

/// Where the facts of a session are, or those of the tenant. A caller who sees only a part of the
/// tenant reaches the sessions in that.
fn place(scope: &Scope, session: Option<&OwnerSession>) -> Result<FactNamespace, ControllerError> {
    let Some(session) = session else {
        return Ok(FactNamespace { tenant: scope.tenant.clone(), session: None });
    };
    let (owner, id) = (session.owner_user_id.trim(), session.id.trim());
    for (field, text) in [("owner_user_id", owner), ("session", id)] {
        if text.is_empty() || text.len() > KEY_BYTES_MAX {
            let reason = format!("{field} has 1 to {KEY_BYTES_MAX} bytes");
            return Err(ControllerError::Invalid { field, reason });
        }
    }
    let own = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|own| own == has);
    if !own(&scope.owner_user_id, owner) || !own(&scope.parent_session_id, id) {
        return Err(ControllerError::NotFound { id: id.to_owned() });
    }
    let session = OwnerSession { owner_user_id: owner.to_owned(), id: id.to_owned() };
    Ok(FactNamespace { tenant: scope.tenant.clone(), session: Some(session) })
}

/// The same for whoever wants to change something there: what everybody in a tenant may be told is
/// written by those who see all of it.
fn own_place(
    scope: &Scope,
    session: Option<&OwnerSession>,
) -> Result<FactNamespace, ControllerError> {
    let sees_all = scope.owner_user_id.is_none() && scope.parent_session_id.is_none();
    if session.is_none() && !sees_all {
        let reason = "facts of the tenant are written by its operator".to_owned();
        return Err(ControllerError::Forbidden { reason });
    }
    place(scope, session)
}

impl Client {
    /// Keeps a fact of a session, or of the tenant, in place of the one that has its key.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`], [`ControllerError::NotFound`] for a session outside the scope,
    /// [`ControllerError::Forbidden`] if only the operator may, [`ControllerError::Limit`] if no
    /// more facts fit there, [`ControllerError::Storage`].
    pub async fn put_fact(
        &self,
        session: Option<&OwnerSession>,
        key: &str,
        (text, labels): (String, Labels),
    ) -> Result<Fact, ControllerError> {
        let place = own_place(self.scope(), session)?;
        let written_at = self.controller.0.parts.clock.now();
        let fact = Fact { key: key.to_owned(), text, labels, written_at };
        fact.check()?;
        let change = FactChange::Put(fact.clone());
        match self.controller.0.parts.memory.change_fact(&place, change, None).await? {
            FactOutcome::Done | FactOutcome::Repeated | FactOutcome::Absent => Ok(fact),
            FactOutcome::Full => {
                let cap = taskrun_journal::fact::FACTS_MAX as u64;
                Err(ControllerError::Limit { kind: "facts", cap })
            }
        }
    }

    /// Forgets a fact; says whether there was one.
    ///
    /// # Errors
    /// Those of [`Self::put_fact`].
    pub async fn delete_fact(
        &self,
        session: Option<&OwnerSession>,
        key: &str,
    ) -> Result<bool, ControllerError> {
        let place = own_place(self.scope(), session)?;
        check_key(key)?;
        let change = FactChange::Delete(key.to_owned());
        let changed = self.controller.0.parts.memory.change_fact(&place, change, None).await?;
        Ok(changed == FactOutcome::Done)
    }

    /// The fact of a key.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`], [`ControllerError::NotFound`] for a session outside the scope,
    /// [`ControllerError::Storage`].
    pub async fn fact(
        &self,
        session: Option<&OwnerSession>,
        key: &str,
    ) -> Result<Option<Fact>, ControllerError> {
        let place = place(self.scope(), session)?;
        check_key(key)?;
        Ok(self.controller.0.parts.memory.fact(&place, key).await?)
    }

    /// Facts with words of a query, best first, at most `limit` and [`SEARCH_MAX`].
    ///
    /// # Errors
    /// Those of [`Self::fact`].
    pub async fn search_facts(
        &self,
        session: Option<&OwnerSession>,
        query: &str,
        limit: usize,
    ) -> Result<Vec<Fact>, ControllerError> {
        let place = place(self.scope(), session)?;
        let words = query_words(query);
        if words.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self
            .controller
            .0
            .parts
            .memory
            .search_facts(&place, &words, limit.min(SEARCH_MAX))
            .await?)
    }

    /// Facts after a key, in the order of their keys, at most `limit` and [`FACTS_PAGE_MAX`].
    ///
    /// # Errors
    /// Those of [`Self::fact`].
    pub async fn facts(
        &self,
        session: Option<&OwnerSession>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Fact>, ControllerError> {
        let place = place(self.scope(), session)?;
        Ok(self.controller.0.parts.memory.facts(&place, after, limit.min(FACTS_PAGE_MAX)).await?)
    }
}
