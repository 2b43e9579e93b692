//! The texts of policy files that are in force.

use super::*;

fn text(path: &str, text: &str, read_at: u64) -> PolicyText {
    let digest = format!("digest of {text}");
    let (path, text) = (path.to_owned(), text.to_owned());
    PolicyText { path, digest, text, read_at: Timestamp(read_at) }
}

async fn applied(f: &Fixture, text: PolicyText) -> PolicyRevision {
    f.store.apply_policy(text).await.expect("applies")
}

async fn in_force(f: &Fixture, path: &str) -> Option<PolicyRevision> {
    f.store.policy_in_force(path).await.expect("reads")
}

pub(crate) async fn of_each_file_the_text_that_was_applied_last_is_in_force(f: &Fixture) {
    assert_eq!(in_force(f, "/a").await, None);
    for (path, words, number) in [("/a", "one", 1), ("/b", "one", 1), ("/a", "two", 2)] {
        let policy = text(path, words, 10 + number);
        let revision = PolicyRevision { policy: policy.clone(), number };
        assert_eq!(applied(f, policy).await, revision);
        assert_eq!(in_force(f, path).await, Some(revision));
    }
    // One of before is in force again, under a number of its own.
    let back = PolicyRevision { policy: text("/a", "one", 20), number: 3 };
    assert_eq!(applied(f, back.policy.clone()).await, back);
    assert_eq!(in_force(f, "/a").await, Some(back));
    let other = PolicyRevision { policy: text("/b", "one", 11), number: 1 };
    assert_eq!(in_force(f, "/b").await, Some(other));
}

pub(crate) async fn a_text_that_is_in_force_is_not_applied_again(f: &Fixture) {
    let first = applied(f, text("/a", "one", 10)).await;
    assert_eq!(applied(f, text("/a", "one", 30)).await, first);
    assert_eq!(in_force(f, "/a").await, Some(first));
}

pub(crate) async fn a_text_that_was_read_earlier_replaces_none_that_was_read_later(f: &Fixture) {
    applied(f, text("/a", "one", 5)).await;
    let later = applied(f, text("/a", "two", 20)).await;
    assert_eq!(applied(f, text("/a", "one", 10)).await, later);
    assert_eq!(in_force(f, "/a").await, Some(later));
    assert_eq!(applied(f, text("/a", "one", 20)).await.number, 3, "not before it");
}

pub(crate) async fn texts_that_are_applied_at_once_have_numbers_of_their_own(f: &Fixture) {
    let apply = |number: u32| {
        let (store, text) = (Arc::clone(&f.store), text("/a", &number.to_string(), 10));
        tokio::spawn(async move { store.apply_policy(text).await.expect("applies").number })
    };
    let mut numbers = BTreeSet::new();
    for applied in (0..8).map(apply).collect::<Vec<_>>() {
        numbers.insert(applied.await.expect("no panic"));
    }
    assert_eq!(numbers, (1..=8).collect());
    assert_eq!(in_force(f, "/a").await.map(|last| last.number), Some(8));
}
