use taskrun_journal::message::ToolUse;

use super::*;

/// A turn in which a call is answered with each of these numbers of bytes.
fn turn(sizes: &[usize]) -> [Message; 2] {
    let mut said = vec![Part::Text(format!("I look.\nAgain.\nat {}", sizes[0]))];
    let mut answers = Vec::new();
    for bytes in sizes {
        let (tool_call_id, name) = ("c".to_owned(), "t/f".to_owned());
        let call = ToolUse { tool_call_id: tool_call_id.clone(), name, payload: "{}".to_owned() };
        said.push(Part::ToolUse(call));
        let content = format!("\"{}\"", "x".repeat(bytes - 2));
        let answer = ToolAnswer { tool_call_id, content, is_error: false, media: Vec::new() };
        answers.push(Part::ToolAnswer(answer));
    }
    [(Role::Assistant, said), (Role::Tool, answers)]
        .map(|(role, parts)| Message { role, parts: parts.into() })
}

/// A task, and a turn with a call for each of these sizes.
fn talk(sizes: impl IntoIterator<Item = usize>) -> Vec<Message> {
    let mut messages = vec![said("task")];
    messages.extend(sizes.into_iter().flat_map(|bytes| turn(&[bytes])));
    messages
}

/// Words of the user.
fn said(text: &str) -> Message {
    Message::text(Role::User, text)
}

/// Words of the user that have so many bytes, and begin so.
fn long(text: &str, bytes: usize) -> Message {
    said(&format!("{text} {}", "x".repeat(bytes - text.len() - 1)))
}

fn contents(messages: &[Message]) -> Vec<&str> {
    answers(messages).map(|(_, _, answer)| answer.content.as_str()).collect()
}

fn bytes(messages: &[Message]) -> usize {
    messages.iter().map(Message::bytes).sum()
}

fn without(messages: &[Message], task: usize, compaction: Compaction) -> Vec<Message> {
    let gone = compaction.gone(messages, Some(task));
    shown(messages, (compaction, &gone), "test", None)
}

/// A conversation that begins with its task, in so many bytes.
fn within(messages: &[Message], max: usize) -> Vec<Message> {
    carried_within(messages, 0, max)
}

/// The same with messages before the task.
fn carried_within(messages: &[Message], task: usize, max: usize) -> Vec<Message> {
    let (compaction, _) = Layout::of(messages, Some(task)).within(max);
    let mut shown = without(messages, task, compaction);
    cut_newest(&mut shown, max, "test");
    shown
}

#[test]
fn results_are_named_by_their_own_bytes_though_all_ids_are_alike() {
    let messages = talk([3_000, 3_001, 3_002]);
    let shown = within(&messages, 8_000);
    let all = contents(&messages);
    let kept = contents(&shown);
    for (whole, left) in all.iter().zip(&kept[..2]) {
        let words: serde_json::Value = serde_json::from_str(left).expect("JSON");
        assert_eq!(words["artifact"]["hash"], digest(whole.as_bytes()), "{left}");
        assert_eq!(words["artifact"]["size"], whole.len());
    }
    assert_eq!(kept[2], all[2], "the newest is whole");
}

#[test]
fn what_was_left_out_before_keeps_its_name() {
    let mut messages = talk([3_000, 300]);
    let Part::ToolAnswer(answer) = &mut messages[2].parts[0] else { panic!("a result") };
    let name = serde_json::json!({ "hash": "abc", "size": 99_999 });
    let preview = "p".repeat(2_000);
    answer.content = serde_json::json!({
        "omitted": true, "reason": "size_limit", "preview": preview, "artifact": name
    })
    .to_string();
    let shown = within(&messages, 2_300);
    let words: serde_json::Value = serde_json::from_str(contents(&shown)[0]).expect("JSON");
    assert_eq!((&words["artifact"], &words["preview"]), (&name, &serde_json::Value::Null));
}

#[test]
fn from_one_compaction_to_the_next_what_is_shown_only_grows() {
    let max = 20_000;
    let (mut before, mut compactions) = (Vec::new(), 0);
    for turns in 1..=200 {
        let messages = talk((0..turns).map(|turn| 500 + turn * 7 % 900));
        let shown = within(&messages, max);
        assert!(bytes(&shown) <= max, "{} of {max} in turn {turns}", bytes(&shown));
        if !shown.starts_with(&before) {
            compactions += 1;
            assert!(bytes(&shown) <= max * 2 / 3, "{} after one", bytes(&shown));
        }
        assert_eq!(shown.last(), messages.last(), "the newest result is whole");
        before = shown;
    }
    assert!((2..=30).contains(&compactions), "{compactions} in 200 turns");
}

#[test]
fn turns_that_are_left_out_are_summed_up_and_no_result_is_without_its_call() {
    let mut messages = talk([300; 40]);
    messages.insert(5, Message::text(Role::User, "[Inbox]\nbe brief"));
    let shown = within(&messages, 6_000);
    assert_eq!(shown[0], messages[0], "the task stays");
    let text: String = shown.iter().map(Message::joined_text).collect();
    assert!(text.contains(SUMMARY) && text.contains("- I look. … at 300"), "{text}");
    assert!(text.contains("be brief"), "what people said stays");
    let calls = shown.iter().flat_map(Message::tool_uses).count();
    assert_eq!(calls, contents(&shown).len());
    assert!((1..30).contains(&calls), "{calls}");
}

#[test]
fn a_newest_result_that_is_larger_than_the_window_is_shown_in_part() {
    let messages = talk([300, 50_000]);
    let shown = within(&messages, 10_000);
    let words: serde_json::Value =
        serde_json::from_str(contents(&shown).last().expect("one")).expect("JSON");
    assert_eq!(words["bytes"], 50_000);
    assert!(words["preview"].as_str().is_some_and(|text| text.len() > 8_000));
    assert!(bytes(&shown) <= 10_000, "{}", bytes(&shown));
}

/// The lengths of the results that are whole, or shown in part, and 0 for those that are left out.
fn lengths(shown: &[Message]) -> Vec<usize> {
    let length = |content: &str| {
        let result: serde_json::Value = serde_json::from_str(content).expect("JSON");
        let whole = result.as_str().map(|text| text.len() + 2);
        whole.or_else(|| result["preview"].as_str().map(str::len)).unwrap_or_default()
    };
    contents(shown).into_iter().map(length).collect()
}

#[test]
fn results_of_one_turn_are_all_shown_as_long_as_an_earlier_turn_can_go() {
    let answer =
        |text: &str| Message::text(Role::Assistant, format!("{text}{}", "x".repeat(3_000)));
    let mut messages = vec![said("task"), answer("one"), answer("two")];
    messages.extend(turn(&[3_000]));
    messages.extend(turn(&[4_000, 4_001, 4_002]));
    for (max, expected) in [
        (20_000, vec![0, 4_000, 4_001, 4_002]),
        (13_000, vec![0, 4_000, 4_001, 4_002]),
        // Nothing else can go.
        (12_000, vec![0, 4_001, 4_002]),
        (8_200, vec![0, 0, 4_002]),
    ] {
        let shown = within(&messages, max);
        assert_eq!(lengths(&shown), expected, "{max}");
        assert!(bytes(&shown) <= max, "{} of {max}", bytes(&shown));
    }
}

#[test]
fn results_of_one_turn_of_which_none_has_room_are_all_shown_in_part() {
    let mut messages = talk([3_000]);
    messages.extend(turn(&[50_000, 1_500, 40_000]));
    let shown = within(&messages, 12_000);
    let three = lengths(&shown);
    let [first, second, third] = three[..] else { panic!("three: {shown:?}") };
    assert_eq!((first, second), (third, 1_500), "to one length");
    assert!((4_000..5_200).contains(&first), "{first}");
    assert!(bytes(&shown) <= 12_000, "{}", bytes(&shown));
    // Where little would be left of each, the last ones are shown.
    let mut messages = talk([]);
    messages.extend(turn(&[60_000; 40]));
    let shown = within(&messages, 18_000);
    assert!(bytes(&shown) <= 18_000, "{}", bytes(&shown));
    let lengths = lengths(&shown);
    let left = lengths.iter().filter(|length| **length > 0).count();
    assert!((3..20).contains(&left), "{lengths:?}");
    assert!(lengths[40 - left..].iter().all(|length| *length >= 1_024), "{lengths:?}");
}

#[test]
fn words_of_earlier_runs_become_lines_of_the_summary_once_their_answers_are_gone() {
    let answer = |text: &str| Message::text(Role::Assistant, text);
    let mut messages = Vec::new();
    for number in 0..6 {
        messages.extend([long(&format!("line {number}"), 3_000), answer(&format!("so {number}"))]);
    }
    let report = format!("[Background reports]\nworker: completed\n```\n{}\n```", "did it");
    messages.extend([said(&report), long("task", 4_000)]);
    let task = messages.len() - 1;
    let before = carried_within(&messages, task, 18_000);
    assert!(bytes(&before) <= 18_000, "{}", bytes(&before));
    assert_eq!(before[before.len() - 2..], messages[task - 1..], "what is new stays");
    let summary = &before[0];
    assert_eq!(summary.role, Role::User, "words of others are no instructions");
    let text = summary.joined_text();
    assert!(text.starts_with(SUMMARY_OF_WORDS), "{text}");
    assert!(text.contains("- user: line 0 xxx") && text.contains("\n- so 0\n"), "{text}");
    assert!(!text.contains("line 5") && before.contains(&messages[10]), "the last ones stay");
    // They are the same from step to step, until there is no room again.
    messages.extend(turn(&[500]));
    assert!(carried_within(&messages, task, 18_000).starts_with(&before));
    messages.extend(turn(&[9_000]));
    let shown = carried_within(&messages, task, 18_000);
    assert!(bytes(&shown) <= 18_000, "{}", bytes(&shown));
    assert!(shown.contains(&messages[task]) && !shown.contains(&messages[10]), "{shown:?}");
    assert_eq!(shown.last(), messages.last(), "the newest result is whole");
}

#[test]
fn the_whole_of_what_was_carried_has_room_in_any_window() {
    for (bytes_of_each, count) in [(3_800, 40), (16_000, 8), (64_000, 1), (10, 2_000)] {
        let mut messages: Vec<_> =
            (0..count).map(|number| long(&number.to_string(), bytes_of_each)).collect();
        messages.extend([Message::text(Role::Assistant, "x".repeat(16_000)), said("task")]);
        let shown = carried_within(&messages, count + 1, 18_000);
        assert!(bytes(&shown) <= 18_000, "{} with {count}", bytes(&shown));
        assert_eq!(shown.last(), messages.last());
    }
}

#[test]
fn what_a_run_was_told_goes_last_and_only_where_shorter_results_would_not_do() {
    let mut messages = vec![said("before"), Message::text(Role::Assistant, "so"), said("task")];
    messages.extend(turn(&[2_000]));
    messages.push(long("told", 4_000));
    messages.extend(turn(&[60_000]));
    messages.push(long("new", 2_000));
    let shown = carried_within(&messages, 2, 12_000);
    assert!(bytes(&shown) <= 12_000, "{}", bytes(&shown));
    assert!(shown.contains(&messages[5]) && shown.contains(&messages[8]), "{shown:?}");
    assert!(lengths(&shown)[0] > 4_000, "the result is shortened: {shown:?}");
    messages.extend(turn(&[2_000]));
    messages.push(long("more", 7_000));
    let shown = carried_within(&messages, 2, 12_000);
    assert!(shown.contains(&messages[2]) && shown.last() == messages.last(), "{shown:?}");
    assert!(!shown.contains(&messages[5]), "{shown:?}");
    assert!(shown[0].joined_text().contains("- user: told xxx"), "{shown:?}");
    // The newest turn is about these.
    assert!(shown.contains(&messages[8]), "{shown:?}");
    // Where it would not be enough, nothing of it goes.
    messages.truncate(messages.len() - 1);
    messages.push(long("more", 9_000));
    let shown = carried_within(&messages, 2, 12_000);
    assert!(shown.contains(&messages[5]) && shown.contains(&messages[8]), "{shown:?}");
}

#[test]
fn the_words_that_the_newest_turn_is_about_stay_however_little_room_there_is() {
    let mut messages = talk([500]);
    messages.push(long("next round", 9_000));
    messages.extend(turn(&[60_000]));
    let shown = within(&messages, 8_000);
    assert!(shown.contains(&messages[3]), "{shown:?}");
    assert!(lengths(&shown)[0] <= 1_100, "the result is as short as can be: {shown:?}");
}

#[test]
fn words_that_go_make_room_for_many_turns() {
    let (mut messages, mut before, mut compactions) = (talk([]), Vec::new(), 0);
    for number in 0..200 {
        messages.push(Message::text(Role::Assistant, "so"));
        messages.push(long(&format!("told {number}"), 900));
        let shown = within(&messages, 20_000);
        assert!(bytes(&shown) <= 20_000, "{} in turn {number}", bytes(&shown));
        assert_eq!(shown.last(), messages.last(), "what is new stays");
        compactions += usize::from(!shown.starts_with(&before));
        before = shown;
    }
    assert!((2..=40).contains(&compactions), "{compactions} in 200 turns");
}

#[test]
fn errors_are_cut_and_have_no_name() {
    let mut messages = talk([300, 300]);
    let Part::ToolAnswer(answer) = &mut messages[2].parts[0] else { panic!("a result") };
    (answer.content, answer.is_error) = ("é".repeat(2_000), true);
    let compaction = Layout::of(&messages, Some(0)).to(2_000);
    assert_eq!(compaction, Compaction { results: 1, turns: 0, words: 0 });
    let shown = without(&messages, 0, compaction);
    assert_eq!(contents(&shown)[0], "é".repeat(512));
}

/// A talk as a model with a window of 10,000 tokens is shown it in each of its turns, of which the
/// provider counts each question as `count` says of its bytes.
fn counted_talk(turns: usize, count: impl Fn(usize) -> Option<u64>) -> Vec<Vec<Message>> {
    let (mut messages, mut counts, mut all) = (talk([]), Vec::new(), Vec::new());
    for number in 0..turns {
        messages.extend(turn(&[900 + number * 7 % 200]));
        let (compaction, _) = Layout::of(&messages, Some(0)).within_tokens(10_000, &counts);
        let shown = without(&messages, 0, compaction);
        let tokens = count(bytes(&shown));
        counts.extend(tokens.map(|tokens| TokenCount { messages: messages.len(), tokens }));
        all.push(shown);
    }
    all
}

/// The most bytes that were shown, and the number of times that something was left out which was
/// shown before.
fn most_and_compactions(shown: &[Vec<Message>]) -> (usize, usize) {
    let most = shown.iter().map(|one| bytes(one)).max().expect("some");
    (most, shown.windows(2).filter(|two| !two[1].starts_with(&two[0])).count())
}

#[test]
fn a_window_is_as_full_as_its_provider_counted_last() {
    type Count = fn(usize) -> Option<u64>;
    let table: [(&str, Count, std::ops::Range<usize>); 5] = [
        ("nobody counts", |_| None, 21_000..22_501),
        ("English", |bytes| Some(bytes as u64 / 4), 27_500..30_001),
        ("numbers", |bytes| Some(bytes as u64 / 2), 13_500..15_501),
        ("tools beside", |bytes| Some(3_000 + bytes as u64 / 4), 16_000..18_501),
        ("another question", |_| Some(20), 41_000..45_001),
    ];
    for (name, count, expected) in table {
        let shown = counted_talk(60, count);
        let (most, compactions) = most_and_compactions(&shown);
        assert!(expected.contains(&most), "{name}: {most}");
        assert!((1..=12).contains(&compactions), "{name}: {compactions}");
    }
}

#[test]
fn more_tokens_than_there_are_leave_the_newest_result() {
    for one in &counted_talk(9, |_| Some(u64::MAX)) {
        assert!(contents(one).last().is_some_and(|newest| newest.len() >= 900), "{one:?}");
    }
}
