//! Lasting consents.

use taskrun_journal::consent::{
    BY_HOST, CONSENTS_MAX, ConsentOutcome, ConsentRecord, ConsentSubject, LastingConsent,
    Revocation,
};

use super::*;

fn subject(owner: &str, function: &str) -> ConsentSubject {
    ConsentSubject {
        tenant: "acme".to_owned(),
        owner_user_id: owner.to_owned(),
        parent_app_name: None,
        policy: "/p/taskrun.toml".to_owned(),
        agent_name: "researcher".to_owned(),
        function: function.to_owned(),
    }
}

fn consent(owner: &str, session: Option<&str>) -> LastingConsent {
    LastingConsent {
        subject: subject(owner, "mail/send"),
        session: session.map(str::to_owned),
        approved: true,
        digest: "blake3:00".to_owned(),
        by: owner.to_owned(),
        at: Timestamp(1_000),
        until: Some(Timestamp(9_000)),
    }
}

fn revocation(at: u64) -> Revocation {
    Revocation { at: Timestamp(at), by: "bob".to_owned() }
}

async fn keep(f: &Fixture, consent: LastingConsent) -> ConsentRecord {
    match f.store.keep_consent(consent).await.expect("keeps") {
        ConsentOutcome::Kept(record) => *record,
        ConsentOutcome::Full => panic!("there is room"),
    }
}

async fn about(f: &Fixture, subject: &ConsentSubject, session: Option<&str>) -> Vec<u64> {
    let found = f.store.consents_about(subject, session).await.expect("reads");
    found.iter().map(|record| record.number).collect()
}

async fn seen(f: &Fixture, scope: &Scope) -> Vec<ConsentRecord> {
    f.store.consents(scope, 0, usize::MAX).await.expect("reads")
}

async fn numbers(f: &Fixture, scope: &Scope) -> Vec<u64> {
    seen(f, scope).await.iter().map(|record| record.number).collect()
}

fn acme() -> Scope {
    Scope::tenant("acme")
}

pub(crate) async fn a_consent_is_found_by_what_it_is_about_and_by_nothing_else(f: &Fixture) {
    let all = keep(f, consent("ann", None)).await;
    let bound = keep(f, consent("ann", Some("s-1"))).await;
    assert_eq!((all.number, bound.number), (1, 2));
    let asked = subject("ann", "mail/send");
    assert_eq!(about(f, &asked, None).await, [1]);
    assert_eq!(about(f, &asked, Some("s-1")).await, [1, 2]);
    assert_eq!(about(f, &asked, Some("s-2")).await, [1]);
    let found = f.store.consents_about(&asked, Some("s-1")).await.expect("reads");
    assert_eq!(found, [all, bound], "as they were kept");
    let others = [
        ConsentSubject { tenant: "other".to_owned(), ..asked.clone() },
        ConsentSubject { owner_user_id: "bob".to_owned(), ..asked.clone() },
        ConsentSubject { parent_app_name: Some("desk".to_owned()), ..asked.clone() },
        ConsentSubject { policy: "/q/taskrun.toml".to_owned(), ..asked.clone() },
        ConsentSubject { agent_name: "writer".to_owned(), ..asked.clone() },
        ConsentSubject { function: "mail/read".to_owned(), ..asked },
    ];
    for other in others {
        assert_eq!(about(f, &other, Some("s-1")).await, [] as [u64; 0], "{other:?}");
    }
}

pub(crate) async fn one_in_place_of_another_revokes_that_and_names_it(f: &Fixture) {
    let first = keep(f, consent("ann", None)).await;
    keep(f, consent("ann", Some("s-1"))).await;
    let again = LastingConsent {
        approved: false,
        by: "mia".to_owned(),
        at: Timestamp(2_000),
        until: None,
        ..consent("ann", None)
    };
    let second = keep(f, again.clone()).await;
    let expected = ConsentRecord { number: 3, consent: again, replaces: Some(1), revocation: None };
    assert_eq!(second, expected);
    assert_eq!(about(f, &second.consent.subject, Some("s-1")).await, [3, 2]);
    let by = Revocation { at: Timestamp(2_000), by: "mia".to_owned() };
    let first = ConsentRecord { revocation: Some(by), ..first };
    let all = seen(f, &acme()).await;
    assert_eq!((&all[0], &all[2]), (&first, &second));
}

pub(crate) async fn a_revoked_consent_is_found_no_more_and_stays_on_record(f: &Fixture) {
    let kept = keep(f, consent("ann", None)).await;
    let asked = kept.consent.subject.clone();
    let revoked = f.store.revoke_consent(&acme(), 1, revocation(5_000)).await.expect("revokes");
    let expected = ConsentRecord { revocation: Some(revocation(5_000)), ..kept };
    assert_eq!(revoked.as_ref(), Some(&expected));
    assert_eq!(about(f, &asked, None).await, [] as [u64; 0]);
    let again = f.store.revoke_consent(&acme(), 1, revocation(6_000)).await.expect("answers");
    assert_eq!(again.as_ref(), Some(&expected), "the first revocation stays");
    assert_eq!(seen(f, &acme()).await, [expected]);
    // The next one replaces none: that was over.
    assert_eq!(keep(f, consent("ann", None)).await.replaces, None);
    assert_eq!(about(f, &asked, None).await, [2]);
}

pub(crate) async fn consents_are_seen_and_revoked_by_those_who_see_them(f: &Fixture) {
    keep(f, consent("ann", None)).await;
    keep(f, consent("ann", Some("s-1"))).await;
    keep(f, consent("bob", Some("s-1"))).await;
    for (scope, expected) in [
        (acme(), vec![1, 2, 3]),
        (acme().owner("ann"), vec![1, 2]),
        (acme().session("s-1"), vec![2, 3]),
        (acme().owner("bob").session("s-2"), vec![]),
        (Scope::tenant("other"), vec![]),
        (Scope { parent_app_name: Some("desk".to_owned()), ..acme() }, vec![]),
    ] {
        assert_eq!(numbers(f, &scope).await, expected, "{scope:?}");
        for number in 1..=3 {
            if !expected.contains(&number) {
                let refused = f.store.revoke_consent(&scope, number, revocation(2_000)).await;
                assert_eq!(refused.expect("answers"), None, "{scope:?}");
            }
        }
    }
    assert!(seen(f, &acme()).await.iter().all(|record| record.revocation.is_none()));
    let page = f.store.consents(&acme(), 1, 1).await.expect("reads");
    assert_eq!(page.iter().map(|record| record.number).collect::<Vec<_>>(), [2]);
    assert_eq!(f.store.revoke_consent(&acme(), 9, revocation(1)).await.expect("answers"), None);
}

pub(crate) async fn what_was_over_is_removed_by_its_age_and_the_rest_of_a_session_with_it(
    f: &Fixture,
) {
    let ann = acme().owner("ann");
    // One that is revoked, one that ends by itself, and two that hold.
    keep(f, consent("ann", Some("s-1"))).await;
    f.store.revoke_consent(&ann, 1, revocation(5_000)).await.expect("revokes");
    keep(f, consent("ann", None)).await;
    keep(f, LastingConsent { until: None, ..consent("ann", Some("s-1")) }).await;
    keep(f, consent("bob", Some("s-1"))).await;
    let remove = async |scope: &Scope, before: Option<u64>, dry_run| {
        let before = before.map(Timestamp);
        f.store.remove_consents(scope, before, dry_run).await.expect("removes")
    };
    assert_eq!(remove(&ann, Some(5_000), false).await, 0, "it was not over before that");
    assert_eq!(remove(&ann, Some(5_001), true).await, 1);
    assert_eq!(numbers(f, &acme()).await, [1, 2, 3, 4], "nothing is removed to look");
    assert_eq!(remove(&ann, Some(5_001), false).await, 1);
    assert_eq!(remove(&ann, Some(10_000), false).await, 1);
    assert_eq!(numbers(f, &acme()).await, [3, 4]);
    assert_eq!(remove(&ann.session("s-1"), None, false).await, 1);
    assert_eq!(numbers(f, &acme()).await, [4]);
    let asked = subject("ann", "mail/send");
    assert_eq!(about(f, &asked, Some("s-1")).await, [] as [u64; 0]);
    // A number is given once.
    assert_eq!(remove(&acme(), None, false).await, 1);
    assert_eq!(keep(f, consent("ann", None)).await.number, 5);
}

pub(crate) async fn an_owner_has_no_more_consents_than_are_allowed(f: &Fixture) {
    let about = |number: usize| LastingConsent {
        subject: subject("ann", &format!("t/{number}")),
        ..consent("ann", None)
    };
    for number in 0..CONSENTS_MAX {
        keep(f, about(number)).await;
    }
    let full = f.store.keep_consent(about(CONSENTS_MAX)).await.expect("answers");
    assert_eq!(full, ConsentOutcome::Full);
    keep(f, consent("bob", None)).await;
    // Another word about the same calls has the room of the one before, as often as somebody says it.
    for number in [CONSENTS_MAX as u64 + 2, CONSENTS_MAX as u64 + 3] {
        let no = keep(f, LastingConsent { approved: false, ..about(7) }).await;
        assert_eq!(no.number, number);
        let found = f.store.consents_about(&about(7).subject, None).await.expect("reads");
        assert_eq!(found, [no]);
    }
    let ann = acme().owner("ann");
    assert_eq!(seen(f, &ann).await.len(), CONSENTS_MAX);
    f.store.revoke_consent(&ann, 1, revocation(2_000)).await.expect("revokes");
    let removed = f.store.remove_consents(&ann, Some(Timestamp(3_000)), false).await;
    assert_eq!(removed.expect("removes"), 1);
    keep(f, about(CONSENTS_MAX)).await;
}

pub(crate) async fn an_empty_name_of_a_session_or_an_application_is_that_of_none(f: &Fixture) {
    keep(f, consent("ann", None)).await;
    let no_session = acme().session("");
    let no_app = Scope { parent_app_name: Some(String::new()), ..acme() };
    for scope in [no_session, no_app] {
        assert_eq!(numbers(f, &scope).await, [] as [u64; 0], "{scope:?}");
        let revoked = f.store.revoke_consent(&scope, 1, revocation(5_000)).await;
        assert_eq!(revoked.expect("answers"), None, "{scope:?}");
        let removed = f.store.remove_consents(&scope, None, false).await;
        assert_eq!(removed.expect("answers"), 0, "{scope:?}");
    }
    assert_eq!(numbers(f, &acme()).await, [1]);
}

pub(crate) async fn what_is_bound_to_a_session_is_over_with_it(f: &Fixture) {
    keep(f, consent("ann", None)).await;
    let bound = keep(f, consent("ann", Some("s-1"))).await;
    let of_bob = keep(f, consent("bob", Some("s-1"))).await;
    keep(f, consent("ann", Some("s-2"))).await;
    let ended = SessionKey::of(&acme().owner("ann"), "s-1");
    for at in [5_000, 6_000] {
        f.store.end_session(&ended, Timestamp(at)).await.expect("ends");
        let by = Revocation { at: Timestamp(5_000), by: BY_HOST.to_owned() };
        let over = ConsentRecord { revocation: Some(by), ..bound.clone() };
        let all = seen(f, &acme()).await;
        assert_eq!((&all[1], &all[2]), (&over, &of_bob));
        assert_eq!(about(f, &bound.consent.subject, Some("s-1")).await, [1]);
        assert_eq!(about(f, &bound.consent.subject, Some("s-2")).await, [1, 4]);
    }
    // An operator ends those of everybody.
    f.store.end_session(&SessionKey::of(&acme(), "s-1"), Timestamp(7_000)).await.expect("ends");
    assert_eq!(about(f, &of_bob.consent.subject, Some("s-1")).await, [] as [u64; 0]);
}
