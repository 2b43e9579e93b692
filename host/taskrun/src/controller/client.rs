//! The controller's door: what one principal may do with the runs that it may see.

use taskrun_journal::ids::RunId;
use taskrun_journal::list::{Cursor, ListFilter, PAGE_MAX, Page, Scope};
use taskrun_journal::run::Run;

use super::Controller;
use crate::error::ControllerError;

/// The one on whose behalf a request is made: a person at a terminal, the holder of a token, a run.
/// A front door makes it from what it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The runs, sessions and facts that it may see and change. Everything else looks to it as if it
    /// did not exist.
    pub scope: Scope,
    /// The name under which its answers, pauses and messages are recorded; not blank.
    pub name: String,
}

/// The name in the record of an operator who gives none.
const OPERATOR: &str = "operator";

impl From<&Scope> for Principal {
    /// The owner of a scope, or its tenant's operator.
    fn from(scope: &Scope) -> Self {
        let name = scope.owner_user_id.as_deref().unwrap_or(OPERATOR).to_owned();
        Self { scope: scope.clone(), name }
    }
}

/// The controller as one principal has it: every request of that principal, and no other, goes
/// through one of these. Clones are the same.
#[derive(Clone)]
pub struct Client {
    pub(super) controller: Controller,
    pub(super) principal: Principal,
}

/// The id of a run that may exist.
///
/// # Errors
/// [`ControllerError::Invalid`] for an empty one; [`ControllerError::NotFound`] for what is no id.
pub(super) fn run_id(id: &str) -> Result<RunId, ControllerError> {
    RunId::new(id).map_err(|_| match id.trim() {
        "" => ControllerError::Invalid { field: "id", reason: "empty run id".to_owned() },
        _ => not_found(id),
    })
}

pub(super) fn not_found(id: &str) -> ControllerError {
    ControllerError::NotFound { id: id.to_owned() }
}

impl Client {
    /// The same, with another name in the record.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.principal.name);
        self
    }

    /// The controller, for what concerns no principal.
    #[must_use]
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// The principal.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The run as it stands.
    ///
    /// # Errors
    /// [`ControllerError::NotFound`], also outside the scope; [`ControllerError::Storage`].
    pub async fn get(&self, id: &str) -> Result<Run, ControllerError> {
        let run = self.controller.0.parts.store.get(&run_id(id)?).await?;
        run.filter(|run| self.scope().admits(run)).ok_or_else(|| not_found(id))
    }

    /// A page of runs, the one changed last first. A `limit` over [`PAGE_MAX`] counts as that.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn list(
        &self,
        filter: &ListFilter,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, ControllerError> {
        let limit = limit.clamp(1, PAGE_MAX);
        Ok(self.controller.0.parts.store.list(self.scope(), filter, after, limit).await?)
    }

    pub(super) fn scope(&self) -> &Scope {
        &self.principal.scope
    }
}

impl Controller {
    /// This controller as a principal has it.
    #[must_use]
    pub fn at(&self, principal: impl Into<Principal>) -> Client {
        Client { controller: self.clone(), principal: principal.into() }
    }
}
