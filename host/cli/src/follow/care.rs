//! Seeing to it that runs go on while somebody waits for them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use taskrun::controller::Controller;
use taskrun_journal::hold::{Hold, WaitMode};
use taskrun_journal::ids::RunId;
use taskrun_journal::list::Scope;
use taskrun_journal::run::{Lifecycle, Run};
use taskrun_journal::status::BlockedOn;
use taskrun_journal::store::Host;
use taskrun_journal::time::{Clock, Timestamp};

use super::nobody_executes;
use crate::context::{Books, Context};
use crate::failure::Outcome;
use crate::host::{Attendant, load_text, told, waited_for};
use crate::output::Printer;

/// Looks after runs for as long as somebody waits for them.
pub(crate) struct Care {
    controller: Controller,
    scope: Scope,
    books: Books,
    attendant: Option<Attendant>,
    printer: Printer,
    clock: Arc<dyn Clock>,
    data_dir: Option<PathBuf>,
    warned: bool,
    /// Set once the user was told that the agent is being loaded.
    said: bool,
}

impl Care {
    /// Starts hosts only if there is an attendant, and those of its policy only.
    #[must_use]
    pub(crate) fn new(
        context: &Context,
        controller: &Controller,
        books: &Books,
        attendant: Option<Attendant>,
    ) -> Self {
        Self {
            controller: controller.clone(),
            scope: context.scope(),
            books: books.clone(),
            attendant,
            printer: context.printer.clone(),
            clock: Arc::clone(&context.clock),
            data_dir: context.data_dir().ok(),
            warned: false,
            said: false,
        }
    }

    /// With hosts of the policy at hand, if there is one.
    #[must_use]
    pub(crate) fn at_hand(context: &Context, controller: &Controller, books: &Books) -> Self {
        Self::new(context, controller, books, Attendant::at_hand(context, books))
    }

    /// Frees the runs of dead hosts, and sees to it that a host lives where one is needed for this
    /// run to go on. Gives the run, or one that it waits for, that waits for somebody outside.
    ///
    /// # Errors
    /// If the store fails, or no host can be started.
    pub(crate) async fn attend(&mut self, id: &RunId) -> Outcome<Option<Run>> {
        let run = self.controller.get(&self.scope, id.as_str()).await?;
        if run.status().is_terminal() {
            return Ok(None);
        }
        self.controller.sweep().await?;
        let now = self.clock.now();
        if needs_somebody(&run, now) {
            return Ok(Some(run));
        }
        self.find_host(&run).await?;
        match run.state.hold {
            Hold::Runs { .. } => {
                let tree = self.tree(&run).await?;
                Ok(asking(&run, &tree, now).cloned())
            }
            Hold::Nobody | Hold::Beat | Hold::Wanted { .. } | Hold::Host { .. } => Ok(None),
        }
    }

    /// Sees to it that a host lives if something in the tree of this run can go on.
    ///
    /// # Errors
    /// If the store fails, or no host can be started.
    pub(crate) async fn find_host(&mut self, run: &Run) -> Outcome<()> {
        let digest = &run.spec.policy_digest;
        let hosts = self.books.hosts.hosts().await?;
        if hosts.iter().any(|host| host.policy_digest == *digest) {
            self.say_what_is_loaded(run, &hosts);
            return Ok(());
        }
        let (tree, now) = (self.tree(run).await?, self.clock.now());
        if !tree.values().any(|run| needs_host(run, &tree, now)) {
            return Ok(());
        }
        if let Some(attendant) = self.attendant.as_mut().filter(|a| a.digest() == digest) {
            return attendant.attend().await.map_err(|failure| failure.about(run.id()));
        }
        if !self.warned {
            self.warned = true;
            self.printer.talk(nobody_executes(run.id()));
        }
        Ok(())
    }

    /// Says once that a run waits for its agent to be loaded.
    fn say_what_is_loaded(&mut self, run: &Run, hosts: &[Host]) {
        let Some(dir) = self.data_dir.as_ref().filter(|_| !self.said) else { return };
        let told = told(dir, hosts);
        if let Some(load) = waited_for(&told, std::slice::from_ref(run)).next() {
            self.printer.talk(load_text(load, self.clock.now()));
            self.said = true;
        }
    }

    /// The whole tree of a run, whoever may see it: nothing of it is shown.
    async fn tree(&self, run: &Run) -> Outcome<HashMap<RunId, Run>> {
        let scope = Scope::tenant(&run.spec.tenant);
        let mut all = HashMap::from([(run.id().clone(), run.clone())]);
        // Without its first run, which somebody may have removed, it is looked at from here.
        let tree = match self.controller.tree(&scope, run.spec.root_run_id.as_str()).await {
            Ok(tree) => tree,
            Err(taskrun::error::ControllerError::NotFound { .. }) => {
                self.controller.tree(&scope, run.id().as_str()).await?
            }
            Err(error) => return Err(error.into()),
        };
        let runs = std::iter::once(tree.run).chain(tree.beneath);
        all.extend(runs.map(|run| (run.id().clone(), run)));
        Ok(all)
    }
}

/// Whether a run waits for somebody outside and for nothing else.
#[must_use]
pub(crate) fn needs_somebody(run: &Run, now: Timestamp) -> bool {
    // Whoever paused it, and set no time, is the one who lets it go on.
    if run.state.pause.as_ref().is_some_and(|pause| pause.until.is_none()) {
        return run.state.hold.host().is_none();
    }
    let Lifecycle::Blocked { on, .. } = &run.state.lifecycle else { return false };
    let is_asked = match on {
        BlockedOn::Input | BlockedOn::Confirmation | BlockedOn::ExternalTools => true,
        BlockedOn::Pause => false,
        BlockedOn::Children | BlockedOn::Schedule => return false,
    };
    match run.state.hold {
        Hold::Nobody => true,
        // What is asked with a time limit is wanted when that is over.
        Hold::Wanted { not_before, .. } => is_asked && not_before > now,
        Hold::Beat | Hold::Runs { .. } | Hold::Host { .. } => false,
    }
}

/// Whether a run can go on and somebody has to execute it for that. Runs outside the tree count as
/// ended: whoever takes it up looks for itself.
fn needs_host(run: &Run, tree: &HashMap<RunId, Run>, now: Timestamp) -> bool {
    match &run.state.hold {
        // The heart that takes it beats in a host.
        Hold::Wanted { .. } | Hold::Beat => true,
        Hold::Runs { until: Some(until), .. } if *until <= now => true,
        Hold::Runs { runs, mode, .. } => {
            let has_ended = |id: &RunId| tree.get(id).is_none_or(|run| run.status().is_terminal());
            match mode {
                WaitMode::All => runs.iter().all(has_ended),
                WaitMode::Any => runs.iter().any(has_ended),
            }
        }
        Hold::Nobody | Hold::Host { .. } => false,
    }
}

/// The run that waits for somebody outside and without which this one does not go on.
fn asking<'t>(run: &'t Run, tree: &'t HashMap<RunId, Run>, now: Timestamp) -> Option<&'t Run> {
    let Hold::Runs { runs, mode, until: None } = &run.state.hold else {
        return needs_somebody(run, now).then_some(run);
    };
    // The store lets no run wait for one that waits for it, so this comes to an end.
    let mut found = runs.iter().map(|id| tree.get(id).and_then(|run| asking(run, tree, now)));
    match mode {
        WaitMode::All => found.flatten().next(),
        WaitMode::Any => {
            let first = found.next()??;
            found.all(|one| one.is_some()).then_some(first)
        }
    }
}
