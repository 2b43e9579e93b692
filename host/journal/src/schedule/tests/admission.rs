//! Which requests are kept: what was asked before, and each bound on either side of it.

use std::convert::Infallible;
use std::sync::Arc;

use super::super::sessions::session_of;
use super::super::{HostLoad, Rank, Register, TreeSize, refusal, task_hash};
use super::{canceled_run, child_of, completed_run, id, run_of};
use crate::autonomy::Autonomy;
use crate::history::History;
use crate::hold::Lane;
use crate::ids::RunId;
use crate::machine::tests::{run, spec, started};
use crate::pin::{Pins, Ready};
use crate::run::Run;
use crate::spec::RunSpec;
use crate::status::Status;
use crate::store::{
    Admission, AdmissionBound, CreateOutcome, Idempotency, NewRun, SessionKey, TaskKey,
};
use crate::time::Timestamp;

/// A store that knows just this; what nothing was set for is empty.
#[derive(Default)]
struct Known {
    key: Option<(&'static str, &'static str, Run)>,
    completed: Vec<(u64, Timestamp, Run)>,
    statuses: Vec<(RunId, Status)>,
    ended: Option<SessionKey>,
    name: Option<RunId>,
    autonomous: Option<Run>,
    queued: u64,
    tree: TreeSize,
    open_serial: bool,
    first: Option<Rank>,
    hosts: Vec<HostLoad>,
    due: Vec<RunId>,
    asked: Vec<&'static str>,
}

impl Register for Known {
    type Error = Infallible;

    fn keyed(&mut self, tenant: &str, key: &str) -> Result<Option<(String, Run)>, Infallible> {
        self.asked.push("keyed");
        let known = self.key.clone().filter(|(known, ..)| tenant == "t" && *known == key);
        Ok(known.map(|(_, fingerprint, run)| (fingerprint.to_owned(), run)))
    }

    fn completed(
        &mut self,
        task: u64,
        since: Timestamp,
        fits: &dyn Fn(&Run) -> bool,
    ) -> Result<Option<Run>, Infallible> {
        self.asked.push("completed");
        let mut found = self.completed.iter().filter(|(hash, at, _)| *hash == task && *at >= since);
        Ok(found.find(|(.., run)| fits(run)).map(|(.., run)| run.clone()))
    }

    fn status(&mut self, id: &RunId) -> Result<Option<Status>, Infallible> {
        self.asked.push("status");
        Ok(self.statuses.iter().find(|(known, _)| known == id).map(|(_, status)| *status))
    }

    fn has_session_ended(&mut self, key: &SessionKey) -> Result<bool, Infallible> {
        self.asked.push("session");
        Ok(self.ended.as_ref() == Some(key))
    }

    fn named(&mut self, _: &RunSpec) -> Result<Option<RunId>, Infallible> {
        self.asked.push("named");
        Ok(self.name.clone())
    }

    fn autonomous(&mut self, _: &RunSpec) -> Result<Option<Run>, Infallible> {
        self.asked.push("autonomous");
        Ok(self.autonomous.clone())
    }

    fn queued(&mut self, _: &RunSpec) -> Result<u64, Infallible> {
        self.asked.push("queued");
        Ok(self.queued)
    }

    fn tree(&mut self, _: &RunSpec) -> Result<TreeSize, Infallible> {
        self.asked.push("tree");
        Ok(self.tree)
    }

    fn has_open_serial(&mut self, _: &RunSpec) -> Result<bool, Infallible> {
        self.asked.push("serial");
        Ok(self.open_serial)
    }

    fn first(
        &mut self,
        ready: &Ready,
        slots: u32,
        now: Timestamp,
    ) -> Result<Option<Rank>, Infallible> {
        self.asked.push("first");
        assert_eq!((slots, now), (2, Timestamp(10)));
        assert!(ready.includes(&Pins::accepted(&spec()), Lane::Fresh));
        Ok(self.first)
    }

    fn is_due(&mut self, run: &RunId) -> Result<bool, Infallible> {
        self.asked.push("due");
        Ok(self.due.contains(run))
    }

    fn hosts(&mut self, _: &RunSpec) -> Result<Vec<HostLoad>, Infallible> {
        self.asked.push("hosts");
        Ok(self.hosts.clone())
    }
}

fn new_run(spec: RunSpec) -> NewRun {
    NewRun {
        run: run_of(spec, []),
        events: Vec::new(),
        idempotency: None,
        task: None,
        artifacts: Vec::new(),
        admission: Admission::UNBOUNDED,
    }
}

/// The answer in a word, with the run that it names.
fn answer(new: &NewRun, mut known: Known) -> String {
    let Ok(refusal) = refusal(new, &mut known);
    match refusal {
        None => "kept".into(),
        Some(CreateOutcome::New) => panic!("a refusal that says the run is kept"),
        Some(CreateOutcome::Repeated(run)) => format!("repeated {}", run.id()),
        Some(CreateOutcome::Taken(id)) => format!("taken {id}"),
        Some(CreateOutcome::Full(AdmissionBound::Queue)) => "queue".into(),
        Some(CreateOutcome::Full(AdmissionBound::Tree)) => "tree".into(),
        Some(CreateOutcome::Full(AdmissionBound::Slots)) => "slots".into(),
        Some(CreateOutcome::ReportsGone) => "reports gone".to_owned(),
        Some(CreateOutcome::SessionEnded) => "session ended".into(),
        Some(CreateOutcome::ParentEnded) => "parent ended".into(),
        Some(CreateOutcome::NameTaken(id)) => format!("name {id}"),
        Some(CreateOutcome::Locked(run)) => format!("locked {}", run.id()),
    }
}

#[test]
fn a_request_is_kept_where_nothing_speaks_against_it_and_no_more_is_asked_than_needed() {
    let mut known = Known::default();
    let Ok(refused) = refusal(&new_run(spec()), &mut known);
    assert!(refused.is_none());
    assert_eq!(known.asked, ["status", "session", "named", "tree"]);
}

#[test]
fn a_key_stands_for_its_run_and_with_another_request_it_is_taken() {
    let keyed = |fingerprint: &str, completed_since, run: Run| {
        let mut new = new_run(RunSpec { id: id("new"), ..spec() });
        let fingerprint = fingerprint.to_owned();
        new.idempotency = Some(Idempotency { key: "k".into(), fingerprint, completed_since });
        answer(&new, Known { key: Some(("k", "same", run)), ..Known::default() })
    };
    assert_eq!(keyed("same", None, run([])), "repeated run-1");
    assert_eq!(keyed("other", None, run([])), "taken run-1");
    assert_eq!(keyed("same", Some(Timestamp(40)), completed_run()), "repeated run-1");
    assert_eq!(keyed("other", Some(Timestamp(40)), completed_run()), "taken run-1");
    assert_eq!(keyed("same", Some(Timestamp(41)), completed_run()), "kept");
    assert_eq!(keyed("same", Some(Timestamp(0)), canceled_run()), "kept");
    assert_eq!(keyed("same", Some(Timestamp(0)), run([started()])), "kept");
}

#[test]
fn a_task_that_was_completed_since_is_not_done_again() {
    let old = Run { spec: Arc::new(RunSpec { task: "DO".into(), ..spec() }), ..completed_run() };
    let asks = |digest: &str, since: Option<u64>, task: &str| {
        let mut new = new_run(RunSpec { id: id("new"), task: task.into(), ..spec() });
        let known = TaskKey { digest: "d".into(), completed_since: None };
        let number = task_hash(&old.spec, &known);
        let completed = vec![(number, Timestamp(40), old.clone())];
        new.task = Some(TaskKey { digest: digest.into(), completed_since: since.map(Timestamp) });
        answer(&new, Known { completed, ..Known::default() })
    };
    assert_eq!(asks("d", Some(40), "do"), "repeated run-1");
    assert_eq!(asks("d", Some(41), "do"), "kept");
    assert_eq!(asks("d", None, "do"), "kept");
    assert_eq!(asks("e", Some(40), "do"), "kept");
    assert_eq!(asks("d", Some(40), "something else of the same number"), "kept");
}

#[test]
fn ids_sessions_parents_and_names_refuse_in_this_order() {
    let new = new_run(child_of("parent"));
    let all = || Known {
        statuses: vec![(id("child"), Status::Queued), (id("parent"), Status::Completed)],
        ended: Some(session_of(&new.run.spec)),
        name: Some(id("other")),
        ..Known::default()
    };
    assert_eq!(answer(&new, all()), "taken child");
    let parent = |status| vec![(id("parent"), status)];
    let statuses = parent(Status::Completed);
    assert_eq!(answer(&new, Known { statuses: statuses.clone(), ..all() }), "session ended");
    let open = || Known { ended: None, ..all() };
    assert_eq!(answer(&new, Known { statuses, ..open() }), "parent ended");
    assert_eq!(answer(&new, Known { statuses: Vec::new(), ..open() }), "parent ended");
    let statuses = parent(Status::Running);
    assert_eq!(answer(&new, Known { statuses: statuses.clone(), ..open() }), "name other");
    assert_eq!(answer(&new, Known { statuses, name: None, ..open() }), "kept");
}

#[test]
fn cs_19_only_an_autonomous_run_of_a_conversation_is_refused_for_another_one() {
    let autonomy: Autonomy =
        serde_json::from_str(r#"{"mode":"standing","continuation":"go on"}"#).expect("settings");
    let history = History::Agent;
    let autonomous = RunSpec { autonomy: Some(autonomy), history, ..spec() };
    let known = || Known { autonomous: Some(run([])), ..Known::default() };
    assert_eq!(answer(&new_run(autonomous.clone()), known()), "locked run-1");
    assert_eq!(answer(&new_run(autonomous.clone()), Known::default()), "kept");
    let apart = RunSpec { history: History::None, ..autonomous.clone() };
    assert_eq!(answer(&new_run(apart), known()), "kept", "it is part of no conversation");
    let plain = RunSpec { autonomy: None, ..autonomous };
    assert_eq!(answer(&new_run(plain), known()), "kept", "it is not autonomous");
}

#[test]
fn a_nudge_is_kept_only_if_all_of_its_reports_are_due() {
    let nudge = |runs: &[&str]| {
        let nudge_for = runs.iter().map(|run| id(run)).collect();
        new_run(RunSpec { nudge_for, ..spec() })
    };
    let due = || Known { due: vec![id("a"), id("b")], ..Known::default() };
    assert!(answer(&nudge(&["a", "b"]), due()).starts_with("kept"));
    assert!(answer(&nudge(&["a", "c"]), due()).starts_with("reports gone"));
}

#[test]
fn a_parent_on_its_way_out_starts_nothing_more() {
    for status in Status::ALL {
        let statuses = vec![(id("parent"), *status)];
        let answer = answer(&new_run(child_of("parent")), Known { statuses, ..Known::default() });
        let expected = match status {
            Status::Queued | Status::Running | Status::Blocked => "kept",
            Status::Canceling
            | Status::Finalizing
            | Status::Completed
            | Status::Failed
            | Status::Canceled => "parent ended",
        };
        assert_eq!(answer, expected, "{status}");
    }
}

#[test]
fn the_bounds_of_queue_and_tree_hold_to_the_run() {
    let bound = |queue_max, tree_max, spec: RunSpec, queued, runs| {
        let mut new = new_run(spec);
        new.admission = Admission { queue_max, tree_max, at_once: None };
        let statuses = vec![(id("parent"), Status::Running)];
        let tree = TreeSize { runs, held: 0 };
        answer(&new, Known { statuses, queued, tree, ..Known::default() })
    };
    assert_eq!(bound(3, u64::MAX, spec(), 2, 0), "kept");
    assert_eq!(bound(3, u64::MAX, spec(), 3, 0), "queue");
    assert_eq!(bound(3, u64::MAX, spec(), 4, 0), "queue");
    assert_eq!(bound(u64::MAX, 3, child_of("parent"), 0, 2), "kept");
    assert_eq!(bound(u64::MAX, 3, child_of("parent"), 0, 3), "tree");
    assert_eq!(bound(u64::MAX, 3, child_of("parent"), 0, 4), "tree");
    // The first run of a tree is in nobody's way.
    assert_eq!(bound(u64::MAX, 0, spec(), 0, 0), "kept");
    assert_eq!(bound(1, 1, child_of("parent"), 1, 1), "queue");
}

/// The answer to a run that has to begin at once, with two slots a tree.
fn at_once(spec: RunSpec, known: Known) -> String {
    let mut new = new_run(spec);
    new.admission.at_once = Some(2);
    answer(&new, known)
}

#[test]
fn a_run_that_may_not_wait_needs_a_slot_of_its_tree_and_of_a_host() {
    let held = |held| Known { tree: TreeSize { runs: 9, held }, ..Known::default() };
    assert_eq!(at_once(spec(), held(1)), "kept");
    assert_eq!(at_once(spec(), held(2)), "slots");
    assert_eq!(at_once(spec(), held(3)), "slots");
    let hosts = |loads: &[(u32, u64)]| {
        let hosts = loads
            .iter()
            .map(|&(slots, held)| HostLoad { slots, held, ready: Ready::All })
            .collect();
        at_once(spec(), Known { hosts, ..Known::default() })
    };
    assert_eq!(hosts(&[]), "kept");
    assert_eq!(hosts(&[(2, 1)]), "kept");
    assert_eq!(hosts(&[(2, 2)]), "slots");
    assert_eq!(hosts(&[(2, 3), (0, 0)]), "slots");
    assert_eq!(hosts(&[(2, 2), (2, 1)]), "kept");
}

#[test]
fn a_run_that_may_not_wait_has_nothing_before_it() {
    let after = |lane, priority, own| {
        let first = Rank::of(&RunSpec { priority, ..spec() }, lane, 7);
        let spec = RunSpec { priority: own, ..spec() };
        at_once(spec, Known { first: Some(first), ..Known::default() })
    };
    assert_eq!(after(Lane::Resume, 0, 9), "slots");
    assert_eq!(after(Lane::Fresh, 0, 0), "slots");
    assert_eq!(after(Lane::Fresh, 1, 0), "slots");
    assert_eq!(after(Lane::Fresh, 0, 1), "kept");
    let serial = |serial, open_serial| {
        at_once(RunSpec { serial, ..spec() }, Known { open_serial, ..Known::default() })
    };
    assert_eq!(serial(true, true), "slots");
    assert_eq!(serial(true, false), "kept");
    assert_eq!(serial(false, true), "kept");
}
