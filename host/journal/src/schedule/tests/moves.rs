//! The order of the queue, claims, waits, and the consequences of a change.

use std::collections::BTreeSet;
use std::convert::Infallible;

use super::super::{
    After, Before, Change, ClaimCounts, Rank, WaitState, canceled_with_parent, claimed,
    consequences, ends_with, is_woken, next_claimed, place, resumes_in_a_row, waits_its_turn,
};
use super::{child_of, completed_run, id, run_of};
use crate::dispatch::CLOCK_LEEWAY;
use crate::event::Event;
use crate::fixtures::{append, new_run};
use crate::hold::{Hold, Lane, WaitMode};
use crate::ids::HostId;
use crate::machine::tests::{run, spec, started};
use crate::pin::Ready;
use crate::spec::RunSpec;
use crate::status::{Status, StopReason};
use crate::store::Claim;
use crate::time::Timestamp;

#[test]
fn resumed_runs_come_first_then_the_higher_priority_then_the_order_of_acceptance() {
    let rank = |lane, priority, number| Rank::of(&RunSpec { priority, ..spec() }, lane, number);
    let ordered = [
        Rank::FIRST,
        rank(Lane::Resume, 5, 9),
        rank(Lane::Resume, 0, 1),
        rank(Lane::Fresh, 5, 8),
        rank(Lane::Fresh, 0, 2),
        rank(Lane::Fresh, 0, 3),
        rank(Lane::Fresh, -1, 1),
    ];
    assert!(ordered.is_sorted_by(|one, next| one < next));
}

#[test]
fn a_serial_run_waits_for_earlier_ones_until_it_has_begun() {
    let waits = |lane, serial, behind| {
        let Ok(waits) = waits_its_turn(lane, serial, || Ok::<_, Infallible>(behind));
        waits
    };
    assert!(waits(Lane::Fresh, true, true));
    assert!(!waits(Lane::Fresh, true, false));
    assert!(!waits(Lane::Fresh, false, true));
    assert!(!waits(Lane::Resume, true, true));
}

/// A claim of two runs and a finalizer after so many runs in a row that go on.
fn wish(resumes: usize) -> Claim {
    Claim {
        host: HostId::new("h"),
        limit: 2,
        finalizers: 1,
        tree_slots: 1,
        ready: Ready::All,
        resumes,
        now: Timestamp(1),
    }
}

#[test]
fn with_the_turn_of_new_work_the_next_run_is_one_that_never_began() {
    let next = |resumes, runs, resumed: Option<&'static str>, fresh: Option<&'static str>| {
        let first = |from| {
            Ok::<_, Infallible>(match from {
                Lane::Resume => resumed.or(fresh),
                Lane::Fresh => fresh,
            })
        };
        let taken = ClaimCounts { runs, finalizers: 0, resumes };
        let Ok(next) = next_claimed(&wish(0), taken, first, || Ok(None));
        next.map(|next| next.run)
    };
    assert_eq!(next(3, 0, Some("old"), Some("new")), Some("old"));
    assert_eq!(next(4, 0, Some("old"), Some("new")), Some("new"));
    assert_eq!(next(4, 1, Some("old"), Some("new")), Some("new"), "within a claim, too");
    assert_eq!(next(4, 0, Some("old"), None), Some("old"));
    assert_eq!(next(4, 2, Some("old"), Some("new")), None, "it needs a slot");
}

#[test]
fn runs_that_go_on_are_counted_until_one_begins_or_it_was_the_turn_of_those() {
    let (begins, mut goes_on) = (run([started()]), run([started()]));
    goes_on.state.epoch = 2;
    assert_eq!(begins.state.epoch, 1);
    assert_eq!(resumes_in_a_row(3, &goes_on), 4);
    assert_eq!(resumes_in_a_row(3, &begins), 0);
    assert_eq!(resumes_in_a_row(4, &goes_on), 1, "there was no new work");
    let mut taken = ClaimCounts::new(&wish(2));
    taken.add(&goes_on, false);
    taken.add(&goes_on, true);
    assert_eq!((taken.runs, taken.finalizers, taken.resumes), (2, 1, 3), "it took no slot");
}

#[test]
fn a_claim_takes_the_queue_up_to_its_limit_and_then_finalizers() {
    let claim = wish(0);
    let next = |runs, finalizers, first: Option<&'static str>, finalizer: Option<&'static str>| {
        let taken = ClaimCounts { runs, finalizers, resumes: 0 };
        let first = |_| Ok::<_, Infallible>(first);
        let Ok(next) = next_claimed(&claim, taken, first, || Ok(finalizer));
        next.map(|next| (next.run, next.is_finalizer))
    };
    assert_eq!(next(0, 0, Some("a"), Some("f")), Some(("a", false)));
    assert_eq!(next(1, 0, Some("a"), Some("f")), Some(("a", false)));
    assert_eq!(next(2, 0, Some("a"), Some("f")), Some(("f", true)));
    assert_eq!(next(0, 0, None, Some("f")), Some(("f", true)));
    assert_eq!(next(2, 1, Some("a"), Some("f")), None);
    assert_eq!(next(0, 2, None, Some("f")), None);
    assert_eq!(next(2, 0, Some("a"), None), None);
}

#[test]
fn a_claimed_run_is_the_hosts_and_its_journal_says_so() {
    let host = HostId::new("h");
    let (run_after, recorded) = claimed(run([]), &host, Timestamp(50))
        .expect("a sound record")
        .expect("a queued run is to be had");
    assert_eq!(run_after.status(), Status::Running);
    assert_eq!(run_after.state.hold, Hold::Host { host: host.clone() });
    assert_eq!((recorded.seq, recorded.at), (2, Timestamp(50)));
    assert_eq!(run_after.state.head, 2);
    let other = claimed(run([]), &HostId::new("g"), Timestamp(50)).expect("a sound record");
    assert_ne!(other.expect("to be had").1.id, recorded.id, "claims of two hosts are two events");
    assert!(claimed(run_after, &host, Timestamp(51)).expect("a sound record").is_none());
    assert!(claimed(completed_run(), &host, Timestamp(51)).expect("a sound record").is_none());
}

#[test]
fn what_a_store_adds_by_itself_is_not_before_what_it_follows() {
    let leeway = u64::try_from(CLOCK_LEEWAY.as_millis()).expect("a short time");
    let queued = RunSpec { created_at: Timestamp(90_000), ..child_of("parent") };
    let queued = new_run(queued).run;
    let host = HostId::new("h");
    let times = |now| {
        let (run, recorded) = claimed(queued.clone(), &host, Timestamp(now))
            .expect("a sound record")
            .expect("a queued run is to be had");
        let (_, events) = canceled_with_parent(&queued, Timestamp(now))
            .expect("a sound record")
            .expect("an open run is canceled");
        assert_eq!(recorded.at, run.state.updated_at);
        assert!(events.iter().all(|event| event.at == recorded.at), "{events:?}");
        recorded.at.0
    };
    assert_eq!(times(90_001), 90_001);
    assert_eq!(times(89_969), 90_000);
    assert_eq!(times(90_000 - leeway), 90_000);
    assert_eq!(times(90_000 - leeway - 1), 90_000 - leeway - 1, "the clock was set back");

    // One that is executed has said something since it began.
    let (running, _) = claimed(queued.clone(), &host, Timestamp(90_000))
        .expect("a sound record")
        .expect("a queued run is to be had");
    let told = Event::AssistantChunk { text: "x".to_owned() };
    let told = append(&running, 7, Timestamp(95_000), vec![told]).run;
    let (_, events) = canceled_with_parent(&told, Timestamp(94_000))
        .expect("a sound record")
        .expect("a run that is executed is asked to stop");
    assert!(events.iter().all(|event| event.at == Timestamp(95_000)), "{events:?}");
}

/// The place of a hold where these of the runs `a` and `b` are open.
fn place_of(hold: &Hold, open: &[&'static str]) -> WaitState<&'static str> {
    let Ok(place) = place(hold, |asked| {
        let known = |name: &&&str| asked.contains(&id(name));
        Ok::<_, Infallible>(open.iter().filter(known).copied().collect())
    });
    place
}

#[test]
fn a_wait_for_runs_is_over_with_all_of_them_or_the_first() {
    let until = Some(Timestamp(9));
    let hold = |mode, runs: &[&str]| Hold::Runs {
        runs: runs.iter().map(|name| id(name)).collect(),
        mode,
        until,
    };
    let behind = |mode, open| WaitState::Behind { open, mode, until };
    let over = WaitState::RESUME;
    let (all, any) = (WaitMode::All, WaitMode::Any);
    assert_eq!(place_of(&hold(all, &["a", "b"]), &["a", "b"]), behind(all, vec!["a", "b"]));
    assert_eq!(place_of(&hold(all, &["a", "b"]), &["b"]), behind(all, vec!["b"]));
    assert_eq!(place_of(&hold(all, &["a", "b"]), &[]), over);
    assert_eq!(place_of(&hold(any, &["a", "b"]), &["a", "b"]), behind(any, vec!["a", "b"]));
    assert_eq!(place_of(&hold(any, &["a", "b"]), &["b"]), over);
    assert_eq!(place_of(&hold(any, &["a", "a"]), &["a"]), behind(any, vec!["a"]));
    assert_eq!(place_of(&hold(any, &[]), &[]), over);
    assert_eq!(place_of(&hold(all, &[]), &[]), over);
}

#[test]
fn a_run_has_the_place_that_its_hold_says() {
    let host = HostId::new("h");
    let wanted = WaitState::Wanted { lane: Lane::Fresh, from: Timestamp(7) };
    assert_eq!(place_of(&Hold::Nobody, &[]), WaitState::Aside);
    assert_eq!(place_of(&Hold::Host { host }, &[]), WaitState::Aside);
    assert_eq!(place_of(&Hold::Beat, &[]), WaitState::Beat);
    let hold = Hold::Wanted { lane: Lane::Fresh, not_before: Timestamp(7) };
    assert_eq!(place_of(&hold, &[]), wanted);
    assert_eq!(wanted.wanted(), Some((Lane::Fresh, Timestamp(7))));
    assert_eq!(WaitState::<()>::Aside.wanted(), None);
    assert_eq!(WaitState::<()>::Beat.wanted(), None);
    let behind = |until| WaitState::Behind { open: vec!["a"], mode: WaitMode::All, until };
    assert_eq!(behind(None).wanted(), None);
    assert_eq!(behind(Some(Timestamp(3))).wanted(), Some((Lane::Resume, Timestamp(3))));
}

#[test]
fn the_end_of_one_run_wakes_who_waits_for_any_and_the_last_one_who_waits_for_all() {
    let woken = |mode, more| {
        let Ok(woken) = is_woken(mode, || Ok::<_, Infallible>(more));
        woken
    };
    assert!(woken(WaitMode::Any, true));
    assert!(woken(WaitMode::Any, false));
    assert!(!woken(WaitMode::All, true));
    assert!(woken(WaitMode::All, false));
}

/// The consequences of a change from (queued, ended, held) to (queued, ended) and a hold.
fn changes(
    before: (bool, bool, bool),
    after: (bool, bool),
    hold: Option<&Hold>,
) -> Vec<Change<'_>> {
    let nobody = &Hold::Nobody;
    let (is_queued, has_ended, is_held) = before;
    let before = Before { is_queued, has_ended, is_held, same_hold: hold.is_none() };
    let (is_queued, has_ended) = after;
    consequences(
        before,
        After {
            is_queued,
            has_ended,
            hold: hold.unwrap_or(nobody),
            report: None,
            settlement: None,
            succession: None,
        },
    )
    .collect()
}

#[test]
fn each_change_has_its_consequences_in_order() {
    let held = Hold::Host { host: HostId::new("h") };
    let host = Some(&held);
    let free = Some(&Hold::Nobody);
    let (queued, open) = ((true, false), (false, false));
    let ended = (false, true);
    let claimed = [Change::Begin, Change::EndWait, Change::TakeSlot, Change::Place(&held)];
    assert_eq!(changes((true, false, false), open, host), claimed);
    let blocked = [Change::FreeSlot, Change::Place(&Hold::Nobody)];
    assert_eq!(changes((false, false, true), open, free), blocked);
    let handed_on = [Change::Place(&held)];
    assert_eq!(changes((false, false, true), open, host), handed_on);
    let put_off = [Change::EndWait, Change::Place(&Hold::Nobody)];
    assert_eq!(changes((true, false, false), queued, free), put_off);
    let end = [
        Change::FreeSlot,
        Change::Place(&Hold::Nobody),
        Change::Dispatch,
        Change::Wake,
        Change::FreeName,
        Change::NextTurn,
        Change::CancelAttached,
    ];
    assert_eq!(changes((false, false, true), ended, free), end);
    assert_eq!(changes((false, false, true), open, None), []);
    assert_eq!(changes((true, false, false), queued, None), []);
    assert_eq!(changes((true, false, false), open, None), [Change::Begin]);
    assert_eq!(changes((false, true, false), ended, None), [], "a second end ends nothing");
}

#[test]
fn an_attached_run_ends_with_the_run_that_started_it_and_with_no_other() {
    let attached = run_of(child_of("parent"), []);
    assert!(ends_with(&attached, &id("parent")));
    assert!(!ends_with(&attached, &id("other")));
    let detached = run_of(RunSpec { attached: false, ..child_of("parent") }, []);
    assert!(!ends_with(&detached, &id("parent")));
    assert!(!ends_with(&run([]), &id("parent")));
}

#[test]
fn a_run_that_ends_with_its_parent_says_so_once() {
    let queued = run_of(child_of("parent"), []);
    let (after, events) = canceled_with_parent(&queued, Timestamp(70))
        .expect("a sound record")
        .expect("an open run is canceled");
    assert_eq!(after.status(), Status::Canceled);
    assert_eq!(after.state.head, queued.state.head + events.len() as u64);
    let at = events.iter().map(|event| (event.seq, event.at));
    let expected = (queued.state.head + 1..).zip(std::iter::repeat(Timestamp(70)));
    assert!(at.eq(expected.take(events.len())), "positions follow the journal: {events:?}");
    let why = Event::CancelRequested { by: StopReason::CanceledByParent, from: None, reason: None };
    assert!(events.iter().any(|recorded| recorded.event == why), "{events:?}");
    let ids: BTreeSet<u64> = events.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), events.len(), "each event has an id of its own");

    let running = run_of(child_of("parent"), [started()]);
    let (after, _) = canceled_with_parent(&running, Timestamp(70))
        .expect("a sound record")
        .expect("a run that is executed is asked to stop");
    assert_eq!(after.status(), Status::Canceling);
    let again = canceled_with_parent(&after, Timestamp(71)).expect("a sound record");
    assert!(again.is_none(), "it is on its way out");
    assert!(canceled_with_parent(&completed_run(), Timestamp(71)).expect("sound").is_none());
}
