//! Giving a run another pin: where it may be, and what follows.

use super::places::{places, word};
use super::*;
use crate::machine::decide::{self, AdoptRefusal};
use crate::pin::Pins;
use crate::status::Status;

#[test]
fn only_a_run_that_nobody_has_under_way_is_given_another_pin() {
    for place in places() {
        let name = place.name;
        let run = run(place.events);
        let (hold, status) = (word(&run.state.hold), run.status());
        let decided = decide::adopt(&run, "a@2", "b");
        let expected = match status {
            Status::Queued | Status::Blocked => None,
            Status::Running => Some(AdoptRefusal::UnderWay),
            Status::Canceling
            | Status::Finalizing
            | Status::Completed
            | Status::Failed
            | Status::Canceled => Some(AdoptRefusal::Ended),
        };
        match (decided, expected) {
            (Err(why), Some(expected)) => assert_eq!(why, expected, "{name}"),
            (Ok(events), None) => {
                let after = after(&run, events).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!((after.status(), word(&after.state.hold)), (status, hold), "{name}");
                assert_eq!(after.pin(), "a@2", "{name}");
                assert_eq!(Pins::of(&after).own(), "a@2", "{name}");
                assert_eq!(Pins::accepted(&after.spec), Pins::of(&run), "{name}");
                assert_eq!(
                    decide::adopt(&after, "a@2", "b"),
                    Ok(Vec::new()),
                    "{name}: it has that"
                );
                let back = decide::adopt(&after, run.pin(), "b").expect("it may go back");
                assert_eq!(self::after(&after, back).expect("legal").pin(), run.pin(), "{name}");
            }
            (decided, expected) => panic!("{name}: {decided:?}, not {expected:?}"),
        }
    }
    let entry = run_of(RunSpec { class: RunClass::Heartbeat, ..spec() }, []);
    assert_eq!(decide::check_adoptable(&entry), Err(AdoptRefusal::Entry));
    assert_eq!(decide::adopt(&entry, "a@2", "b"), Err(AdoptRefusal::Entry));
}

#[test]
fn a_host_that_takes_a_run_up_may_give_it_another_pin_also_if_it_was_running() {
    for place in places() {
        let (name, run) = (place.name, run(place.events));
        let expected = match run.status() {
            Status::Queued | Status::Running | Status::Blocked => match run.state.hold.host() {
                Some(_) => Err(AdoptRefusal::UnderWay),
                None => Ok(()),
            },
            Status::Canceling
            | Status::Finalizing
            | Status::Completed
            | Status::Failed
            | Status::Canceled => Err(AdoptRefusal::Ended),
        };
        assert_eq!(decide::check_adoptable(&run), expected, "{name}");
    }
}

#[test]
fn a_pin_that_it_does_not_have_is_not_taken_away() {
    let adopted = |from: &str, to: &str| Event::Adopted {
        from: from.to_owned(),
        to: to.to_owned(),
        by: "b".to_owned(),
    };
    let run = run([]);
    let first = [adopted(run.pin(), "a@2")];
    let run = after(&run, first).expect("legal");
    assert!(after(&run, [adopted("a@1", "a@3")]).is_err());
    assert!(after(&run, [adopted("a@2", "a@3")]).is_ok());
}
