//! Entries of heartbeats: what can happen to them, and what is decided about them.

use super::events::every_event;
use super::places::{WORK, word};
use super::*;
use crate::autonomy::Done;
use crate::ending::EndStatus;
use crate::hold::Hold;
use crate::machine::decide;
use crate::machine::decide::EntryOutcome;
use crate::run::RunState;
use crate::status::Status;

fn batch_id() -> RunId {
    RunId::new("batch").expect("a valid id")
}

fn entry(finalizer: bool, events: impl IntoIterator<Item = Event>) -> Run {
    let spec = RunSpec { class: RunClass::Heartbeat, finalizer, ..spec() };
    run_of(spec, events)
}

fn taken() -> Event {
    let Event::Started { host, epoch, child_session_id, request_id, .. } = started() else {
        unreachable!("it is what it is called")
    };
    Event::Started { host, epoch, child_session_id, request_id, batch: Some(batch_id()) }
}

/// The batch after these events, with an answer if it is completed.
fn batch(events: impl IntoIterator<Item = Event>) -> Run {
    let spec = RunSpec { id: batch_id(), entries: vec![spec().id], ..spec() };
    run_of(spec, events)
}

fn ended_batch(ending: Ending) -> Run {
    batch([started(), decide::said("all done"), finalizing(ending), finished()])
}

/// The events that can happen to an entry: the kind, where it leads, and who has it then.
fn legal(run: &Run) -> Vec<(&'static str, Status, String)> {
    let next = every_event(run.state.epoch + 1).into_iter().chain([Event::Started {
        host: HostId::new("h"),
        epoch: run.state.epoch + 1,
        child_session_id: "cs".into(),
        request_id: "r".into(),
        batch: Some(batch_id()),
    }]);
    next.filter_map(|event| {
        let in_batch = matches!(event, Event::Started { batch: Some(_), .. });
        let kind = if in_batch { "started in a batch" } else { event.kind() };
        let after = after(run, [event]).ok()?;
        Some((kind, after.status(), word(&after.state.hold)))
    })
    .collect()
}

#[test]
fn an_entry_that_waits_is_taken_by_a_batch_or_canceled() {
    let run = entry(false, []);
    assert_eq!((run.status(), &run.state.hold), (Status::Queued, &Hold::Beat));
    assert_eq!(decide::claim(&run, &HostId::new("n"), Timestamp(5)), None);
    let to = |kind, status, hold: &str| (kind, status, hold.to_owned());
    assert_eq!(
        legal(&run),
        [
            to("cancel_requested", Status::Canceling, "nobody"),
            to("started in a batch", Status::Running, "after 1 runs"),
        ]
    );
    let task = super::run([]);
    assert!(after(&task, [taken()]).is_err(), "a task is in no batch");
}

#[test]
fn an_entry_in_a_batch_reports_work_and_begins_none() {
    let run = entry(false, [taken()]);
    let mut expected: Vec<_> =
        WORK.map(|kind| (kind, Status::Running, "after 1 runs".to_owned())).into();
    expected.push(("resumed", Status::Running, "host g".to_owned()));
    expected.push(("cancel_requested", Status::Canceling, "nobody".to_owned()));
    expected.push(("finalizing", Status::Finalizing, "Resume from 0".to_owned()));
    let mut found = legal(&run);
    expected.sort_by_key(|(kind, ..)| *kind);
    found.sort_by_key(|(kind, ..)| *kind);
    // Answers may come to a run whoever has it; this one has asked nothing.
    assert_eq!(found, expected);
}

#[test]
fn a_batch_takes_what_waits_and_nothing_else() {
    let (host, now) = (HostId::new("n"), Timestamp(5));
    let waits = entry(false, []);
    let event = decide::take(&waits, &batch_id(), &host, now).expect("it waits");
    let in_batch = after(&waits, [event]).expect("decided by ourselves");
    assert_eq!(in_batch.state.hold.host(), None);
    assert_eq!(in_batch.state.epoch, 1);
    let execution = in_batch.execution().expect("it began");
    assert_eq!(execution.batch, Some(batch_id()));
    assert_eq!(execution.child_session_id, "taskrun:run-1:5000000");
    let canceled = [cancel_requested(), finalizing(Ending::canceled(StopReason::CanceledByOwner))];
    for other in [in_batch, entry(false, canceled), super::run([]), super::run([started()])] {
        assert_eq!(decide::take(&other, &batch_id(), &host, now), None, "{other:?}");
    }
}

/// The end that these events lead to: its status and reason, the result, and who has the run then.
fn end(run: &Run, events: Vec<Event>) -> (EndStatus, StopReason, Option<String>, String) {
    let after = after(run, events).expect("decided by ourselves");
    let ending = after.ending().expect("its outcome is fixed");
    let hold = word(&after.state.hold);
    (ending.status, ending.stop_reason, after.state.reply.result(), hold)
}

#[test]
fn an_acknowledged_entry_has_its_own_result() {
    for (finalizer, hold) in [(false, "nobody"), (true, "Resume from 0")] {
        let run = entry(finalizer, [taken()]);
        let events = decide::acknowledge(&run, &batch_id(), EntryOutcome::Done("done"));
        let expected =
            (EndStatus::Completed, StopReason::Done, Some("done".to_owned()), hold.to_owned());
        assert_eq!(end(&run, events), expected);
        let other = RunId::new("other").expect("a valid id");
        assert_eq!(decide::acknowledge(&run, &other, EntryOutcome::Done("done")), []);
    }
    let waits = entry(false, []);
    assert_eq!(decide::acknowledge(&waits, &batch_id(), EntryOutcome::Done("done")), []);
}

#[test]
fn an_open_entry_ends_like_its_batch() {
    let all_done = || Some("all done".to_owned());
    let partial = Ending { partial: true, ..Ending::completed(StopReason::MaxTurns) };
    let table = [
        (Ending::completed(StopReason::FinalResponse), StopReason::FinalResponse, all_done()),
        (partial, StopReason::MaxTurns, all_done()),
        (Ending::failed(StopReason::AgentTrap, "it broke"), StopReason::AgentTrap, all_done()),
        (Ending::canceled(StopReason::CanceledByOwner), StopReason::CanceledByParent, None),
        (Ending::canceled(StopReason::HostShutdown), StopReason::HostShutdown, None),
    ];
    for (ending, reason, result) in table {
        let ended = ended_batch(ending.clone());
        for events in [vec![taken()], vec![taken(), resumed(2)], vec![taken(), resumed(2), lost(3)]]
        {
            let run = entry(false, events);
            let expected = (ending.status, reason, result.clone(), "nobody".to_owned());
            assert_eq!(end(&run, decide::end_with_batch(&run, Some(&ended))), expected);
        }
        let run = entry(false, [taken()]);
        let after = after(&run, decide::end_with_batch(&run, Some(&ended))).expect("decided");
        let has = after.ending().expect("ended");
        assert_eq!((&has.error, has.partial), (&ending.error, ending.partial));
    }
}

#[test]
fn an_open_entry_ends_with_the_result_that_its_batch_returned() {
    let mut ended = ended_batch(Ending::completed(StopReason::Done));
    let result = Some(r#"{"answer":42}"#.to_owned());
    let done = Done { detail: "it".to_owned(), result: result.clone(), failed: None };
    ended.state.rounds.done = Some(done);
    let run = entry(false, [taken()]);
    let (status, _, said, _) = end(&run, decide::end_with_batch(&run, Some(&ended)));
    assert_eq!((status, said), (EndStatus::Completed, result));
}

#[test]
fn what_needs_no_settling_is_left() {
    let ended = ended_batch(Ending::completed(StopReason::FinalResponse));
    let in_batch = entry(false, [taken()]);
    assert_eq!(decide::end_with_batch(&in_batch, Some(&batch([]))), []);
    assert_eq!(decide::end_with_batch(&in_batch, Some(&batch([started()]))), []);
    let over = entry(false, [taken(), completed(), finished()]);
    for other in [entry(false, []), over, super::run([started()])] {
        assert_eq!(decide::end_with_batch(&other, Some(&ended)), []);
    }
}

#[test]
fn an_entry_whose_batch_is_gone_fails_and_a_canceled_one_is_canceled() {
    let gone = entry(false, [taken()]);
    let (status, ..) = end(&gone, decide::end_with_batch(&gone, None));
    assert_eq!(status, EndStatus::Failed);
    let canceled = entry(false, [taken(), resumed(2), cancel_requested()]);
    let ended = ended_batch(Ending::completed(StopReason::FinalResponse));
    let (status, reason, ..) = end(&canceled, decide::end_with_batch(&canceled, Some(&ended)));
    assert_eq!((status, reason), (EndStatus::Canceled, StopReason::CanceledByOwner));
}

#[test]
fn an_entry_is_canceled_at_once_wherever_it_is() {
    for events in [vec![], vec![taken()]] {
        let run = entry(false, events);
        let events = decide::cancel(&run, StopReason::CanceledByOwner, None);
        let (status, ..) = end(&run, events);
        assert_eq!(status, EndStatus::Canceled);
    }
}

#[test]
fn records_of_runs_without_heartbeat_look_as_before() {
    let RunState { hold, .. } = super::run([started()]).state;
    assert_eq!(serde_json::to_string(&hold).expect("JSON"), r#"{"host":{"host":"h"}}"#);
    for text in [
        serde_json::to_string(&spec()).expect("JSON"),
        serde_json::to_string(&started()).expect("JSON"),
        serde_json::to_string(&super::run([started()]).state).expect("JSON"),
    ] {
        for word in ["class", "entries", "batch"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
}
