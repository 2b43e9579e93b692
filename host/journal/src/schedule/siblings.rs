//! The admission of runs that are kept together or not at all.

use super::admission::{HostLoad, Register, TreeSize, refusal};
use super::continuations::autonomous_place;
use super::names::name_place;
use super::queue::Rank;
use crate::ids::RunId;
use crate::pin::Ready;
use crate::run::Run;
use crate::spec::RunSpec;
use crate::status::Status;
use crate::store::{CreateOutcome, NewRun, SessionKey};
use crate::time::Timestamp;

/// New runs of one transaction, of which the store has none before all are admitted.
#[derive(Default)]
pub struct Siblings<'n> {
    admitted: Vec<&'n NewRun>,
}

impl<'n> Siblings<'n> {
    /// The answer to the next of them, as if those that were admitted were kept.
    ///
    /// # Errors
    /// Those of the store.
    pub fn answer<R: Register>(
        &mut self,
        new: &'n NewRun,
        register: &mut R,
    ) -> Result<CreateOutcome, R::Error> {
        let mut beside = Beside { register, admitted: &self.admitted };
        Ok(match refusal(new, &mut beside)? {
            Some(answer) => answer,
            None => {
                self.admitted.push(new);
                CreateOutcome::New
            }
        })
    }
}

/// A store with the runs that were admitted before.
struct Beside<'a, 'n, R> {
    register: &'a mut R,
    admitted: &'a [&'n NewRun],
}

impl<R> Beside<'_, '_, R> {
    fn count(&self) -> u64 {
        self.admitted.len() as u64
    }
}

impl<R: Register> Register for Beside<'_, '_, R> {
    type Error = R::Error;

    fn keyed(&mut self, tenant: &str, key: &str) -> Result<Option<(String, Run)>, R::Error> {
        self.register.keyed(tenant, key)
    }

    fn completed(
        &mut self,
        task: u64,
        since: Timestamp,
        fits: &dyn Fn(&Run) -> bool,
    ) -> Result<Option<Run>, R::Error> {
        self.register.completed(task, since, fits)
    }

    fn status(&mut self, id: &RunId) -> Result<Option<Status>, R::Error> {
        self.register.status(id)
    }

    fn has_session_ended(&mut self, key: &SessionKey) -> Result<bool, R::Error> {
        self.register.has_session_ended(key)
    }

    fn named(&mut self, spec: &RunSpec) -> Result<Option<RunId>, R::Error> {
        let is_same = |other: &&&NewRun| {
            let other = &other.run.spec;
            other.name.is_some() && other.name == spec.name && name_place(other) == name_place(spec)
        };
        match self.admitted.iter().find(is_same) {
            Some(other) => Ok(Some(other.run.id().clone())),
            None => self.register.named(spec),
        }
    }

    fn autonomous(&mut self, spec: &RunSpec) -> Result<Option<Run>, R::Error> {
        let place = autonomous_place(spec);
        let is_same = |other: &&&NewRun| autonomous_place(&other.run.spec) == place;
        match self.admitted.iter().find(is_same) {
            Some(other) => Ok(Some(other.run.clone())),
            None => self.register.autonomous(spec),
        }
    }

    fn queued(&mut self, spec: &RunSpec) -> Result<u64, R::Error> {
        Ok(self.register.queued(spec)? + self.count())
    }

    fn tree(&mut self, spec: &RunSpec) -> Result<TreeSize, R::Error> {
        let TreeSize { runs, held } = self.register.tree(spec)?;
        Ok(TreeSize { runs: runs + self.count(), held })
    }

    fn has_open_serial(&mut self, spec: &RunSpec) -> Result<bool, R::Error> {
        self.register.has_open_serial(spec)
    }

    fn first(
        &mut self,
        ready: &Ready,
        tree_slots: u32,
        now: Timestamp,
    ) -> Result<Option<Rank>, R::Error> {
        self.register.first(ready, tree_slots, now)
    }

    fn is_due(&mut self, run: &RunId) -> Result<bool, R::Error> {
        self.register.is_due(run)
    }

    fn hosts(&mut self, spec: &RunSpec) -> Result<Vec<HostLoad>, R::Error> {
        self.register.hosts(spec)
    }
}
