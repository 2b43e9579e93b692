//! Runs and their journals.

use super::*;

pub(crate) async fn a_new_run_is_there_with_its_journal(f: &Fixture) {
    let mut spec = spec("r");
    spec.labels.insert("team".to_owned(), "blue".to_owned());
    spec.parent_app_name = Some("mail".to_owned());
    let run = create(&*f.store, spec).await;
    journal_is(&*f.store, &run).await;
}

pub(crate) async fn an_unknown_run_has_no_record_and_no_journal(f: &Fixture) {
    assert_eq!(f.store.get(&run_id("r")).await.expect("gets"), None);
    assert_eq!(f.store.read(&run_id("r"), 0, 10).await.expect("reads"), []);
}

pub(crate) async fn an_id_is_given_once(f: &Fixture) {
    let run = create(&*f.store, spec("r")).await;
    let other = RunSpec { task: "something else".to_owned(), ..spec("r") };
    let created = f.store.create(new_run(other)).await.expect("answers");
    assert!(matches!(&created, CreateOutcome::Taken(id) if id == run.id()), "{created:?}");
    journal_is(&*f.store, &run).await;
}

pub(crate) async fn a_repeated_request_gets_the_run_of_the_first(f: &Fixture) {
    let first = keyed(new_run(spec("r-1")), "k", "same");
    assert!(matches!(f.store.create(first).await.expect("creates"), CreateOutcome::New));
    let run = claim_one(&*f.store, "h").await;
    let again = keyed(new_run(spec("r-2")), "k", "same");
    let created = f.store.create(again).await.expect("answers");
    assert!(matches!(&created, CreateOutcome::Repeated(known) if **known == run), "{created:?}");
    assert_eq!(f.store.get(&run_id("r-2")).await.expect("gets"), None);
}

pub(crate) async fn a_key_with_another_request_is_taken(f: &Fixture) {
    f.store.create(keyed(new_run(spec("r-1")), "k", "one")).await.expect("creates");
    let created = f.store.create(keyed(new_run(spec("r-2")), "k", "two")).await.expect("answers");
    assert!(matches!(&created, CreateOutcome::Taken(id) if id.as_str() == "r-1"), "{created:?}");
    assert_eq!(f.store.get(&run_id("r-2")).await.expect("gets"), None);
}

pub(crate) async fn a_key_counts_in_its_tenant_only(f: &Fixture) {
    f.store.create(keyed(new_run(spec("r-1")), "k", "one")).await.expect("creates");
    let other = RunSpec { tenant: "zeta".to_owned(), ..spec("r-2") };
    let created = f.store.create(keyed(new_run(other), "k", "two")).await.expect("creates");
    assert!(matches!(created, CreateOutcome::New), "{created:?}");
}

pub(crate) async fn an_append_replaces_the_record_and_extends_the_journal(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let run = append(&*f.store, next(&run, 50, 2_100, vec![note("a"), note("b")])).await;
    journal_is(&*f.store, &run).await;
    let run = append(&*f.store, next(&run, 60, 2_200, end())).await;
    assert_eq!(run.status(), Status::Completed);
    journal_is(&*f.store, &run).await;
}

pub(crate) async fn the_same_append_again_is_done(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let notes = next(&run, 50, 2_100, vec![note("a"), note("b")]);
    let run = append(&*f.store, notes.clone()).await;
    append(&*f.store, notes).await;
    journal_is(&*f.store, &run).await;
}

pub(crate) async fn the_same_append_is_done_even_after_others_wrote(f: &Fixture) {
    let queued = create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let notes = next(&run, 50, 2_100, vec![note("a"), note("b")]);
    let run = append(&*f.store, notes.clone()).await;
    let run = append(&*f.store, next(&run, 60, 2_200, vec![cancel()])).await;
    append(&*f.store, notes).await;
    journal_is(&*f.store, &run).await;
    assert_eq!(queued.state.head, 1);
}

pub(crate) async fn other_events_under_known_ids_are_a_conflict(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let told = append(&*f.store, next(&run, 50, 2_100, vec![note("a"), note("b")])).await;
    let answered = async |append| f.store.append(append).await.expect("answers");
    for events in [vec![note("a"), note("c")], vec![note("c"), note("b")], vec![note("c")]] {
        let other = next(&run, 50, 2_100, events);
        assert_eq!(answered(other.clone()).await, AppendOutcome::Conflict);
        let late = Append { epoch: 0, ..other };
        assert_eq!(answered(late).await, AppendOutcome::Conflict, "whoever writes");
    }
    let at_another_time = next(&run, 50, 2_101, vec![note("a"), note("b")]);
    assert_eq!(answered(at_another_time).await, AppendOutcome::Conflict);
    let mut one_more = next(&run, 50, 2_100, vec![note("a"), note("b"), note("c")]);
    assert_eq!(answered(one_more.clone()).await, AppendOutcome::Moved(4));
    one_more.epoch = 0;
    assert_eq!(answered(one_more).await, AppendOutcome::Fenced(1));
    journal_is(&*f.store, &told).await;
}

pub(crate) async fn an_append_at_another_end_is_told_where_the_journal_ends(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let late = next(&run, 70, 2_300, vec![note("late")]);
    let run = append(&*f.store, next(&run, 50, 2_100, vec![note("a"), note("b")])).await;
    assert_eq!(f.store.append(late).await.expect("answers"), AppendOutcome::Moved(4));
    journal_is(&*f.store, &run).await;
}

pub(crate) async fn an_append_under_another_epoch_is_fenced(f: &Fixture) {
    let queued = create(&*f.store, spec("r")).await;
    let late = next(&queued, 70, 2_300, vec![cancel()]);
    let run = claim_one(&*f.store, "h").await;
    assert_eq!(f.store.append(late).await.expect("answers"), AppendOutcome::Fenced(1));
    // Also where the end is right.
    let stale = Append { epoch: 0, ..next(&run, 80, 2_400, vec![cancel()]) };
    assert_eq!(f.store.append(stale).await.expect("answers"), AppendOutcome::Fenced(1));
    journal_is(&*f.store, &run).await;
}

pub(crate) async fn an_append_to_an_unknown_run_is_missing(f: &Fixture) {
    let unknown = next(&new_run(spec("r")).run, 50, 2_000, vec![cancel()]);
    assert_eq!(f.store.append(unknown).await.expect("answers"), AppendOutcome::Missing);
    assert_eq!(f.store.get(&run_id("r")).await.expect("gets"), None);
}

pub(crate) async fn a_refused_append_changes_nothing(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let first = next(&run, 50, 2_100, vec![note("a"), note("b"), note("c")]);
    // Begins with the same event, goes on with others, and would end the run.
    let mut events = vec![note("a")];
    events.extend(end());
    let other = next(&run, 50, 9_000, events);
    let other = Append {
        events: other
            .events
            .iter()
            .cloned()
            .map(|mut r| {
                r.id += if r.seq == 3 { 0 } else { 100 };
                r
            })
            .collect::<Vec<_>>()
            .into(),
        ..other
    };
    let run = append(&*f.store, first).await;
    // Its first event has the id of one that is there, and another time.
    assert_eq!(f.store.append(other).await.expect("answers"), AppendOutcome::Conflict);
    journal_is(&*f.store, &run).await;
    let page = f.store.list(&Scope::tenant("acme"), &ListFilter::default(), None, 9).await;
    assert_eq!(page.expect("lists").runs, [run]);
}

pub(crate) async fn an_append_without_events_is_refused_like_any_other(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let nothing = next(&run, 1, 2_000, vec![]);
    append(&*f.store, nothing.clone()).await;
    let run = append(&*f.store, next(&run, 50, 2_100, vec![note("a")])).await;
    assert_eq!(f.store.append(nothing).await.expect("answers"), AppendOutcome::Moved(3));
    journal_is(&*f.store, &run).await;
}

pub(crate) async fn all_kinds_of_states_read_back_as_they_were_written(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let mut run = claim_one(&*f.store, "h").await;
    journal_is(&*f.store, &run).await;
    let usage = taskrun_journal::message::Usage {
        prompt_tokens: 5,
        completion_tokens: 6,
        total_tokens: 11,
        ..Default::default()
    };
    let text = "x".repeat(5_000);
    let steps = [
        Event::AssistantChunk { text },
        Event::Usage { usage },
        blocked(Wait::Word),
        resumed("other", 2),
        for_runs_until(&["x", "y"], WaitMode::Any, Some(9_000)),
        resumed("h", 3),
        blocked(Wait::Answers { at: Some(Timestamp(u64::MAX)) }),
        resumed("h", 4),
        lost("h", 5, Timestamp(7_000)),
        resumed("h", 6),
        cancel(),
    ];
    let all: Vec<Event> = steps.into_iter().chain(end()).collect();
    for (event, id) in all.into_iter().zip(u64::MAX - 99..) {
        run = append(&*f.store, next(&run, id, 2_000 + run.state.head, vec![event])).await;
        journal_is(&*f.store, &run).await;
    }
}

pub(crate) async fn a_journal_is_read_in_pages(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let mut run = claim_one(&*f.store, "h").await;
    for part in 0..4 {
        let notes = (0..3).map(|n| note(&format!("{part}.{n}"))).collect();
        run = append(&*f.store, next(&run, 100 + part * 10, 2_100, notes)).await;
    }
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let part = f.store.read(run.id(), after, 4).await.expect("reads");
        let Some(last) = part.last() else { break };
        assert!(part.len() <= 4);
        after = last.seq;
        seen.extend(part.iter().map(|recorded| recorded.seq));
    }
    assert_eq!(seen, (1..=14).collect::<Vec<_>>());
    let middle = f.store.read(run.id(), 6, 100).await.expect("reads");
    assert_eq!(middle.first().map(|recorded| recorded.seq), Some(7));
    assert_eq!(f.store.read(run.id(), 3, 0).await.expect("reads"), []);
    assert_eq!(f.store.read(run.id(), 99, 10).await.expect("reads"), []);
}

/// A line with so many bytes.
fn large(bytes: usize) -> Event {
    note(&"x".repeat(bytes))
}

pub(crate) async fn a_page_of_events_is_bounded_in_bytes(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let run = claim_one(&*f.store, "h").await;
    let third = PAGE_BYTES_MAX / 3;
    let notes = [third, third, third, PAGE_BYTES_MAX + 1, 10, 10].map(large).to_vec();
    let run = append(&*f.store, next(&run, 100, 2_100, notes)).await;
    // Two events came before. Three thirds, with what else is in an event, are more than a page.
    let (mut after, mut pages) = (2, Vec::new());
    loop {
        let page = f.store.read(run.id(), after, 100).await.expect("reads");
        let Some(last) = page.last() else { break };
        after = last.seq;
        pages.push(page.len());
    }
    assert_eq!(pages, [2, 1, 1, 2], "a page of one event may be larger");
    let (mut after, mut pages) = (0, Vec::new());
    loop {
        let scope = Scope::tenant(&run.spec.tenant);
        let key = SessionKey::of(&scope, &run.spec.parent_session_id);
        let page = f.store.read_session(&key, after, 100).await.expect("reads").events;
        let Some(last) = page.last() else { break };
        after = last.place;
        pages.push(page.len());
    }
    assert_eq!(pages, [4, 1, 1, 2]);
}
