//! Pauses: what is decided, and what a record says of them.

use super::places::word;
use super::*;
use crate::autonomy::{Mark, Schedule};
use crate::machine::decide::{self, PauseRefusal};
use crate::pause::{INBOX_BYTES_MAX, INBOX_MESSAGES_MAX};
use crate::run::{Lifecycle, RunView};
use crate::status::Status;

fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::kind).collect()
}

fn paused(run: &Run) -> Vec<Event> {
    decide::pause(run, "b", None, None).expect("it listens")
}

fn resumed_now(run: &Run) -> Vec<Event> {
    decide::resume(run, "b", None, &[]).expect("it listens")
}

/// Everywhere a run can be that has not begun its way out.
fn open_places() -> Vec<Vec<Event>> {
    let asks = || vec![started(), asked("q"), blocked(Wait::Answers { at: None })];
    vec![
        vec![],
        vec![started()],
        vec![started(), lost(2)],
        vec![started(), lost(2), resumed(3)],
        asks(),
        asks().into_iter().chain([answered("q")]).collect(),
        vec![started(), blocked(for_runs())],
    ]
}

#[test]
fn a_run_is_paused_once_and_resumed_once_wherever_it_is() {
    for events in open_places() {
        let run = run(events.clone());
        assert_eq!(resumed_now(&run), [], "{events:?} is not paused");
        let once = after(&run, paused(&run)).expect("legal");
        assert!(once.state.pause.is_some());
        assert_eq!(paused(&once), [], "{events:?} is paused already");
        let again = after(&once, resumed_now(&once)).expect("legal");
        assert_eq!(again.state.pause, None);
        assert_eq!(resumed_now(&again), []);
    }
}

#[test]
fn nobody_may_have_a_paused_run_and_afterwards_whoever_might_before() {
    for events in open_places() {
        let run = run(events.clone());
        let paused = after(&run, paused(&run)).expect("legal");
        let held = run.state.hold.host().is_some();
        let expected = if held { word(&run.state.hold) } else { "nobody".to_owned() };
        assert_eq!(word(&paused.state.hold), expected, "{events:?}");
        let resumed = after(&paused, resumed_now(&paused)).expect("legal");
        let before = word(&run.state.hold);
        // A run that waited for others looks for itself, and so does one that no host had.
        let looks = ["after 1 runs", "Resume from 7"].contains(&before.as_str());
        let expected = if looks { "Resume from 0".to_owned() } else { before };
        assert_eq!(word(&resumed.state.hold), expected, "{events:?}");
    }
}

#[test]
fn what_is_on_its_way_out_cannot_be_paused_resumed_or_told_anything() {
    let ways = [
        vec![started(), cancel_requested()],
        vec![started(), completed()],
        vec![started(), completed(), finished()],
        vec![cancel_requested(), finalizing(Ending::canceled(StopReason::CanceledByOwner))],
    ];
    for events in ways {
        let run = run(events);
        assert_eq!(decide::pause(&run, "b", None, None), Err(PauseRefusal::Ended));
        assert_eq!(decide::resume(&run, "b", None, &[]), Err(PauseRefusal::Ended));
        assert_eq!(decide::inject(&run, "b", "x"), Err(PauseRefusal::Ended));
    }
}

#[test]
fn an_entry_of_a_heartbeat_is_not_paused() {
    let entry = run_of(RunSpec { class: RunClass::Heartbeat, ..spec() }, []);
    assert_eq!(decide::pause(&entry, "b", None, None), Err(PauseRefusal::Entry));
    assert!(after(&entry, [pause_requested()]).is_err(), "nor is it by a mistake");
}

#[test]
fn every_pause_has_its_end_also_at_a_cancellation_and_at_the_end_of_the_run() {
    for events in open_places() {
        let run = run(events.clone());
        let run = after(&run, paused(&run)).expect("legal");
        let canceled = decide::cancel(&run, StopReason::CanceledByOwner, None);
        let expected = match run.state.hold.host() {
            Some(_) => vec!["pause_ended", "cancel_requested"],
            None => vec!["pause_ended", "cancel_requested", "finalizing", "finished"],
        };
        assert_eq!(kinds(&canceled), expected, "{events:?}");
        after(&run, canceled).expect("legal");
        assert!(after(&run, [cancel_requested()]).is_err(), "the machine wants the end first");
    }
    let working = run([started(), pause_requested()]);
    let answer = decide::said("done");
    let end =
        decide::end(&working, &[answer], decide::Outcome::Answered(StopReason::FinalResponse));
    assert_eq!(kinds(&end), ["pause_ended", "assistant_message", "finalizing", "finished"]);
    assert_eq!(after(&working, end).expect("legal").status(), Status::Completed);
}

#[test]
fn a_host_that_gives_a_paused_run_back_leaves_it_blocked_on_the_pause() {
    let run = run([started(), pause_requested()]);
    let events = decide::release(&run, 40, Timestamp(0));
    assert_eq!(kinds(&events), ["blocked"]);
    let run = after(&run, events).expect("legal");
    let Lifecycle::Blocked { on, .. } = &run.state.lifecycle else { panic!("{run:?}") };
    assert_eq!((*on, run.state.ran_ms), (BlockedOn::Pause, 40));
    assert_eq!(run.state.uncounted, None, "its time stands still");
    let view = RunView::from(&run);
    assert_eq!(view.blocked_on, Some(BlockedOn::Pause));
    assert_eq!(view.paused.and_then(|pause| pause.reason).as_deref(), Some("lunch"));
}

#[test]
fn a_host_that_dies_with_a_paused_run_leaves_it_paused() {
    let run = run([started(), pause_requested()]);
    let events = decide::lose(&run, Timestamp(1_000), None);
    assert_eq!(kinds(&events), ["lost"]);
    let run = after(&run, events).expect("legal");
    assert_eq!((run.status(), word(&run.state.hold).as_str()), (Status::Blocked, "nobody"));
    assert_eq!(decide::claim(&run, &HostId::new("g"), Timestamp(9_000)), None);
}

#[test]
fn a_pause_with_a_time_ends_when_somebody_looks_afterwards() {
    let until = Some(Timestamp(500));
    let pause = Event::PauseRequested { by: "b".into(), reason: None, until };
    let run = run([started(), pause, blocked_on_pause()]);
    assert_eq!(word(&run.state.hold), "Resume from 500");
    let run = after(&run, [resumed(2)]).expect("wanted");
    assert_eq!(decide::over(&run, Timestamp(499)), []);
    let over = decide::over(&run, Timestamp(500));
    let [Event::PauseEnded { why, .. }] = over.as_slice() else { panic!("{over:?}") };
    assert_eq!(*why, PauseEnd::DeadlineExceeded);
    after(&run, over).expect("legal");
}

#[test]
fn what_a_run_is_told_is_counted_until_it_is_shown_and_bounded() {
    let run = run([started()]);
    let told = |run: &Run, text: &str| {
        let events = decide::inject(run, "b", text)?;
        Ok::<_, PauseRefusal>(after(run, events).expect("legal"))
    };
    let two = told(&run, "one").and_then(|run| told(&run, "three")).expect("room");
    assert_eq!((two.state.inbox.messages, two.state.inbox.bytes), (2, 8));
    let shown = after(&two, [Event::InboxShown { messages: 2 }]).expect("all of them");
    assert!(shown.state.inbox.is_empty());
    assert!(after(&two, [Event::InboxShown { messages: 1 }]).is_err(), "not all of them");

    let long = "x".repeat(usize::try_from(INBOX_BYTES_MAX).expect("a small number"));
    let full = told(&run, &long).expect("as much as may be");
    let refused = told(&full, "x").expect_err("too much");
    assert_eq!(refused, PauseRefusal::Full { kind: "inbox-bytes", cap: INBOX_BYTES_MAX });
    let mut many = run;
    for _ in 0..INBOX_MESSAGES_MAX {
        many = told(&many, "x").expect("room");
    }
    let refused = told(&many, "x").expect_err("too many");
    assert_eq!(refused, PauseRefusal::Full { kind: "inbox", cap: u64::from(INBOX_MESSAGES_MAX) });
}

#[test]
fn messages_with_the_word_to_go_on_need_a_pause() {
    let messages = ["go on".to_owned()];
    let run = run([started()]);
    assert_eq!(decide::resume(&run, "b", None, &messages), Err(PauseRefusal::NotPaused));
    let run = after(&run, [pause_requested()]).expect("legal");
    let events = decide::resume(&run, "b", Some("it is over"), &messages).expect("paused");
    let run = after(&run, events).expect("legal");
    assert_eq!((run.state.inbox.messages, run.state.inbox.bytes), (1, 5));
}

#[test]
fn the_last_answer_leaves_a_paused_run_blocked_on_its_pause_alone() {
    let waits = [started(), asked("a"), asked("b"), blocked(Wait::Answers { at: None })];
    let on = |run: &Run| {
        let Lifecycle::Blocked { on, .. } = &run.state.lifecycle else { panic!("{run:?}") };
        *on
    };
    let free = run(waits.clone());
    let paused = after(&free, [pause_requested(), answered("a")]).expect("legal");
    assert_eq!(on(&paused), BlockedOn::Input, "one is open");
    assert_eq!(on(&after(&paused, [answered("b")]).expect("legal")), BlockedOn::Pause);
    let free = after(&free, [answered("a"), answered("b")]).expect("legal");
    assert_eq!(on(&free), BlockedOn::Input, "nobody paused it");
}

/// A run that is deferred until the time 500.
fn deferred() -> Run {
    let schedule = Schedule { at: Timestamp(500), prompt: None, detail: None, cron: None };
    run([
        started(),
        Event::Marked { tool_call_id: "c".into(), mark: Mark::Schedule(schedule) },
        Event::RoundEnded {
            round: 1,
            prompt: "on".into(),
            worked: false,
            wants_result: false,
            checkpoint: Box::default(),
        },
        fixtures::blocked(BlockedOn::Schedule, Wait::Time { at: Timestamp(500) }),
    ])
}

#[test]
fn c_056_a_deferred_run_is_wanted_at_once_when_it_is_told_something_and_only_then() {
    let run = deferred();
    assert_eq!(word(&run.state.hold), "Resume from 500");
    let woken = after(&run, decide::wake(&run, "b", "x").expect("deferred")).expect("legal");
    assert_eq!(word(&woken.state.hold), "Resume from 0");
    assert_eq!(decide::wake(&woken, "b", "x"), Err(PauseRefusal::NotDeferred));
    // Over a pause it is wanted when that ends.
    let paused = after(&run, paused(&run)).expect("legal");
    let told = after(&paused, decide::inject(&paused, "b", "x").expect("room")).expect("legal");
    assert_eq!(word(&told.state.hold), "nobody");
    let resumed = after(&told, resumed_now(&told)).expect("legal");
    assert_eq!(word(&resumed.state.hold), "Resume from 0");
    // One that waits for a time which it did not choose is not.
    let pushed =
        [started(), fixtures::blocked(BlockedOn::Schedule, Wait::Time { at: Timestamp(500) })];
    let pushed = super::run(pushed);
    let told = after(&pushed, decide::inject(&pushed, "b", "x").expect("room")).expect("legal");
    assert_eq!(word(&told.state.hold), "Resume from 500");
}
