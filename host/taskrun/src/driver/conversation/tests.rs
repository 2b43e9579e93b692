//! Results in their order, and left out where they are too large.

mod excerpts;

use std::collections::BTreeMap;
use std::sync::Arc;

use taskrun_journal::artifact::digest;
use taskrun_journal::checkpoint::Checkpoint;
use taskrun_journal::event::Event;
use taskrun_journal::message::{Message, Part, RetryHint, RetryReason, Role, ToolError, ToolUse};
use taskrun_journal::reminders::Reminders;
use taskrun_journal::tool::{ToolFailure, ToolOutcome, ToolOutput};

use super::results::{OVER_BUDGET, TOO_LARGE};
use super::{CONVERSATION_RESULT_BYTES_MAX, Conversation, Excerpt, Length};
use crate::compaction::Window;
use crate::ports::planner::ConversationView;
use crate::ports::planner::ConversationView::Whole;
use crate::scope::ResultDigests;

fn asked(ids: &[&str]) -> Event {
    let parts = ids.iter().map(|id| {
        Part::ToolUse(ToolUse {
            tool_call_id: (*id).to_owned(),
            name: "t/f".to_owned(),
            payload: "{}".to_owned(),
        })
    });
    let message = Message { role: Role::Assistant, parts: parts.collect() };
    Event::AssistantMessage { message, usage: None, model: None, streamed: false }
}

fn answered(id: &str, outcome: ToolOutcome) -> Event {
    let result_bytes = match &outcome {
        ToolOutcome::Value(value) => value.len() as u64,
        ToolOutcome::Failure(_) => 0,
    };
    let output = Box::new(ToolOutput {
        name: "t/f".to_owned(),
        tool_call_id: id.to_owned(),
        payload: "{}".to_owned(),
        outcome,
        result_bytes,
        result_omitted: None,
        server_data: None,
        bounds: None,
        telemetry: None,
        children_count: 0,
        run_link: None,
        artifact: None,
        media: Vec::new(),
    });
    Event::ToolResult { output, duration_ms: 0, refused: None }
}

fn value(bytes: usize) -> ToolOutcome {
    ToolOutcome::Value(format!("\"{}\"", "x".repeat(bytes - 2)))
}

fn conversation(events: &[Event]) -> Conversation {
    let mut conversation = Conversation {
        has_rounds: false,
        messages: Arc::new(vec![Message::text(Role::User, "task")]),
        outputs: Arc::default(),
        places: Arc::default(),
        open: Vec::new(),
        state: BTreeMap::new(),
        reminders: Reminders::default(),
        has_history: false,
        continuation: String::new(),
        task: 0,
        begun: false,
        given: Length::default(),
        message_excerpt: None,
        output_excerpt: None,
        result_digests: ResultDigests::default(),
    };
    events.iter().for_each(|event| conversation.push(event));
    conversation
}

fn omitted(outputs: &[ToolOutput]) -> Vec<Option<&str>> {
    outputs.iter().map(|output| output.result_omitted.as_deref()).collect()
}

#[test]
fn results_stand_in_the_order_requested() {
    let said =
        conversation(&[asked(&["a", "b"]), answered("b", value(10)), answered("a", value(20))]);
    let ids: Vec<_> = said.outputs.iter().map(|o| o.tool_call_id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(said.messages.len(), 3);
}

#[test]
fn a_large_result_is_left_out_and_its_size_is_kept() {
    let bytes = CONVERSATION_RESULT_BYTES_MAX + 1_024;
    let said = conversation(&[asked(&["a"]), answered("a", value(bytes))]);
    assert_eq!(omitted(&said.outputs), [Some(TOO_LARGE)]);
    assert_eq!(said.outputs[0].result_bytes, bytes as u64);
    let Part::ToolAnswer(answer) = &said.messages[2].parts[0] else { panic!("an answer") };
    assert!(answer.content.contains("\"preview\"") && answer.content.len() < 4_096);
}

#[test]
fn l_077_what_a_result_is_a_part_of_and_how_to_try_again_stands_behind_the_results() {
    let event =
        |id: &str, outcome: ToolOutcome, bounds: Option<taskrun_journal::message::Bounds>| {
            let output = ToolOutput { bounds, ..ToolOutput::plain("t/f", id, "{}", outcome) };
            Event::ToolResult { output: Box::new(output), duration_ms: 0, refused: None }
        };
    let bounds = |truncated| taskrun_journal::message::Bounds {
        returned: 2,
        total: Some(9),
        truncated,
        continuation: Some("{\"after\":2}".to_owned()),
        refinement: None,
    };
    let mut hint = RetryHint::new(RetryReason::MissingFields, "t/f");
    hint.missing_fields = vec!["q".to_owned()];
    hint.example_input = Some("{\"q\":\"...\"}".to_owned());
    let error = ToolError::coded("x", "no q");
    let failure = ToolFailure { error, retry_hint: Some(Box::new(hint)) };
    let said = conversation(&[
        asked(&["a", "b", "c"]),
        event("a", value(10), Some(bounds(true))),
        event("b", value(10), Some(bounds(false))),
        event("c", ToolOutcome::Failure(failure), None),
    ]);
    let [Part::ToolAnswer(_), Part::ToolAnswer(_), Part::ToolAnswer(_), Part::Text(text)] =
        said.messages[2].parts.as_slice()
    else {
        panic!("three results and what is said to them: {:?}", said.messages[2])
    };
    let expected = "The result of t/f is a part: 2 of 9 items. To go on, call it with \
                    {\"after\":2}.\nTo call t/f again: Missing: q. Arguments such as \
                    {\"q\":\"...\"} are accepted.";
    assert_eq!(text, expected);
    let plain = conversation(&[asked(&["a"]), event("a", value(10), None)]);
    assert_eq!(plain.messages[2].parts.len(), 1, "nothing is said where nothing is to be said");
}

#[test]
fn an_error_without_end_is_cut() {
    let error = ToolError::coded("x", "e".repeat(10 * CONVERSATION_RESULT_BYTES_MAX));
    let failure = ToolOutcome::Failure(ToolFailure { error, retry_hint: None });
    let said = conversation(&[asked(&["a"]), answered("a", failure)]);
    let Part::ToolAnswer(answer) = &said.messages[2].parts[0] else { panic!("an answer") };
    assert_eq!(answer.content.len(), CONVERSATION_RESULT_BYTES_MAX);
}

#[test]
fn where_there_is_no_room_the_oldest_results_go_first_and_the_newest_stays() {
    let events: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .flat_map(|id| [asked(&[id]), answered(id, value(10_000))])
        .collect();
    let mut said = conversation(&events);
    // Half of the room is left then, which has no room for two.
    let Excerpt { messages, outputs, .. } =
        said.within(59_000, Window::default(), Whole).expect("less than the results");
    assert_eq!(omitted(&outputs), [Some(OVER_BUDGET), Some(OVER_BUDGET), None]);
    let total = messages.iter().map(Message::bytes).sum::<usize>()
        + outputs.iter().map(ToolOutput::bytes).sum::<usize>();
    assert!(total <= 59_000, "{total}");
    assert!(said.within(10_000, Window::default(), Whole).is_none(), "the newest alone is more");
    assert_eq!(omitted(&said.outputs), [None; 3], "the conversation itself is whole");
}

#[test]
fn results_with_one_id_for_all_are_left_out_each_under_its_own_name() {
    let events: Vec<_> = (0..9)
        .flat_map(|turn| [asked(&["call_1"]), answered("call_1", value(60_000 + turn))])
        .collect();
    let mut said = conversation(&events);
    let Excerpt { messages, outputs, .. } =
        said.within(1_000_000, Window::default(), Whole).expect("room for the newest");
    let answers: Vec<_> = messages
        .iter()
        .flat_map(|message| &message.parts)
        .filter_map(|part| match part {
            Part::ToolAnswer(answer) => Some(answer.content.as_str()),
            Part::Text(_)
            | Part::Thinking(_)
            | Part::ToolUse(_)
            | Part::Json(_)
            | Part::Media(_) => None,
        })
        .collect();
    assert_eq!(answers.len(), 9);
    assert_eq!(answers[8].len(), 60_008, "the newest is whole");
    for (turn, content) in answers.iter().enumerate() {
        let ToolOutcome::Value(whole) = value(60_000 + turn) else { panic!("a value") };
        let hash = digest(whole.as_bytes());
        assert!(*content == whole || content.contains(&hash), "{turn}: {content:.200}");
        let artifact = outputs[turn].artifact.as_ref().map(|artifact| artifact.hash.clone());
        assert!(artifact.is_none_or(|name| name == hash), "{turn}");
    }
    assert!(answers[0].contains(OVER_BUDGET) && outputs[0].result_omitted.is_some());
}

/// A window that had no room for more bytes than these.
fn met(bytes: usize) -> Window<'static> {
    Window { bytes: Some(bytes), ..Window::default() }
}

#[test]
fn a_window_bounds_what_a_model_is_shown_and_not_what_the_planner_has() {
    let events: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .flat_map(|id| [asked(&[id]), answered(id, value(10_000))])
        .collect();
    let mut said = conversation(&events);
    let Excerpt { messages, outputs, .. } =
        said.within(1_000_000, met(25_000), Whole).expect("room");
    assert_eq!(omitted(&outputs), [None; 3]);
    assert!(messages.iter().map(Message::bytes).sum::<usize>() <= 12_500);
    let Excerpt { messages, .. } = said.within(1_000_000, met(5_000), Whole).expect("room");
    assert!(messages.iter().map(Message::bytes).sum::<usize>() <= 5_000);
    let Some(Part::ToolAnswer(newest)) = messages.last().and_then(|last| last.parts.first()) else {
        panic!("a result")
    };
    assert!(newest.content.contains("\"preview\":\"\\\"xxx"), "{}", newest.content);
}

/// A round with a call, after which at most so many bytes are left.
fn round(number: usize, most: Option<u64>) -> Vec<Event> {
    let id = format!("c{number}");
    let said = Event::AssistantMessage {
        message: Message::text(Role::Assistant, format!("This was {number}.")),
        usage: None,
        model: None,
        streamed: false,
    };
    let ended = Event::RoundEnded {
        round: 1,
        prompt: "go on".to_owned(),
        worked: true,
        wants_result: false,
        checkpoint: Box::new(Checkpoint { conversation_bytes: most, ..Checkpoint::default() }),
    };
    vec![asked(&[&id]), answered(&id, value(1_000)), said, ended]
}

#[test]
fn turns_that_are_left_out_are_written_once_and_as_the_journal_has_them() {
    // What is left out for good after the thirtieth makes others of the first turns.
    let most = |number| (number == 30).then_some(2_800);
    let events: Vec<_> = (1..=60).flat_map(|number| round(number, most(number))).collect();
    let (mut one, mut before, mut made, mut kept) = (conversation(&[]), None, 0, 0);
    for (at, event) in events.iter().enumerate() {
        one.push(event);
        let leaves_behind = matches!(event, Event::RoundEnded { checkpoint, .. }
            if checkpoint.conversation_bytes.is_some());
        assert!(
            !leaves_behind || one.message_excerpt.is_none(),
            "what was left out stands no more"
        );
        let shown = one.within(1_000_000, met(10_000), Whole).expect("room");
        let anew =
            conversation(&events[..=at]).within(1_000_000, met(10_000), Whole).expect("room");
        assert_eq!((&shown.messages, &shown.left_out), (&anew.messages, &anew.left_out), "{at}");
        let Some(turns) = shown.left_out else { continue };
        match before.is_some_and(|before| Arc::ptr_eq(&before, turns.bytes())) {
            true => kept += 1,
            false => made += 1,
        }
        before = Some(Arc::clone(turns.bytes()));
    }
    assert!(made > 4 && kept > 5 * made, "{made} {kept}");
}

#[test]
fn at_the_end_of_a_round_what_is_oldest_is_left_out_for_good_in_whole_rounds() {
    let mut one = conversation(&(1..=9).flat_map(|number| round(number, None)).collect::<Vec<_>>());
    assert_eq!(one.outputs.len(), 9);
    round(10, Some(2_800)).iter().for_each(|event| one.push(event));
    let texts: Vec<_> = one.messages.iter().map(Message::joined_text).collect();
    assert_eq!(texts[0], "task");
    assert!(texts[1].starts_with("Earlier turns are left out here."), "{texts:?}");
    assert!(texts[1].contains("- This was 1.") && texts[1].ends_with("- This was 8."), "{texts:?}");
    assert_eq!(texts[2], "go on", "it begins with a prompt");
    assert_eq!((texts.iter().filter(|text| *text == "go on").count(), one.outputs.len()), (3, 2));
    // The next time what was said in short stays in short.
    let bytes = one.bytes();
    round(11, Some(1_500)).iter().for_each(|event| one.push(event));
    let texts: Vec<_> = one.messages.iter().map(Message::joined_text).collect();
    assert!(
        texts[1].contains("- This was 1.") && texts[1].ends_with("- This was 10."),
        "{texts:?}"
    );
    assert!(one.bytes() < bytes && one.outputs.len() == 1);
    // The last round stays, whatever it has.
    round(12, Some(0)).iter().for_each(|event| one.push(event));
    assert_eq!(one.outputs.len(), 1);
    let excerpt = one.within(900_000, Window::default(), Whole).expect("it has room");
    assert_eq!(excerpt.messages.len(), one.messages.len());
}
