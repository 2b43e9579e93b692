//! Excerpts that are extended from step to step, and what of them is new.

use taskrun_journal::event::DecisionKind;
use taskrun_journal::question::{Answer, AwaitItem, ExternalTool, Item};

use super::*;

fn decided(turn: u32) -> Event {
    Event::PlanDecided {
        turn,
        decision: DecisionKind::ToolCalls,
        state: Vec::new(),
        reminders: Vec::new(),
        expected_children: None,
        parents: BTreeMap::new(),
        ran_ms: 0,
    }
}

/// The roles of the messages that are new to the next step, and the number of results.
fn new_in(said: &mut Conversation, window: Window<'_>) -> (Vec<Role>, usize) {
    let all = said.within(1_000_000, window, Whole).expect("room");
    let shown = said.within(1_000_000, window, ConversationView::New).expect("room");
    assert_eq!((&all.messages, all.first_new), (&shown.messages, shown.first_new));
    let new = all.outputs.len() - shown.outputs.len();
    assert_eq!(all.outputs[new..], shown.outputs[..]);
    let roles = shown.messages[shown.first_new..].iter().map(|message| message.role).collect();
    (roles, shown.outputs.len())
}

#[test]
fn new_is_what_the_step_that_decided_last_was_not_given() {
    use Role::{Assistant, Tool, User};
    let mut said = conversation(&[]);
    assert_eq!(new_in(&mut said, met(10_000)), (vec![User], 0), "nothing was decided yet");
    for number in 1..=60 {
        let id = format!("c{number}");
        for event in [decided(number), asked(&[&id]), answered(&id, value(1_000))] {
            said.push(&event);
        }
        assert_eq!(new_in(&mut said, met(10_000)), (vec![Assistant, Tool], 1), "{number}");
        // A step that came to nothing was given these, too, and the next is given them again.
        let skipped =
            Event::TurnSkipped { turn: number, attempts: 1, error: String::new(), ran_ms: 0 };
        said.push(&skipped);
        assert_eq!(new_in(&mut said, met(10_000)), (vec![Assistant, Tool, User], 1), "{number}");
        said.push(&decided(number));
        for event in &round(number as usize, (number % 20 == 0).then_some(2_800))[2..] {
            said.push(event);
        }
        assert_eq!(new_in(&mut said, met(10_000)), (vec![Assistant, User], 0), "{number}");
        assert_eq!(new_in(&mut said, Window::default()), (vec![Assistant, User], 0), "{number}");
    }
    // Words of the step that decided stand before its calls.
    let words = Event::AssistantMessage {
        message: Message::text(Assistant, "I look."),
        usage: None,
        model: None,
        streamed: false,
    };
    for event in [decided(61), words, asked(&["x"]), answered("x", value(9_000))] {
        said.push(&event);
    }
    assert_eq!(new_in(&mut said, Window::default()), (vec![Assistant, Assistant, Tool], 1));
    assert_eq!(new_in(&mut said, met(5_000)), (vec![Assistant, Tool], 1), "as far as it is shown");
    // What is left behind moves the place, or takes it with it.
    said.leave_behind(0);
    assert_eq!(new_in(&mut said, Window::default()), (vec![Assistant, Assistant, Tool], 1));
    said.tell(vec![Message::text(User, "More.")]);
    said.leave_behind(0);
    assert_eq!(new_in(&mut said, Window::default()), (vec![Role::System, User], 0));
    // Another run that continues this one begins with everything, what is left out in short.
    for number in 70..80 {
        let id = format!("c{number}");
        for event in [decided(number), asked(&[&id]), answered(&id, value(1_000))] {
            said.push(&event);
        }
    }
    said.carry_on("go on");
    let shown = said.within(1_000_000, met(3_000), ConversationView::New).expect("room");
    assert!(shown.left_out.is_some());
    assert_eq!((shown.first_new, shown.outputs.len()), (0, said.outputs.len()));
    assert_eq!(new_in(&mut said, Window::default()).0.len(), said.messages.len());
}

#[test]
fn words_of_earlier_runs_that_are_left_out_are_kept_under_one_name_and_the_task_stays() {
    let earlier: Vec<Message> = (0..8)
        .flat_map(|number| {
            let line = format!("line {number} {}", "x".repeat(1_500));
            [Message::text(Role::User, line), Message::text(Role::Assistant, "so")]
        })
        .collect();
    let carried = Event::HistoryCarried { runs: Vec::new(), messages: earlier.clone() };
    let mut events = vec![carried];
    for number in 1..=20 {
        let id = format!("c{number}");
        events.extend([decided(number), asked(&[&id]), answered(&id, value(900))]);
    }
    let mut one = conversation(&[]);
    for (at, event) in events.iter().enumerate() {
        one.push(event);
        let shown = one.within(1_000_000, met(8_000), Whole).expect("room");
        let bytes: usize = shown.messages.iter().map(Message::bytes).sum();
        assert!(bytes <= 8_000, "{bytes} after {at}");
        assert_eq!(shown.messages[shown.task], Message::text(Role::User, "task"), "{at}");
        assert!(!shown.is_whole);
        let anew = conversation(&events[..=at]).within(1_000_000, met(8_000), Whole).expect("room");
        assert_eq!((&shown.messages, &shown.left_out), (&anew.messages, &anew.left_out), "{at}");
        let left_out = shown.left_out.expect("some");
        let text = std::str::from_utf8(left_out.bytes()).expect("a text");
        let first: Message = serde_json::from_str(text.lines().next().expect("one")).expect("JSON");
        assert_eq!(first, earlier[0]);
        // Nothing is missing.
        let of_them = |one: &&Message| earlier.contains(*one);
        let kept = shown.messages.iter().filter(of_them).count();
        let gone = text.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
        assert_eq!(kept + gone.filter(|one| earlier.contains(one)).count(), earlier.len(), "{at}");
    }
}

#[test]
fn results_that_are_left_out_are_shown_alike_from_step_to_step() {
    let most = |number| (number == 30).then_some(8_000);
    let events: Vec<_> = (1..=60).flat_map(|number| round(number, most(number))).collect();
    let (mut one, mut left_out) = (conversation(&[]), 0);
    for (at, event) in events.iter().enumerate() {
        one.push(event);
        let shown = one.within(20_000, Window::default(), Whole).expect("room");
        let anew =
            conversation(&events[..=at]).within(20_000, Window::default(), Whole).expect("room");
        assert_eq!((&shown.messages, &shown.outputs), (&anew.messages, &anew.outputs), "{at}");
        left_out = left_out.max(omitted(&shown.outputs).iter().flatten().count());
    }
    assert!(left_out > 10, "{left_out}");
}

#[test]
fn calls_that_a_step_is_not_given_again_take_no_room_of_it() {
    let mut said = conversation(&[]);
    for number in 1..=20 {
        let id = format!("c{number}");
        let Event::ToolResult { mut output, .. } = answered(&id, value(10)) else {
            panic!("a result")
        };
        output.payload = "x".repeat(1_000);
        let result = Event::ToolResult { output, duration_ms: 0, refused: None };
        for event in [decided(number), asked(&[&id]), result] {
            said.push(&event);
        }
    }
    assert!(said.within(10_000, Window::default(), Whole).is_none());
    let new = said.within(10_000, Window::default(), ConversationView::New).expect("room");
    assert_eq!((new.messages.len(), new.outputs.len()), (41, 1));
}

#[test]
fn calls_that_are_answered_outside_are_new_with_the_words_beside_them() {
    let words = Event::AssistantMessage {
        message: Message::text(Role::Assistant, "I ask."),
        usage: None,
        model: None,
        streamed: false,
    };
    // Said by an attempt that failed, so the one that decided to ask was given it.
    let mut said = conversation(&[words, decided(1)]);
    let call = ExternalTool {
        name: "t/f".to_owned(),
        tool_call_id: "c".to_owned(),
        payload: "{}".to_owned(),
    };
    let what = AwaitItem::ExternalTools { id: "i".to_owned(), items: vec![call] };
    let item = Item { what, tool_call_id: None, until: None, default: None };
    let result = ToolOutcome::Value("1".to_owned()).into();
    let answer = Answer::Results(BTreeMap::from([("c".to_owned(), result)]));
    said.answered(&item, &answer);
    let new = new_in(&mut said, Window::default());
    assert_eq!(new, (vec![Role::Assistant, Role::Tool], 1));
}

#[test]
fn of_new_results_without_room_the_oldest_are_left_out_and_what_is_shown_stays() {
    let batch = |turn: u32, bytes: usize| {
        let ids = ["a", "b", "c"].map(|id| format!("{id}{turn}"));
        let mut events = vec![decided(turn), asked(&ids.each_ref().map(String::as_str))];
        events.extend(ids.iter().map(|id| answered(id, value(bytes))));
        events
    };
    let mut said = conversation(&batch(1, 9_000));
    let new = said.within(50_000, Window::default(), ConversationView::New).expect("room");
    assert_eq!(omitted(&new.outputs), [Some(OVER_BUDGET), None, None]);
    assert_eq!(new.messages, said.messages, "the messages have room");
    // A batch for which the messages alone leave no room is shown all the same.
    let all = said.within(28_000, Window::default(), ConversationView::New).expect("room");
    assert_eq!(
        (&all.messages, omitted(&all.outputs)),
        (&said.messages, vec![Some(OVER_BUDGET); 3])
    );
    // The next ones, too: results that the step is given beside them take nothing of it.
    batch(2, 100).iter().for_each(|event| said.push(event));
    let next = said.within(50_000, Window::default(), ConversationView::New).expect("room");
    assert_eq!((&next.messages, omitted(&next.outputs)), (&said.messages, vec![None; 3]));
}
