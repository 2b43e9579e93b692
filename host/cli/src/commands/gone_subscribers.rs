//! Subscribers that are still to be told of runs, and that nobody tells: they were renamed, or are in
//! the policy no more.

use std::collections::{BTreeMap, BTreeSet};

use taskrun_journal::dispatch::{Dispatch, DispatchKey};
use taskrun_journal::ids::RunId;
use taskrun_journal::store::{Host, Store, StoreError};
use taskrun_policy::{Policy, is_terminal, is_transport};
use taskrun_runtime::Storage;

use crate::context::Context;
use crate::follow::PinFiles;
use crate::output::human;
use crate::shell;

/// Most subscribers that are named: as many lines as somebody reads.
const NAMED_MAX: usize = 10;
/// Most runs of each that are counted: one may be told of in two events, so that their ids are kept
/// for it.
const RUNS_COUNTED_MAX: usize = 1_000;
/// Most runs that are looked at in all, one after the other: a second or two of reads, and a few
/// hundred kilobytes of ids.
const RUNS_READ_MAX: usize = 10_000;

/// The subscribers that neither the policy at hand nor a living host has, with the runs of that
/// policy's file of which they are to be told: the first ones that were found, and the number of
/// events for all others, so that it takes the same memory however much is to be told.
pub(super) struct GoneSubscribers {
    policy: Policy,
    hosts: Vec<Host>,
    files: PinFiles,
    /// The runs of each, one more than are counted where there are as many.
    named: BTreeMap<String, BTreeSet<RunId>>,
    /// Events for others than these.
    further: u64,
    /// The runs that were looked at, each with true if it is of this policy's file.
    read: BTreeMap<RunId, bool>,
    /// True if there are runs that were not looked at.
    is_cut: bool,
}

impl GoneSubscribers {
    /// None so far; `None` without a policy at hand, as nothing is known of them then.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn look(
        context: &Context,
        storage: &Storage,
    ) -> Result<Option<Self>, StoreError> {
        let Some(policy) = context.policy_at_hand() else { return Ok(None) };
        Ok(Some(Self::new(policy, storage.hosts.hosts().await?, PinFiles::of(context))))
    }

    fn new(policy: Policy, hosts: Vec<Host>, files: PinFiles) -> Self {
        let (named, read) = (BTreeMap::new(), BTreeMap::new());
        Self { policy, hosts, files, named, further: 0, read, is_cut: false }
    }

    /// Takes those of some dispatches in. A run that was accepted under another file is none of
    /// this policy's: that may have its subscriber. After many runs no further one is looked at.
    pub(super) async fn add(&mut self, storage: &Storage, dispatches: &[Dispatch]) {
        for dispatch in dispatches {
            if self.is_to_be_counted(dispatch)
                && self.is_of_file(&*storage.store, &dispatch.key).await
            {
                self.count(&dispatch.key);
            }
        }
    }

    /// True if the run of a dispatch is of this policy's file, as far as it was looked at.
    async fn is_of_file(&mut self, store: &dyn Store, key: &DispatchKey) -> bool {
        if let Some(is_of_file) = self.read.get(&key.run) {
            return *is_of_file;
        }
        if self.read.len() >= RUNS_READ_MAX {
            self.is_cut = true;
            return false;
        }
        // Of one that was removed in this moment, or cannot be read, no file is known.
        let run = store.get(&key.run).await.ok().flatten();
        let is_of_file = run.is_some_and(|run| self.files.is_of(&self.policy, run.pin()));
        self.read.insert(key.run.clone(), is_of_file);
        is_of_file
    }

    /// True if a dispatch counts, should its run be of the policy at hand, and is not counted yet.
    fn is_to_be_counted(&self, dispatch: &Dispatch) -> bool {
        let DispatchKey { run, event: _, subscriber } = &dispatch.key;
        let is_counted =
            |runs: &BTreeSet<RunId>| runs.len() > RUNS_COUNTED_MAX || runs.contains(run);
        dispatch.state.is_open()
            && !self.is_known(subscriber)
            && !self.named.get(subscriber).is_some_and(is_counted)
    }

    fn count(&mut self, key: &DispatchKey) {
        if let Some(runs) = self.named.get_mut(&key.subscriber) {
            runs.insert(key.run.clone());
        } else if self.named.len() < NAMED_MAX {
            self.named.insert(key.subscriber.clone(), BTreeSet::from([key.run.clone()]));
        } else {
            self.further += 1;
        }
    }

    /// Terminals and transports are in no policy: whoever has them comes for what is there.
    fn is_known(&self, name: &str) -> bool {
        is_terminal(name)
            || is_transport(name)
            || self.policy.subscribers.contains_key(name)
            || self.hosts.iter().any(|host| host.subscribers.contains(name))
    }

    /// The words about them, a line for each that is named, and one for all others.
    pub(super) fn lines(&self, context: &Context) -> Vec<String> {
        let named = self.named.iter().map(|(name, runs)| text(context, name, runs));
        let list = context.printer.command("taskrun outbox ls");
        let cut = self.is_cut.then(|| {
            let runs = human::count(RUNS_READ_MAX as u64, "run");
            format!("there may be more of these subscribers: {runs} were looked at")
        });
        named.chain(self.further_text(&list)).chain(cut).collect()
    }

    fn further_text(&self, list: &str) -> Option<String> {
        let events = human::count(self.further, "event");
        (self.further > 0).then(|| {
            format!("{events} more for other subscribers that are in no policy here: see `{list}`")
        })
    }
}

/// The words about the subscribers of these dispatches that neither the policy at hand nor a living
/// host has, where their runs are of the file of that policy.
///
/// # Errors
/// [`StoreError`].
pub(super) async fn lines(
    context: &Context,
    storage: &Storage,
    dispatches: &[Dispatch],
) -> Result<Vec<String>, StoreError> {
    let Some(mut gone) = GoneSubscribers::look(context, storage).await? else {
        return Ok(Vec::new());
    };
    gone.add(storage, dispatches).await;
    Ok(gone.lines(context))
}

fn text(context: &Context, name: &str, runs: &BTreeSet<RunId>) -> String {
    let run = runs.first().filter(|_| runs.len() == 1).map_or("RUN", RunId::as_str);
    let subscriber = shell::option("--subscriber", name, "SUBSCRIBER");
    let drop = context.printer.command(&format!("taskrun outbox drop {run} {subscriber}"));
    format!(
        "{name} is in no policy here, and is to be told of {}: give it that name again, or forget \
         that with `{drop}`",
        of_runs(runs)
    )
}

/// The run, or the number of them.
fn of_runs(runs: &BTreeSet<RunId>) -> String {
    match (runs.first(), runs.len()) {
        (Some(run), 1) => format!("run {run}"),
        (_, count) if count <= RUNS_COUNTED_MAX => human::count(count as u64, "run"),
        (_, _) => format!("more than {}", human::count(RUNS_COUNTED_MAX as u64, "run")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use taskrun_fixtures::run_id;
    use taskrun_journal::dispatch::{DispatchState, TaskEvent};
    use taskrun_journal::time::Timestamp;
    use taskrun_store::MemoryStore;

    use super::*;

    fn gone() -> GoneSubscribers {
        let policy = "[agent.a]\ncomponent = \"a.wasm\"\n";
        let policy = Policy::parse(policy, Path::new("taskrun.toml")).expect("a policy");
        GoneSubscribers::new(policy, Vec::new(), PinFiles::default())
    }

    /// Takes in what is to be told of a run of this policy.
    fn add(gone: &mut GoneSubscribers, dispatch: &Dispatch) {
        if gone.is_to_be_counted(dispatch) {
            gone.count(&dispatch.key);
        }
    }

    fn dispatch(run: &str, event: TaskEvent, subscriber: &str) -> Dispatch {
        let subscriber = subscriber.to_owned();
        Dispatch {
            number: 1,
            key: DispatchKey { run: run_id(run), event, subscriber },
            state: DispatchState::Pending,
            due: Timestamp(0),
            attempts: 0,
            taken_by: None,
            error: None,
        }
    }

    #[test]
    fn a_run_of_which_two_events_are_to_be_told_is_one_run() {
        let mut gone = gone();
        let told = |event| dispatch("r1", event, "webhook/ci");
        TaskEvent::ALL.into_iter().for_each(|event| add(&mut gone, &told(event)));
        assert_eq!(of_runs(&gone.named["webhook/ci"]), "run r1");
        add(&mut gone, &dispatch("r2", TaskEvent::Completed, "webhook/ci"));
        let over = dispatch("r3", TaskEvent::Completed, "file/x");
        add(&mut gone, &Dispatch { state: DispatchState::Dead, ..over });
        assert_eq!(of_runs(&gone.named["webhook/ci"]), "2 runs");
        assert_eq!((gone.named.len(), gone.further_text("ls")), (1, None));
    }

    #[test]
    fn of_any_number_of_events_the_same_memory_is_taken() {
        let mut gone = gone();
        for n in 0..3_000 {
            add(&mut gone, &dispatch(&format!("r{n}"), TaskEvent::Completed, "webhook/ci"));
        }
        for n in 0..100 {
            add(&mut gone, &dispatch("r0", TaskEvent::Completed, &format!("webhook/w{n}")));
        }
        let runs = &gone.named["webhook/ci"];
        assert_eq!((runs.len(), of_runs(runs)), (1_001, "more than 1000 runs".to_owned()));
        assert_eq!(gone.named.len(), NAMED_MAX);
        let further = gone.further_text("ls").expect("there are others");
        assert!(further.starts_with("91 events more for other subscribers"), "{further}");
    }

    #[tokio::test]
    async fn runs_are_read_once_each_and_up_to_a_number() {
        let (mut gone, store) = (gone(), MemoryStore::new());
        // None of them is in the store, so that of none a file is known.
        for event in TaskEvent::ALL {
            for n in 0..RUNS_READ_MAX {
                let dispatch = dispatch(&format!("r{n}"), event, "webhook/ci");
                assert!(gone.is_to_be_counted(&dispatch));
                assert!(!gone.is_of_file(&store, &dispatch.key).await);
            }
        }
        assert_eq!((gone.read.len(), gone.is_cut), (RUNS_READ_MAX, false));
        let further = dispatch("further", TaskEvent::Completed, "webhook/ci");
        assert!(!gone.is_of_file(&store, &further.key).await);
        assert_eq!((gone.read.len(), gone.is_cut), (RUNS_READ_MAX, true));
    }
}
