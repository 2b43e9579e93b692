//! The checker finds what it is for: journals with one thing wrong each.

use taskrun_journal::event::{DecisionKind, Event, EventRecord};
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::message::Labels;
use taskrun_journal::status::StopReason;
use taskrun_journal::time::Timestamp;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

use taskrun_journal::question::{Answer, AwaitItem, Item};

use crate::{journal, serial};

/// A fault, the way in which a good journal is made so, and the words that the checker has for it.
type Spoilt = (&'static str, fn(&mut Vec<Event>), &'static str);

const SPOILT: &[Spoilt] = &[
    ("a second end", |events| events.push(finished()), "comes after the end"),
    ("an epoch that jumps", |events| events[4] = resumed(5), "epoch 5 comes after 2"),
    ("an epoch twice", |events| events[4] = resumed(2), "epoch 2 comes after 2"),
    ("a claim of a held run", |events| drop(events.remove(3)), "without having been let go"),
    ("a turn twice", |events| events.push(decided(1)), "turn 1 is decided after 1"),
    (
        "an effect after the cancellation",
        |events| events.insert(5, canceled()),
        "begins after the cancellation",
    ),
    (
        "a call that nobody holds",
        |events| events.insert(4, scheduled("c", true)),
        "begins while nobody holds",
    ),
    ("a call twice", |events| events.insert(3, scheduled("a", true)), "begins twice"),
    (
        "a call repeated that may not be",
        |events| events[2] = scheduled("a", false),
        "must not begin again",
    ),
    (
        "a second result",
        |events| {
            let again = events[6].clone();
            events.insert(7, again);
        },
        "has a second result",
    ),
    ("a result of nothing", |events| events[6] = result("b"), "never began"),
    (
        "two runs for a call",
        |events| events.splice(3..3, [linked("a"), linked("a")]).for_each(drop),
        "starts a second run",
    ),
    (
        "a message that no step is shown",
        |events| events.splice(7..7, [told(), decided(2), decided(3)]).for_each(drop),
        "was not shown to this step",
    ),
    (
        "a message that is shown twice",
        |events| events.splice(7..7, [told(), shown(), shown()]).for_each(drop),
        "was shown before",
    ),
];

/// Holds the checker to journals that are wrong, and to one that is right.
///
/// # Errors
/// The faults that it does not find, or that it finds and are not there.
pub(crate) fn prove() -> Result<(), String> {
    let found = journal::wrong(&recorded(good()));
    if !found.is_empty() {
        return Err(format!("the checker refuses a good journal: {found:?}"));
    }
    for (what, spoil, says) in SPOILT {
        let mut events = good();
        spoil(&mut events);
        expect(what, &recorded(events), says)?;
    }
    prove_consent()?;
    crate::stalls::prove()?;
    prove_turns()?;
    let mut gap = recorded(good());
    gap.remove(6);
    expect("a gap", &gap, "stands at 8, where 7 comes")?;
    let mut twice = recorded(good());
    twice[6].id = twice[5].id;
    expect("an event twice", &twice, "has the id of another event")
}

fn expect(what: &str, journal: &[EventRecord], says: &str) -> Result<(), String> {
    let found = journal::wrong(journal);
    if found.iter().any(|one| one.contains(says)) {
        return Ok(());
    }
    Err(format!("the checker does not find {what}: {found:?}"))
}

/// A call that must not be repeated is, once, if somebody says yes; what says no does not count.
fn prove_consent() -> Result<(), String> {
    let repeated = |yes| {
        let mut events = good();
        events[2] = scheduled("a", false);
        events.splice(5..5, [asked("repeat:1:a"), answered("repeat:1:a", yes)]);
        events
    };
    let found = journal::wrong(&recorded(repeated(true)));
    if !found.is_empty() {
        return Err(format!("the checker refuses a repetition that was accepted: {found:?}"));
    }
    let declined = recorded(repeated(false));
    expect("a repetition that was declined", &declined, "must not begin again")?;
    let mut twice = repeated(true);
    twice.insert(8, Event::ToolCallRepeated { tool_call_id: "a".to_owned(), attempt: 3 });
    expect("a second repetition", &recorded(twice), "must not begin again")
}

/// Of two runs that take turns the second one begins when the first one has ended.
fn prove_turns() -> Result<(), String> {
    use crate::serial::Step::{Accepted, Begins, Ends};
    let ordered = [("a", Accepted), ("b", Accepted), ("a", Begins), ("a", Ends)];
    let last = ("b", Begins);
    let found = serial::wrong(ordered.into_iter().chain([last]));
    if !found.is_empty() {
        return Err(format!("the checker refuses runs that take turns: {found:?}"));
    }
    let overlapping = ordered.into_iter().take(3).chain([last]);
    match serial::wrong(overlapping).as_slice() {
        [(run, _)] if run == "b" => Ok(()),
        found => Err(format!("the checker does not find runs that overlap: {found:?}")),
    }
}

/// A host dies in the middle of a call, and another one repeats it.
fn good() -> Vec<Event> {
    let host = || HostId::new("host-1");
    vec![
        Event::Started {
            host: host(),
            epoch: 1,
            child_session_id: "session".to_owned(),
            request_id: "request".to_owned(),
            batch: None,
        },
        decided(1),
        scheduled("a", true),
        Event::Lost { host: host(), epoch: 2, not_before: Timestamp(0), crashed: true, ran_ms: 0 },
        resumed(3),
        Event::ToolCallRepeated { tool_call_id: "a".to_owned(), attempt: 2 },
        result("a"),
        finished(),
    ]
}

fn recorded(events: Vec<Event>) -> Vec<EventRecord> {
    let number = |(seq, event)| EventRecord { seq, id: seq, at: Timestamp(seq), event };
    (1..).zip(events).map(number).collect()
}

fn decided(turn: u32) -> Event {
    let (decision, state) = (DecisionKind::ToolCalls, Vec::new());
    Event::PlanDecided {
        turn,
        decision,
        state,
        reminders: Vec::new(),
        expected_children: None,
        parents: std::collections::BTreeMap::new(),
        ran_ms: 0,
    }
}

fn scheduled(id: &str, idempotent: bool) -> Event {
    let (name, tool_call_id) = ("tool/call".to_owned(), id.to_owned());
    Event::ToolCallScheduled {
        name,
        tool_call_id,
        payload: "{}".to_owned(),
        idempotent,
        is_own: false,
    }
}

fn resumed(epoch: u64) -> Event {
    Event::Resumed { host: HostId::new("host-2"), epoch }
}

fn canceled() -> Event {
    Event::CancelRequested { by: StopReason::CanceledByOwner, from: None, reason: None }
}

fn result(id: &str) -> Event {
    let output = ToolOutput::plain("tool/call", id, "{}", ToolOutcome::Value("1".to_owned()));
    Event::ToolResult { output: Box::new(output), duration_ms: 1, refused: None }
}

fn linked(call: &str) -> Event {
    Event::ChildRunLinked {
        tool_call_id: call.to_owned(),
        run_id: RunId::new("child").expect("a valid id"),
        agent_name: "helper".to_owned(),
    }
}

fn told() -> Event {
    Event::Injected { text: "there is news".to_owned(), by: "a person".to_owned() }
}

fn shown() -> Event {
    Event::InboxShown { messages: 1 }
}

fn finished() -> Event {
    Event::Finished { metadata: Labels::new(), finalizer_error: None }
}

fn asked(id: &str) -> Event {
    let what = AwaitItem::Confirmation {
        id: id.to_owned(),
        question: "again?".to_owned(),
        tool_name: "tool/call".to_owned(),
        tool_call_id: "a".to_owned(),
        payload: "{}".to_owned(),
        digest: None,
        policy: None,
    };
    Event::Asked {
        item: Box::new(Item {
            what,
            tool_call_id: Some("a".to_owned()),
            until: None,
            default: None,
        }),
    }
}

fn answered(id: &str, yes: bool) -> Event {
    let answer = Answer::Confirmed(yes);
    Event::Answered { item: id.to_owned(), answer, by: "a person".to_owned(), by_default: false }
}
