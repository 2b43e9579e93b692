//! Facts.

use taskrun_journal::fact::{FACTS_MAX, Fact, FactNamespace, OwnerSession, query_words};
use taskrun_journal::memory::{FactChange, FactOutcome, FactWriter};

use super::*;

fn of_session(owner: &str, id: &str) -> FactNamespace {
    let session = OwnerSession { owner_user_id: owner.to_owned(), id: id.to_owned() };
    FactNamespace { tenant: "acme".to_owned(), session: Some(session) }
}

fn of_tenant(tenant: &str) -> FactNamespace {
    FactNamespace { tenant: tenant.to_owned(), session: None }
}

fn here() -> FactNamespace {
    of_session("ann", "s-1")
}

fn fact(key: &str, text: &str, at: u64) -> Fact {
    Fact {
        key: key.to_owned(),
        text: text.to_owned(),
        labels: BTreeMap::new(),
        written_at: Timestamp(at),
    }
}

async fn put(f: &Fixture, place: &FactNamespace, fact: Fact) {
    let done = f.store.change_fact(place, FactChange::Put(fact), None).await.expect("puts");
    assert_eq!(done, FactOutcome::Done);
}

async fn found(f: &Fixture, place: &FactNamespace, query: &str) -> Vec<String> {
    let found = f.store.search_facts(place, &query_words(query), 100).await.expect("searches");
    found.into_iter().map(|fact| fact.key).collect()
}

async fn keys(f: &Fixture, place: &FactNamespace) -> Vec<String> {
    let all = f.store.facts(place, None, 2_000).await.expect("lists");
    all.into_iter().map(|fact| fact.key).collect()
}

pub(crate) async fn a_fact_is_there_as_it_was_put(f: &Fixture) {
    assert_eq!(f.store.fact(&here(), "k").await.expect("reads"), None);
    let labels = [("team".to_owned(), "röd".to_owned())].into();
    let said = Fact { labels, ..fact("k", "Äpfel \u{1f34e}\n\"in\" the 'cellar'", 7) };
    put(f, &here(), said.clone()).await;
    assert_eq!(f.store.fact(&here(), "k").await.expect("reads"), Some(said.clone()));
    assert_eq!(f.store.fact(&here(), "K").await.expect("reads"), None);
    let found = f.store.search_facts(&here(), &query_words("ÄPFEL"), 9).await.expect("searches");
    assert_eq!(found, [said]);
}

pub(crate) async fn a_fact_takes_the_place_of_the_one_with_its_key(f: &Fixture) {
    put(f, &here(), fact("k", "apples", 1)).await;
    put(f, &here(), fact("k", "pears", 2)).await;
    assert_eq!(f.store.fact(&here(), "k").await.expect("reads"), Some(fact("k", "pears", 2)));
    assert_eq!(found(f, &here(), "apples").await, [""; 0]);
    assert_eq!(found(f, &here(), "pears").await, ["k"]);
    assert_eq!(keys(f, &here()).await, ["k"]);
}

pub(crate) async fn a_fact_is_forgotten(f: &Fixture) {
    let place = here();
    let delete = || f.store.change_fact(&place, FactChange::Delete("k".to_owned()), None);
    assert_eq!(delete().await.expect("answers"), FactOutcome::Absent);
    put(f, &here(), fact("k", "apples", 1)).await;
    assert_eq!(delete().await.expect("answers"), FactOutcome::Done);
    assert_eq!(f.store.fact(&here(), "k").await.expect("reads"), None);
    assert_eq!(found(f, &here(), "apples k").await, [""; 0]);
    assert_eq!(delete().await.expect("answers"), FactOutcome::Absent);
}

pub(crate) async fn facts_are_listed_by_key_in_pages(f: &Fixture) {
    for key in ["b", "ä", "a", "B", "c"] {
        put(f, &here(), fact(key, "t", 1)).await;
    }
    let (mut after, mut all) = (None, Vec::new());
    loop {
        let page = f.store.facts(&here(), after.as_deref(), 2).await.expect("lists");
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        all.extend(page.into_iter().map(|fact| fact.key));
    }
    assert_eq!(all, ["B", "a", "b", "c", "ä"]);
}

pub(crate) async fn a_search_finds_facts_by_words_of_key_text_and_labels(f: &Fixture) {
    put(f, &here(), fact("deploy-day", "It is Friday.", 1)).await;
    let labels = [("topic".to_owned(), "releases".to_owned())].into();
    put(f, &here(), Fact { labels, ..fact("k2", "It is not.", 1) }).await;
    assert_eq!(found(f, &here(), "friday").await, ["deploy-day"]);
    assert_eq!(found(f, &here(), "DEPLOY").await, ["deploy-day"]);
    assert_eq!(found(f, &here(), "releases").await, ["k2"]);
    assert_eq!(found(f, &here(), "fri").await, [""; 0], "whole words");
    assert_eq!(found(f, &here(), "").await, [""; 0]);
}

pub(crate) async fn the_more_words_are_in_a_fact_the_earlier_it_comes(f: &Fixture) {
    put(f, &here(), fact("one", "apples", 9)).await;
    put(f, &here(), fact("two", "apples apples pears", 1)).await;
    put(f, &here(), fact("old", "pears", 2)).await;
    put(f, &here(), fact("same-b", "pears", 3)).await;
    put(f, &here(), fact("same-a", "pears", 3)).await;
    put(f, &here(), fact("none", "plums", 9)).await;
    let ranked = found(f, &here(), "pears apples").await;
    assert_eq!(ranked, ["two", "one", "same-a", "same-b", "old"]);
    let words = query_words("pears apples");
    let best = f.store.search_facts(&here(), &words, 2).await.expect("searches");
    assert_eq!(best.iter().map(|fact| fact.key.as_str()).collect::<Vec<_>>(), ["two", "one"]);
    assert_eq!(f.store.search_facts(&here(), &words, 0).await.expect("searches"), []);
}

pub(crate) async fn no_query_is_more_than_words(f: &Fixture) {
    put(f, &here(), fact("k", "near or and not apples", 1)).await;
    put(f, &here(), fact("place", "words key", 2)).await;
    for query in [
        "\"",
        "*",
        "^",
        "apples*",
        "\"apples",
        "apples\" OR \"x",
        "NEAR(apples x, 2)",
        "words : apples",
        "- apples",
        "apples AND",
        "(apples",
        "apples'; DROP TABLE facts; --",
        "apples\0",
        "{words} : apples",
        "+apples",
    ] {
        let found = found(f, &here(), query).await;
        assert_eq!(found.contains(&"k".to_owned()), query.contains("apples"), "{query:?}");
    }
    assert_eq!(found(f, &here(), "NOT").await, ["k"]);
    assert_eq!(keys(f, &here()).await, ["k", "place"]);
}

pub(crate) async fn nobody_finds_the_facts_of_others(f: &Fixture) {
    let others =
        [of_session("bob", "s-1"), of_session("ann", "s-2"), of_tenant("acme"), of_tenant("zeta")];
    put(f, &here(), fact("k", "apples here", 1)).await;
    for other in &others {
        assert_eq!(f.store.fact(other, "k").await.expect("reads"), None, "{other:?}");
        assert_eq!(found(f, other, "apples").await, [""; 0], "{other:?}");
        assert_eq!(keys(f, other).await, [""; 0], "{other:?}");
        let gone = f.store.change_fact(other, FactChange::Delete("k".to_owned()), None).await;
        assert_eq!(gone.expect("answers"), FactOutcome::Absent, "{other:?}");
        put(f, other, fact("k", "apples there", 2)).await;
    }
    assert_eq!(f.store.fact(&here(), "k").await.expect("reads"), Some(fact("k", "apples here", 1)));
    assert_eq!(found(f, &here(), "apples there").await, ["k"]);
}

pub(crate) async fn a_place_takes_so_many_facts(f: &Fixture) {
    for number in 0..FACTS_MAX {
        put(f, &here(), fact(&number.to_string(), "t", 1)).await;
    }
    let more = f.store.change_fact(&here(), FactChange::Put(fact("more", "t", 1)), None).await;
    assert_eq!(more.expect("answers"), FactOutcome::Full);
    assert_eq!(f.store.fact(&here(), "more").await.expect("reads"), None);
    put(f, &here(), fact("7", "another", 2)).await;
    put(f, &of_tenant("acme"), fact("more", "t", 1)).await;
    let gone = f.store.change_fact(&here(), FactChange::Delete("8".to_owned()), None).await;
    assert_eq!(gone.expect("answers"), FactOutcome::Done);
    put(f, &here(), fact("more", "t", 1)).await;
}

pub(crate) async fn a_change_of_a_run_is_made_once_as_long_as_that_is_known(f: &Fixture) {
    create(&*f.store, spec("r")).await;
    let by = |change: &str| Some(FactWriter { run: run_id("r"), change: change.to_owned() });
    let change = |key: &str, text: &str, name: &str| {
        let fact = fact(key, text, 1);
        let (place, by) = (here(), by(name));
        async move { f.store.change_fact(&place, FactChange::Put(fact), by).await.expect("answers") }
    };
    assert_eq!(change("k", "first", "c-1").await, FactOutcome::Done);
    assert_eq!(change("k", "second", "c-2").await, FactOutcome::Done);
    // The call that made the first change is repeated after a crash.
    assert_eq!(change("k", "first", "c-1").await, FactOutcome::Repeated);
    let kept = f.store.fact(&here(), "k").await.expect("reads");
    assert_eq!(kept.map(|fact| fact.text).as_deref(), Some("second"));
    let delete = FactChange::Delete("absent".to_owned());
    for _ in 0..2 {
        let gone = f.store.change_fact(&here(), delete.clone(), by("c-3")).await;
        assert_eq!(gone.expect("answers"), FactOutcome::Absent);
    }
    let run = claim_one(&*f.store, "h").await;
    append(&*f.store, next(&run, 50, 3_000, end())).await;
    let removal = Removal { scope: None, before: Timestamp(9_000), limit: 9, dry_run: false };
    assert_eq!(f.store.remove(removal).await.expect("removes").runs, 1);
    assert_eq!(keys(f, &here()).await, ["k"], "what it wrote stays");
    assert_eq!(change("k", "first", "c-1").await, FactOutcome::Done, "its calls are forgotten");
}

pub(crate) async fn a_session_is_forgotten_for_one_owner_or_for_all(f: &Fixture) {
    let places = [here(), of_session("bob", "s-1"), of_session("ann", "s-2"), of_tenant("acme")];
    for place in &places {
        put(f, place, fact("a", "t", 1)).await;
        put(f, place, fact("b", "t", 1)).await;
    }
    let forget = |owner: Option<&'static str>, tenant: &'static str| async move {
        f.store.forget_session(tenant, owner, "s-1").await.expect("forgets")
    };
    assert_eq!(forget(None, "zeta").await, 0);
    assert_eq!(forget(Some("ann"), "acme").await, 2);
    assert_eq!(keys(f, &here()).await, [""; 0]);
    assert_eq!(keys(f, &places[1]).await, ["a", "b"]);
    assert_eq!(forget(None, "acme").await, 2);
    assert_eq!(keys(f, &places[1]).await, [""; 0]);
    for place in &places[2..] {
        assert_eq!(keys(f, place).await, ["a", "b"]);
        assert_eq!(found(f, place, "t").await, ["a", "b"]);
    }
    assert_eq!(f.store.forget_session("acme", None, "").await.expect("forgets"), 0);
}
