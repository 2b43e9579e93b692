//! Sessions and their events.

use super::*;

fn session(created_at: u64, owner: &str) -> Session {
    Session {
        key: session_key(),
        owner_user_id: Some(owner.to_owned()),
        created_at: Timestamp(created_at),
        ended_at: None,
    }
}

async fn events(f: &Fixture, after: u64, limit: usize) -> Vec<SessionEvent> {
    f.store.read_session(&session_key(), after, limit).await.expect("reads")
}

pub(crate) async fn a_session_is_opened_once(f: &Fixture) {
    let (store, first) = (&f.store, session(10, "ann"));
    assert_eq!(store.session(&session_key()).await.expect("reads"), None);
    assert_eq!(store.open_session(first.clone()).await.expect("opens"), first);
    assert_eq!(store.open_session(session(20, "bob")).await.expect("opens"), first);
    assert_eq!(store.session(&session_key()).await.expect("reads"), Some(first));
    let foreign = SessionKey { tenant: "zeta".to_owned(), ..session_key() };
    assert_eq!(store.session(&foreign).await.expect("reads"), None);
    let nobodys = Session { key: foreign.clone(), owner_user_id: None, ..session(30, "") };
    assert_eq!(store.open_session(nobodys.clone()).await.expect("opens"), nobodys);
    assert_eq!(store.session(&foreign).await.expect("reads"), Some(nobodys));
}

pub(crate) async fn a_session_ends_once_and_for_good(f: &Fixture) {
    let store = &f.store;
    store.open_session(session(10, "ann")).await.expect("opens");
    let ended = Session { ended_at: Some(Timestamp(50)), ..session(10, "ann") };
    for at in [50, 40, 60] {
        let found = store.end_session(&session_key(), Timestamp(at)).await.expect("ends");
        assert_eq!(found, ended);
    }
    assert_eq!(store.open_session(session(70, "ann")).await.expect("opens"), ended);
    assert_eq!(store.session(&session_key()).await.expect("reads"), Some(ended));
}

pub(crate) async fn a_session_that_was_never_mentioned_can_end(f: &Fixture) {
    let ended = Session {
        key: session_key(),
        owner_user_id: None,
        created_at: Timestamp(50),
        ended_at: Some(Timestamp(50)),
    };
    let found = f.store.end_session(&session_key(), Timestamp(50)).await.expect("ends");
    assert_eq!(found, ended);
    assert_eq!(f.store.open_session(session(70, "ann")).await.expect("opens"), ended);
}

pub(crate) async fn runs_go_on_in_a_session_that_ended(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    f.store.end_session(&session_key(), Timestamp(1_500)).await.expect("ends");
    let run = claim_one(&*f.store, "h").await;
    append(&*f.store, next(&run, 50, 2_000, end())).await;
    assert_eq!(events(f, 0, 9).await.len(), 4);
}

pub(crate) async fn the_events_of_a_session_are_read_in_the_order_of_their_durability(f: &Fixture) {
    create(&*f.store, spec("a")).await;
    create(&*f.store, RunSpec { tenant: "zeta".to_owned(), ..spec("foreign") }).await;
    create(&*f.store, child("b", &spec("a"))).await;
    create(&*f.store, RunSpec { parent_session_id: "s-2".to_owned(), ..spec("other") }).await;
    let runs = f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    let (a, b) = (&runs[0], &runs[2]);
    assert_eq!(b.id().as_str(), "b");
    // Times and ids of the events do not count.
    append(&*f.store, next(b, 900, 9_000, vec![note("b"), note("c")])).await;
    append(&*f.store, next(a, 50, 3_000, vec![note("a")])).await;
    let all = events(f, 0, 100).await;
    let order: Vec<(&str, u64)> =
        all.iter().map(|event| (event.run.as_str(), event.recorded.seq)).collect();
    let expected = [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("b", 3), ("b", 4), ("a", 3)];
    assert_eq!(order, expected);
    assert!(all.is_sorted_by(|one, next| one.place < next.place), "{all:?}");
    for id in ["a", "b"] {
        let journal = f.store.read(&run_id(id), 0, 100).await.expect("reads");
        let theirs = all.iter().filter(|event| event.run.as_str() == id);
        let theirs: Vec<Recorded> = theirs.map(|event| event.recorded.clone()).collect();
        assert_eq!(theirs, journal);
    }
    let nobody = SessionKey { id: "nobody".to_owned(), ..session_key() };
    assert_eq!(f.store.read_session(&nobody, 0, 9).await.expect("reads"), []);
}

pub(crate) async fn the_events_of_a_session_are_read_in_pages(f: &Fixture) {
    create(&*f.store, spec("a")).await;
    create(&*f.store, spec("b")).await;
    let runs = f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    for (run, part) in runs.iter().chain(&runs).zip(0_u64..) {
        let run = f.store.get(run.id()).await.expect("gets").expect("it is there");
        let notes = (0..3).map(|n| note(&format!("{part}.{n}"))).collect();
        append(&*f.store, next(&run, 100 + part * 10, 2_100, notes)).await;
    }
    let all = events(f, 0, 100).await;
    assert_eq!(all.len(), 16);
    for limit in [1, 2, 5, 16] {
        let (mut after, mut seen) = (0, Vec::new());
        loop {
            let part = events(f, after, limit).await;
            let Some(last) = part.last() else { break };
            assert!(part.len() <= limit);
            after = last.place;
            seen.extend(part);
        }
        assert_eq!(seen, all);
    }
    assert_eq!(events(f, 0, 0).await, []);
    assert_eq!(events(f, u64::MAX, 9).await, []);
}

pub(crate) async fn a_waiter_wakes_when_its_session_moves(f: &Fixture) {
    let store = Arc::clone(&f.store);
    let waiter = tokio::spawn(async move {
        let (mut after, mut seen) = (0, 0);
        while seen < 5 {
            store.session_changed(&session_key(), after).await;
            let events = store.read_session(&session_key(), after, 100).await.expect("reads");
            after = events.last().map_or(after, |event| event.place);
            seen += events.len();
        }
    });
    create(&*f.store, RunSpec { tenant: "zeta".to_owned(), ..spec("foreign") }).await;
    create(&*f.store, spec("r")).await;
    f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    let run = f.store.get(&run_id("r")).await.expect("gets").expect("it is there");
    let run = append(&*f.store, next(&run, 50, 2_100, vec![note("a")])).await;
    append(&*f.store, next(&run, 60, 2_200, end())).await;
    within(waiter).await.expect("no panic");
}

pub(crate) async fn a_waiter_for_the_past_of_a_session_does_not_wait(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    within(f.store.session_changed(&session_key(), 0)).await;
}
