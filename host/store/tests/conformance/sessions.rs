//! Sessions and their events.

use super::*;

fn of(owner: &str) -> SessionKey {
    SessionKey { owner_user_id: Some(owner.to_owned()), ..session_key() }
}

/// The sessions of this name of all owners.
fn of_all() -> SessionKey {
    SessionKey { owner_user_id: None, ..session_key() }
}

fn session(created_at: u64, key: SessionKey) -> Session {
    Session { key, created_at: Timestamp(created_at), ended_at: None }
}

async fn events(f: &Fixture, after: u64, limit: usize) -> Vec<SessionEvent> {
    f.store.read_session(&session_key(), after, limit).await.expect("reads").events
}

pub(crate) async fn a_session_is_opened_once(f: &Fixture) {
    let (store, first) = (&f.store, session(10, of("ann")));
    assert_eq!(store.session(&of("ann")).await.expect("reads"), None);
    assert_eq!(store.open_session(first.clone()).await.expect("opens"), first);
    assert_eq!(store.open_session(session(20, of("ann"))).await.expect("opens"), first);
    assert_eq!(store.session(&of("ann")).await.expect("reads"), Some(first));
    let foreign = SessionKey { tenant: "zeta".to_owned(), ..of_all() };
    assert_eq!(store.session(&foreign).await.expect("reads"), None);
    let all = session(30, foreign.clone());
    assert_eq!(store.open_session(all.clone()).await.expect("opens"), all);
    assert_eq!(store.session(&foreign).await.expect("reads"), Some(all));
}

pub(crate) async fn a_session_ends_once_and_for_good(f: &Fixture) {
    let store = &f.store;
    store.open_session(session(10, of("ann"))).await.expect("opens");
    let ended = Session { ended_at: Some(Timestamp(50)), ..session(10, of("ann")) };
    for at in [50, 40, 60] {
        let found = store.end_session(&of("ann"), Timestamp(at)).await.expect("ends");
        assert_eq!(found, ended);
    }
    assert_eq!(store.open_session(session(70, of("ann"))).await.expect("opens"), ended);
    assert_eq!(store.session(&of("ann")).await.expect("reads"), Some(ended));
}

pub(crate) async fn a_session_that_was_never_mentioned_can_end(f: &Fixture) {
    let ended = Session { ended_at: Some(Timestamp(50)), ..session(50, of("ann")) };
    let found = f.store.end_session(&of("ann"), Timestamp(50)).await.expect("ends");
    assert_eq!(found, ended);
    assert_eq!(f.store.open_session(session(70, of("ann"))).await.expect("opens"), ended);
}

async fn begins(f: &Fixture, spec: RunSpec) -> bool {
    match f.store.create(new_run(spec)).await.expect("answers") {
        CreateOutcome::New => true,
        CreateOutcome::SessionEnded => false,
        other @ (CreateOutcome::Repeated(_)
        | CreateOutcome::Taken(_)
        | CreateOutcome::Full(_)
        | CreateOutcome::ParentEnded
        | CreateOutcome::NameTaken(_)
        | CreateOutcome::Locked(_)
        | CreateOutcome::ReportsGone) => panic!("{other:?}"),
    }
}

pub(crate) async fn a_session_is_one_of_its_owner_and_application(f: &Fixture) {
    let store = &f.store;
    let theirs = |id: &str, owner: &str, app: &str| RunSpec {
        owner_user_id: owner.to_owned(),
        parent_app_name: Some(app.to_owned()).filter(|app| !app.is_empty()),
        ..spec(id)
    };
    store.open_session(session(10, of("ann"))).await.expect("opens");
    assert_eq!(store.session(&of("bob")).await.expect("reads"), None);
    assert_eq!(store.session(&of_all()).await.expect("reads"), None);
    let anns_mail = SessionKey { parent_app_name: Some("mail".to_owned()), ..of("ann") };
    store.end_session(&anns_mail, Timestamp(20)).await.expect("ends");
    assert!(!begins(f, theirs("1", "ann", "mail")).await);
    assert!(begins(f, theirs("2", "ann", "chat")).await && begins(f, theirs("3", "ann", "")).await);
    store.end_session(&of("ann"), Timestamp(30)).await.expect("ends");
    assert!(
        !begins(f, theirs("4", "ann", "chat")).await && !begins(f, theirs("5", "ann", "")).await
    );
    assert!(begins(f, theirs("6", "bob", "mail")).await, "it is another one's");
    let seen = store.session(&anns_mail).await.expect("reads").expect("there");
    assert_eq!(seen.ended_at, Some(Timestamp(20)), "the first end counts");
    store.end_session(&of_all(), Timestamp(40)).await.expect("ends");
    assert!(!begins(f, theirs("7", "bob", "mail")).await);
    let seen = store.session(&of("bob")).await.expect("reads").expect("of all");
    assert_eq!((seen.key, seen.ended_at), (of_all(), Some(Timestamp(40))));
}

pub(crate) async fn serial_runs_of_one_owner_wait_for_none_of_another(f: &Fixture) {
    let serial = |id: &str, owner: &str| RunSpec {
        serial: true,
        owner_user_id: owner.to_owned(),
        ..spec(id)
    };
    for (id, owner) in [("a-1", "ann"), ("b-1", "bob"), ("a-2", "ann"), ("b-2", "bob")] {
        create(&*f.store, serial(id, owner)).await;
    }
    let first = f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    assert_eq!(ids(&first), ["a-1", "b-1"]);
    append(&*f.store, next(&first[1], 50, 2_000, end())).await;
    let next = f.store.claim(wish("h", 9, 2_000)).await.expect("claims");
    assert_eq!(ids(&next), ["b-2"]);
}

pub(crate) async fn a_session_tells_of_its_owners_runs_and_of_what_is_beneath_them(f: &Fixture) {
    let bobs = |spec| RunSpec { owner_user_id: "bob".to_owned(), ..spec };
    create(&*f.store, spec("a")).await;
    create(&*f.store, bobs(spec("b"))).await;
    let beneath = RunSpec {
        parent_session_id: "session of a".to_owned(),
        root_session_id: Some("s-1".to_owned()),
        ..child("beneath", &spec("a"))
    };
    create(&*f.store, beneath).await;
    let told = async |key: SessionKey| {
        let events = f.store.read_session(&key, 0, 9).await.expect("reads").events;
        events.iter().map(|event| event.run.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(told(of("ann")).await, ["a", "beneath"]);
    assert_eq!(told(of("bob")).await, ["b"]);
    assert_eq!(told(of_all()).await, ["a", "b", "beneath"]);
    let own = SessionKey { id: "session of a".to_owned(), ..of("ann") };
    assert_eq!(told(own).await, ["beneath"]);
    // Whoever follows the session is told of what comes beneath it.
    let after = f.store.read_session(&of("ann"), 0, 9).await.expect("reads").events[1].place;
    let store = Arc::clone(&f.store);
    let waiter = tokio::spawn(async move {
        loop {
            store.session_changed(&of("ann"), after).await;
            let events = store.read_session(&of("ann"), after, 9).await.expect("reads").events;
            if events.iter().any(|event| event.run.as_str() == "beneath") {
                return;
            }
        }
    });
    let run = f.store.get(&run_id("beneath")).await.expect("gets").expect("it is there");
    append(&*f.store, next(&run, 50, 2_000, vec![cancel()])).await;
    within(waiter).await.expect("no panic");
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
        let theirs: Vec<EventRecord> = theirs.map(|event| event.recorded.clone()).collect();
        assert_eq!(theirs, journal);
    }
    let nobody = SessionKey { id: "nobody".to_owned(), ..session_key() };
    assert_eq!(f.store.read_session(&nobody, 0, 9).await.expect("reads").events, []);
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

pub(crate) async fn a_page_leads_beyond_what_its_reader_does_not_see(f: &Fixture) {
    let page = async |owner: &str, after: u64, limit: usize| {
        f.store.read_session(&of(owner), after, limit).await.expect("reads")
    };
    assert_eq!(page("bob", 0, 9).await, SessionPage::default());
    create(&*f.store, spec("r")).await;
    let mut run = claim_one(&*f.store, "h").await;
    let mut end = page("ann", 0, 9).await.next;
    assert_eq!(page("bob", 0, 9).await, SessionPage { events: vec![], next: end });
    // Far from the end of the store, and near to it.
    for n in 0..1_200_u64 {
        run = append(&*f.store, next(&run, 100 + n, 2_100, vec![note("n")])).await;
    }
    for (after, limit) in [(0, 9), (end, 9)] {
        let first = page("ann", after, limit).await;
        assert_eq!(first.events.len(), limit);
        assert_eq!(first.next, first.events[limit - 1].place, "it is full");
    }
    let last = page("ann", 0, 9_999).await;
    assert_eq!((last.events.len(), last.next), (1_202, last.events[1_201].place));
    for after in [0, end, last.next - 1, last.next, last.next + 5] {
        let beyond = SessionPage { events: vec![], next: last.next.max(after) };
        assert_eq!(page("bob", after, 9).await, beyond);
    }
    // Later events are told from there.
    end = page("bob", 0, 9).await.next;
    create(&*f.store, RunSpec { owner_user_id: "bob".to_owned(), ..spec("b") }).await;
    let own = page("bob", end, 9).await;
    assert_eq!((own.events.len(), own.events[0].run.as_str()), (1, "b"));
    assert!(own.next > end);
    let nothing = page("bob", end, 0).await;
    assert_eq!(nothing, SessionPage { events: vec![], next: end }, "no room for an event");
}

pub(crate) async fn a_waiter_wakes_when_its_session_moves(f: &Fixture) {
    let store = Arc::clone(&f.store);
    let waiter = tokio::spawn(async move {
        let (mut after, mut seen) = (0, 0);
        while seen < 5 {
            store.session_changed(&session_key(), after).await;
            let events =
                store.read_session(&session_key(), after, 100).await.expect("reads").events;
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
