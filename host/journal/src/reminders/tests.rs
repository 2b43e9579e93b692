//! Which turn is shown which notes.

use super::*;

fn reminder(id: &str, tier: Tier) -> Reminder {
    Reminder {
        id: id.to_owned(),
        text: format!("text of {id}"),
        tier,
        attachment: Attachment::UserTurn,
        max_per_run: None,
        min_turns_between: 0,
    }
}

fn with(reminders: impl IntoIterator<Item = Reminder>) -> Reminders {
    let mut all = Reminders::default();
    let changes: Vec<_> = reminders.into_iter().map(ReminderChange::Added).collect();
    all.decided(1, &changes);
    all
}

fn ids(reminders: &[Reminder]) -> Vec<&str> {
    reminders.iter().map(|reminder| reminder.id.as_str()).collect()
}

/// The number of notes that each turn is shown, when each comes to a decision without changes.
fn shown(all: &mut Reminders, turns: std::ops::RangeInclusive<u32>) -> Vec<usize> {
    let one = |turn| {
        let due = all.due(turn).len();
        all.decided(turn, &[]);
        due
    };
    turns.map(one).collect()
}

#[test]
fn ls_20_safety_comes_before_guidance() {
    let all = with([reminder("r1", Tier::Guidance), reminder("r2", Tier::Safety)]);
    assert_eq!(ids(&all.due(2)), ["r2", "r1"]);
}

#[test]
fn ls_20_a_note_for_one_turn_is_shown_once() {
    let once = Reminder {
        max_per_run: Some(1),
        min_turns_between: 2,
        ..reminder("limited", Tier::Guidance)
    };
    assert_eq!(shown(&mut with([once]), 2..=5), [1, 0, 0, 0]);
}

#[test]
fn within_a_tier_ids_are_in_order() {
    let names = ["b", "c", "a"].map(|id| reminder(id, Tier::Guidance));
    assert_eq!(ids(&with(names).due(2)), ["a", "b", "c"]);
}

#[test]
fn safety_is_exempt_from_the_bound_and_not_from_the_pause() {
    let note = Reminder { max_per_run: Some(1), ..reminder("s", Tier::Safety) };
    assert_eq!(shown(&mut with([note.clone()]), 2..=5), [1, 1, 1, 1]);
    let paused = Reminder { min_turns_between: 3, ..note };
    assert_eq!(shown(&mut with([paused]), 2..=8), [1, 0, 0, 1, 0, 0, 1]);
}

#[test]
fn a_turn_that_did_not_decide_was_not_shown_anything() {
    let note = Reminder { max_per_run: Some(1), ..reminder("g", Tier::Guidance) };
    let all = with([note]);
    assert_eq!(ids(&all.due(2)), ["g"]);
    assert_eq!(ids(&all.due(2)), ["g"], "the same turn, tried again");
}

#[test]
fn a_replaced_note_counts_on_and_a_removed_one_begins_anew() {
    let note = Reminder { max_per_run: Some(1), ..reminder("g", Tier::Guidance) };
    let mut all = with([note.clone()]);
    let other = Reminder { text: "other".to_owned(), ..note.clone() };
    all.decided(2, &[ReminderChange::Added(other)]);
    assert!(all.due(3).is_empty());
    all.decided(3, &[ReminderChange::Removed("g".to_owned())]);
    all.decided(4, &[ReminderChange::Added(note)]);
    assert_eq!(ids(&all.due(5)), ["g"]);
}

#[test]
fn ids_texts_and_their_number_are_bounded() {
    let mut all = Reminders::default();
    let full = |id: &str, bytes| Reminder { text: "x".repeat(bytes), ..reminder(id, Tier::Safety) };
    for bad in [
        full("", 1),
        full("a", 0),
        full("a", REMINDER_TEXT_BYTES_MAX + 1),
        full(&"i".repeat(REMINDER_ID_BYTES_MAX + 1), 1),
    ] {
        assert!(all.add(bad.clone()).is_err(), "{}", bad.id.len());
    }
    let whole = REMINDERS_BYTES_MAX / REMINDER_TEXT_BYTES_MAX;
    for n in 0..whole {
        all.add(full(&n.to_string(), REMINDER_TEXT_BYTES_MAX)).expect("within bounds");
    }
    all.add(full("0", REMINDER_TEXT_BYTES_MAX)).expect("it replaces one");
    let refused = all.add(full("more", 1)).expect_err("over the bytes");
    assert!(refused.contains("bytes of text"), "{refused}");
    (0..whole).for_each(|n| assert!(all.remove(&n.to_string())));
    for n in 0..REMINDERS_MAX {
        all.add(full(&n.to_string(), 1)).expect("within bounds");
    }
    let refused = all.add(full("more", 1)).expect_err("over the number");
    assert!(refused.contains("at most 100 reminders"), "{refused}");
    all.add(full("7", 2)).expect("it replaces one");
}

#[test]
fn changes_read_back_as_they_were_written() {
    let changes = [
        ReminderChange::Added(reminder("a", Tier::Safety)),
        ReminderChange::Removed("b".to_owned()),
    ];
    let text = serde_json::to_string(&changes).expect("it can be written");
    let expected = r#"[{"added":{"id":"a","text":"text of a","tier":"safety","attachment":"user_turn","min_turns_between":0}},{"removed":"b"}]"#;
    assert_eq!(text, expected);
    let back: Vec<ReminderChange> = serde_json::from_str(&text).expect("it can be read");
    assert_eq!(back, changes);
}
