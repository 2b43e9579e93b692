//! Decisions about a run from outside: claims, cancellations, lost hosts.

use super::places::{places, word};
use super::*;
use crate::ending::EndStatus;
use crate::machine::decide::{self, CRASHES_IN_A_ROW_MAX, CRASHES_MAX, Outcome};
use crate::run::Crashes;
use crate::status::Status;

/// Every place of life for every kind of run.
fn runs() -> Vec<(String, Run)> {
    let kinds = [(true, false), (true, true), (false, false), (false, true)];
    let of_kind = |(durable, finalizer): (bool, bool)| {
        places().into_iter().map(move |place| {
            let spec = RunSpec { durable, finalizer, ..spec() };
            let name = format!("{}, durable {durable}, finalizer {finalizer}", place.name);
            (name, run_of(spec, place.events))
        })
    };
    kinds.into_iter().flat_map(of_kind).collect()
}

fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::kind).collect()
}

/// The same run with so many dead hosts on record.
fn crashed(run: &Run, crashes: Crashes) -> Run {
    let mut run = run.clone();
    run.state.crashes = crashes;
    run
}

#[test]
fn what_is_decided_can_always_be_applied_to_its_end() {
    let host = HostId::new("n");
    for (name, run) in runs() {
        let most = [(0, 0), (CRASHES_IN_A_ROW_MAX, CRASHES_IN_A_ROW_MAX), (1, CRASHES_MAX)];
        for (in_a_row, total) in most {
            let crashes = Crashes { in_a_row, total };
            let run = crashed(&run, crashes);
            let mut all = vec![
                decide::cancel(&run, StopReason::CanceledByParent, Some("why".into())),
                decide::lose(&run, Timestamp(5), None),
                decide::release(&run, 5, Timestamp(0)),
                decide::claim(&run, &host, Timestamp(5)).into_iter().collect(),
            ];
            // Only the host that executes a run says that its work is at its end.
            let held = run.state.hold.host().is_some();
            if held {
                all.push(decide::end(&run, &[], Outcome::HostFailed("x".into())));
                all.push(decide::end(&run, &[], Outcome::Answered(StopReason::Done)));
            }
            for events in all {
                if events.is_empty() {
                    continue;
                }
                let after = after(&run, events.clone());
                let after = after.unwrap_or_else(|error| panic!("{name}: {events:?}: {error}"));
                let status = after.status();
                let lost = word(&after.state.hold) == "nobody" && !status.is_terminal();
                assert!(
                    !lost || status == Status::Blocked,
                    "{name}: nobody would look after it again after {events:?}"
                );
            }
        }
    }
}

#[test]
fn a_host_gets_what_no_other_one_holds() {
    let host = HostId::new("n");
    for (name, run) in runs() {
        let claimed = decide::claim(&run, &host, Timestamp(5));
        let kind = claimed.as_ref().map(Event::kind);
        let free = matches!(
            run.state.hold,
            crate::hold::Hold::Wanted { .. } | crate::hold::Hold::Runs { .. }
        );
        let expected = match run.status() {
            Status::Queued => free.then_some("started"),
            Status::Running
            | Status::Blocked
            | Status::Canceling
            | Status::Finalizing
            | Status::Completed
            | Status::Failed
            | Status::Canceled => free.then_some("resumed"),
        };
        assert_eq!(kind, expected, "{name}");
        if let Some(event) = claimed {
            let taken = after(&run, [event]).expect("decided by ourselves");
            assert_eq!(word(&taken.state.hold), "host n", "{name}");
            assert_eq!(taken.state.epoch, run.state.epoch + 1);
        }
    }
}

#[test]
fn a_claim_names_session_and_execution_unless_the_caller_did() {
    let names = |spec: RunSpec| {
        let run = run_of(spec, []);
        match decide::claim(&run, &HostId::new("n"), Timestamp(5)) {
            Some(Event::Started { child_session_id, request_id, .. }) => {
                (child_session_id, request_id)
            }
            other => panic!("{other:?}"),
        }
    };
    let default = "taskrun:run-1:5000000".to_owned();
    assert_eq!(names(spec()), (default.clone(), default));
    let (child_session_id, request_id) = (Some("s".to_owned()), Some("r".to_owned()));
    let given = RunSpec { child_session_id, request_id, ..spec() };
    assert_eq!(names(given), ("s".to_owned(), "r".to_owned()));
}

#[test]
fn canceling_ends_at_once_what_nobody_executes_and_changes_nothing_on_its_way_out() {
    for (name, run) in runs() {
        let events = decide::cancel(&run, StopReason::CanceledByOwner, None);
        let open = matches!(run.status(), Status::Queued | Status::Running | Status::Blocked);
        let expected: &[&str] = match (open, run.state.hold.host(), run.spec.finalizer) {
            (false, ..) => &[],
            (true, Some(_), _) => &["cancel_requested"],
            (true, None, false) => &["cancel_requested", "finalizing", "finished"],
            (true, None, true) => &["cancel_requested", "finalizing"],
        };
        let ends_pause = run.state.pause.as_ref().map(|_| "pause_ended");
        let expected: Vec<_> = ends_pause.into_iter().chain(expected.iter().copied()).collect();
        assert_eq!(kinds(&events), expected, "{name}");
        let after = after(&run, events).expect("decided by ourselves");
        if open && run.state.hold.host().is_none() {
            let ending = after.ending().expect("its outcome is fixed");
            assert_eq!(ending.status, EndStatus::Canceled, "{name}");
            let hold = if run.spec.finalizer { "Resume from 0" } else { "nobody" };
            assert_eq!(word(&after.state.hold), hold, "{name}");
        }
    }
}

/// The state of a run that was held after its host died.
fn after_loss(run: &Run) -> (Status, Option<EndStatus>, String) {
    let after = after(run, decide::lose(run, Timestamp(5), None)).expect("decided by ourselves");
    (after.status(), after.ending().map(|ending| ending.status), word(&after.state.hold))
}

#[test]
fn a_run_whose_host_died_is_wanted_again_or_ends_as_what_it_was() {
    // The tests of pauses have the paused runs.
    for (name, run) in runs().into_iter().filter(|(_, run)| run.state.pause.is_none()) {
        let held = run.state.hold.host().is_some();
        let (durable, finalizer) = (run.spec.durable, run.spec.finalizer);
        let events = decide::lose(&run, Timestamp(5), None);
        if !held {
            assert_eq!(events, [], "{name}");
            continue;
        }
        assert!(matches!(events[0], Event::Lost { crashed: true, .. }), "{name}");
        let ends = |status, shown| match finalizer {
            true => (Status::Finalizing, Some(status), "Resume from 0".to_owned()),
            false => (shown, Some(status), "nobody".to_owned()),
        };
        let began = name.contains("asked,");
        let expected = match run.status() {
            Status::Running if durable => {
                let pause = 5 + 500 * 2u64.pow(run.state.crashes.in_a_row);
                (Status::Running, None, format!("Resume from {pause}"))
            }
            Status::Running => ends(EndStatus::Failed, Status::Failed),
            Status::Canceling => ends(EndStatus::Canceled, Status::Canceled),
            Status::Finalizing if finalizer && !began => {
                (Status::Finalizing, Some(EndStatus::Completed), "Resume from 505".to_owned())
            }
            Status::Finalizing => {
                (Status::Completed, Some(EndStatus::Completed), "nobody".to_owned())
            }
            other @ (Status::Queued
            | Status::Blocked
            | Status::Completed
            | Status::Failed
            | Status::Canceled) => panic!("nobody holds a run that is {other}"),
        };
        assert_eq!(after_loss(&run), expected, "{name}");
    }
}

#[test]
fn a_finalizer_that_was_cut_off_is_not_asked_again_and_that_is_on_record() {
    let spec = RunSpec { finalizer: true, ..spec() };
    let run = run_of(spec, [started(), completed(), Event::FinalizerStarted]);
    let events = decide::lose(&run, Timestamp(5), None);
    let Some(Event::Finished { finalizer_error, .. }) = events.last() else { panic!("{events:?}") };
    assert!(finalizer_error.is_some());
}

#[test]
fn the_pause_grows_with_the_hosts_that_died_in_a_row_up_to_a_minute() {
    let run = run([started()]);
    let pause = |in_a_row| match &decide::lose(
        &crashed(&run, Crashes { in_a_row, total: 0 }),
        Timestamp(0),
        None,
    )[..]
    {
        [Event::Lost { not_before, .. }] => Some(not_before.0),
        [..] => None,
    };
    let pauses: Vec<_> = (0..4).map(pause).collect();
    assert_eq!(pauses, [Some(500), Some(1_000), None, None], "and then it fails");
    let finalizing = run_of(RunSpec { finalizer: true, ..spec() }, [started(), completed()]);
    let pause = |in_a_row| {
        let events =
            decide::lose(&crashed(&finalizing, Crashes { in_a_row, total: 0 }), Timestamp(0), None);
        match &events[..] {
            [Event::Lost { not_before, .. }] => not_before.0,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([6, 7, 16, 40, u32::MAX].map(pause), [32_000, 60_000, 60_000, 60_000, 60_000]);
}

#[test]
fn a_host_that_died_was_running_until_it_was_last_heard_or_wrote() {
    let recorded = |seq, at, event| EventRecord { seq, id: seq, at: Timestamp(at), event };
    let mut run = run([]);
    let wrote = Event::ClockRead { readings: Vec::new() };
    for (seq, at, event) in [(2, 1_000, started()), (3, 4_000, wrote)] {
        run.state = crate::machine::apply(run.state, &recorded(seq, at, event)).expect("legal");
    }
    let ran = |run: &Run, heard| {
        let events = decide::lose(run, Timestamp(90_000), heard);
        let [Event::Lost { ran_ms, .. }, ..] = events.as_slice() else { panic!("{events:?}") };
        *ran_ms
    };
    assert_eq!(ran(&run, None), 3_000);
    assert_eq!(ran(&run, Some(Timestamp(2_000))), 3_000);
    assert_eq!(ran(&run, Some(Timestamp(9_000))), 8_000);
    let lost = decide::lose(&run, Timestamp(90_000), Some(Timestamp(9_000))).remove(0);
    run.state = crate::machine::apply(run.state, &recorded(4, 90_000, lost)).expect("legal");
    assert_eq!((run.state.ran_ms, run.state.uncounted), (8_000, None));
    // The time until it is taken up again is none of it.
    let resumed = decide::claim(&run, &HostId::new("n"), Timestamp(95_000)).expect("it is wanted");
    run.state = crate::machine::apply(run.state, &recorded(5, 95_000, resumed)).expect("legal");
    assert_eq!(ran(&run, Some(Timestamp(96_500))), 9_500);
}

/// Hosts that die with a run until it fails; `decides` says whether a step is decided before each.
fn hosts_killed(decides: bool) -> u32 {
    let mut run = run([started()]);
    for killed in 1..100 {
        if decides {
            let decided = Event::PlanDecided {
                turn: killed,
                decision: crate::event::DecisionKind::ToolCalls,
                state: Vec::new(),
                reminders: Vec::new(),
                expected_children: None,
                parents: std::collections::BTreeMap::new(),
                ran_ms: 0,
            };
            run = after(&run, [decided]).expect("legal");
        }
        run = after(&run, decide::lose(&run, Timestamp(5), None)).expect("decided by ourselves");
        if let Some(ending) = run.ending() {
            assert_eq!(ending.stop_reason, StopReason::InterruptedByRestart);
            let error = ending.error.as_deref().unwrap_or_default();
            let text = format!("interrupted by previous runtime restart, {killed} times");
            assert_eq!(error, text);
            return killed;
        }
        let claim = decide::claim(&run, &HostId::new("n"), Timestamp(5));
        run = after(&run, claim).expect("decided by ourselves");
    }
    panic!("it kills every host")
}

#[test]
fn a_run_that_kills_its_hosts_does_not_kill_them_all() {
    assert_eq!(hosts_killed(false), CRASHES_IN_A_ROW_MAX);
    assert_eq!(hosts_killed(true), CRASHES_MAX);
}

#[test]
fn a_run_that_is_given_back_is_wanted_at_once_or_ends_canceled() {
    for (name, run) in runs().into_iter().filter(|(_, run)| run.state.pause.is_none()) {
        let events = decide::release(&run, 5, Timestamp(0));
        if run.state.hold.host().is_none() {
            assert_eq!(events, [], "{name}");
            continue;
        }
        assert!(matches!(events[0], Event::Lost { crashed: false, .. }), "{name}");
        let after = after(&run, events).expect("decided by ourselves");
        assert_eq!(after.state.crashes, run.state.crashes, "{name}: no host died");
        if run.status() == Status::Canceling {
            // Its guest is gone: nobody else is needed to say so.
            let ending = after.ending().expect("its outcome is fixed");
            assert_eq!(ending.status, EndStatus::Canceled, "{name}");
        } else {
            let stands = (after.status(), word(&after.state.hold));
            assert_eq!(stands, (run.status(), "Resume from 0".to_owned()), "{name}");
        }
    }
}
