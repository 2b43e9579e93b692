//! A cancellation that races the end of its run (TS-29, case 13).

use taskrun_journal::event::EventRecord;
use taskrun_journal::machine;
use taskrun_journal::status::Status;

use crate::native::{ClosurePlanner, Gate, Native, Op, World, answer, in_time, request};

/// Repeats, in each of which the run is let go before it is canceled.
const REPEATS: usize = 1_000;
/// The least times that the two writers change places from one repeat to the next: otherwise they
/// were never near each other.
const CHANGES_MIN: u32 = 10;

/// True if section 1 of the semantics lets a run go from one status to the other.
fn is_allowed(from: Status, to: Status) -> bool {
    match from {
        Status::Queued => matches!(to, Status::Running | Status::Canceling),
        Status::Running => matches!(to, Status::Blocked | Status::Canceling | Status::Finalizing),
        Status::Blocked => matches!(to, Status::Running | Status::Canceling),
        Status::Canceling => to == Status::Finalizing,
        Status::Finalizing => to.is_terminal(),
        Status::Completed | Status::Failed | Status::Canceled => false,
    }
}

/// Holds the events that an observer saw to the state machine and gives the last status.
fn check(events: &[EventRecord]) -> Status {
    let mut run = machine::begin(&events[0]).expect("the first event begins a run");
    for (index, recorded) in events.iter().enumerate().skip(1) {
        assert_eq!(recorded.seq, index as u64 + 1, "in order, without gaps");
        let from = run.status();
        run.state = machine::apply(run.state, recorded).expect("the event can happen here");
        let to = run.status();
        assert!(from == to || is_allowed(from, to), "{from} -> {to}");
        assert!(!from.is_terminal(), "{} after the end", recorded.event.kind());
    }
    let ends = events.iter().filter(|recorded| recorded.event.kind() == "finished").count();
    assert_eq!(ends, 1, "exactly one end");
    run.status()
}

/// Everything that an observer sees until the run has ended.
async fn tap(host: &Native, id: &str) -> Vec<EventRecord> {
    let mut seen: Vec<EventRecord> = Vec::new();
    let mut stream = host.client().follow(id, 0).await.expect("there");
    loop {
        let next = stream.next(2).await.expect("there");
        if next.is_empty() {
            return seen;
        }
        seen.extend(next);
    }
}

#[tokio::test]
async fn ts_29_a_cancellation_that_races_the_end_is_before_it_or_changes_nothing() {
    let mut world = World::new();
    let gates: Vec<Gate> = (0..REPEATS).map(|_| Gate::new()).collect();
    let own = gates.clone();
    world.agent(
        "a",
        ClosurePlanner::new(move |input, _| {
            let number: usize = input.messages[0].joined_text().parse().expect("a number");
            let gate = own[number].clone();
            async move {
                gate.pass().await;
                answer("done")
            }
        }),
    );
    let host = world.start().await;
    let (mut ends, mut changes, mut before) = ([0; 2], 0, None);
    // How long the cancellation waits: longer after it was first, shorter after it was second, so
    // that the two come to the journal at nearly the same time.
    let mut waits = 0_u32;
    for (number, gate) in gates.iter().enumerate() {
        let id = host.spawn(&request("a", &number.to_string())).await;
        let race = async {
            gate.open();
            for _ in 0..waits {
                tokio::task::yield_now().await;
                std::hint::spin_loop();
            }
            host.client().cancel(&id, None).await.expect("there")
        };
        let (events, canceled) = tokio::join!(in_time(tap(&host, &id)), race);
        let end = check(&events);
        let expected = if canceled.changed { Status::Canceled } else { Status::Completed };
        assert_eq!(end, expected, "run {number} was told changed={}", canceled.changed);
        assert_eq!(events, host.journal(&id).await, "an observer sees the whole journal");
        ends[usize::from(canceled.changed)] += 1;
        changes += u32::from(before.is_some_and(|before| before != canceled.changed));
        before = Some(canceled.changed);
        waits = match canceled.changed {
            true => waits + waits / 8 + 1,
            false => waits - waits.div_ceil(4),
        };
    }
    assert!(changes >= CHANGES_MIN, "{changes} changes, {ends:?}");
}

#[tokio::test]
async fn case_13_cancellations_while_the_answer_is_written_count_once_or_change_nothing() {
    let (mut world, gate) = (World::new(), Gate::new());
    world.agent("a", gate.answering("done"));
    let host = world.start().await;
    let id = host.spawn(&request("a", "x")).await;
    gate.reached_by(1).await;
    world.store.hold(Op::Append);
    gate.open();
    in_time(world.store.somebody_waits()).await;
    let client = host.client();
    let mut twice =
        std::pin::pin!(futures::future::join(client.cancel(&id, None), client.cancel(&id, None)));
    assert!(futures::poll!(&mut twice).is_pending(), "neither is on record yet");
    world.store.release();
    let (first, second) = in_time(twice).await;
    let changed = [first, second].map(|canceled| canceled.expect("there").changed);
    assert_ne!(changed, [true, true]);
    let events = in_time(tap(&host, &id)).await;
    let expected = if changed.contains(&true) { Status::Canceled } else { Status::Completed };
    assert_eq!(check(&events), expected, "{changed:?}");
    assert!(!client.cancel(&id, None).await.expect("there").changed, "it has ended");
    assert_eq!(host.journal(&id).await, events);
}
