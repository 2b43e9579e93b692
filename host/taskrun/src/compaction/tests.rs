use taskrun_journal::message::ToolUse;

use super::*;

/// A turn in which `id` is called and answered with so many bytes.
fn turn(id: &str, bytes: usize) -> [Message; 2] {
    let (tool_call_id, name) = (id.to_owned(), "t/f".to_owned());
    let call = ToolUse { tool_call_id: tool_call_id.clone(), name, payload: "{}".to_owned() };
    let parts = vec![Part::Text(format!("I look.\nAgain.\nat {bytes}")), Part::ToolUse(call)];
    let content = format!("\"{}\"", "x".repeat(bytes - 2));
    let answer = ToolAnswer { tool_call_id, content, is_error: false, media: Vec::new() };
    let answered = Message { role: Role::Tool, parts: vec![Part::ToolAnswer(answer)].into() };
    [Message { role: Role::Assistant, parts: parts.into() }, answered]
}

fn talk(sizes: impl IntoIterator<Item = usize>) -> Vec<Message> {
    let mut messages = vec![Message::text(Role::User, "task")];
    messages.extend(sizes.into_iter().flat_map(|bytes| turn("c", bytes)));
    messages
}

fn contents(messages: &[Message]) -> Vec<&str> {
    answers(messages).map(|(_, _, answer)| answer.content.as_str()).collect()
}

fn bytes(messages: &[Message]) -> usize {
    messages.iter().map(Message::bytes).sum()
}

fn within(messages: &[Message], max: usize) -> Vec<Message> {
    let (compaction, _) = Layout::of(messages).within(max);
    let mut shown = shown(messages, compaction, "test", None);
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

#[test]
fn errors_are_cut_and_have_no_name() {
    let mut messages = talk([300, 300]);
    let Part::ToolAnswer(answer) = &mut messages[2].parts[0] else { panic!("a result") };
    (answer.content, answer.is_error) = ("é".repeat(2_000), true);
    let compaction = Layout::of(&messages).to(2_000);
    assert_eq!(compaction, Compaction { results: 1, turns: 0 });
    let shown = shown(&messages, compaction, "test", None);
    assert_eq!(contents(&shown)[0], "é".repeat(512));
}

/// A talk as a model with a window of 10,000 tokens is shown it in each of its turns, of which the
/// provider counts each question as `count` says of its bytes.
fn counted_talk(turns: usize, count: impl Fn(usize) -> Option<u64>) -> Vec<Vec<Message>> {
    let (mut messages, mut counts, mut all) = (talk([]), Vec::new(), Vec::new());
    for number in 0..turns {
        messages.extend(turn("c", 900 + number * 7 % 200));
        let (compaction, _) = Layout::of(&messages).within_tokens(10_000, &counts);
        let shown = shown(&messages, compaction, "test", None);
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
