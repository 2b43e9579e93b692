//! Lasting consents in a store that is made anew.

use taskrun_journal::consent::{
    ConsentOutcome, ConsentRecord, ConsentSubject, Consents, LastingConsent,
};
use taskrun_journal::event::Event;
use taskrun_journal::list::Scope;
use taskrun_journal::store::Store;
use taskrun_journal::time::Timestamp;
use taskrun_store::{Repair, SCHEMA_VERSION, SqliteStore};

use super::common::*;
use super::filled::filled;
use super::rows::bytes_of;
use super::{entangled, is_in_order, of_version, repair};

async fn all(store: &SqliteStore) -> Vec<ConsentRecord> {
    store.consents(&Scope::tenant("acme"), 0, 100).await.expect("reads")
}

async fn keep(store: &SqliteStore, consent: LastingConsent) -> u64 {
    match store.keep_consent(consent).await.expect("keeps") {
        ConsentOutcome::Kept(record) => record.number,
        ConsentOutcome::Full => panic!("there is room"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_033_the_number_of_a_consent_that_was_removed_is_not_given_again() {
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    let store = open(&dir);
    let known = all(&store).await;
    let bound = LastingConsent { session: Some("s-9".to_owned()), ..known[1].consent.clone() };
    assert_eq!(keep(&store, bound.clone()).await, 3);
    let in_session = Scope::tenant("acme").session("s-9");
    assert_eq!(store.remove_consents(&in_session, None, false).await.expect("removes"), 1);
    drop(store);
    let Repair { lost, .. } = repair(&dir);
    assert_eq!(lost, [] as [&str; 0]);
    let store = open(&dir);
    assert_eq!(all(&store).await, known);
    assert_eq!(keep(&store, bound).await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_033_a_consent_that_is_not_as_it_was_written_is_not_taken_over() {
    let dir = tempfile::tempdir().expect("a folder");
    entangled(&dir).await;
    let known = all(&open(&dir)).await;
    let db = stranger(&dir);
    db.execute_batch("UPDATE consents SET function = 'mail/delete' WHERE no = 2").expect("writes");
    drop(db);
    let Repair { lost, .. } = repair(&dir);
    assert_eq!(lost, ["1 lasting consents cannot be read"]);
    let store = open(&dir);
    is_in_order(&store).await;
    assert_eq!(all(&store).await, known[..1]);
    assert_eq!(keep(&store, known[1].consent.clone()).await, 3);
}

#[tokio::test]
async fn c_033_a_version_without_consents_has_lost_none_of_them() {
    let whole = filled().await;
    let Repair { lost, .. } = repair(&of_version(&whole, 13, "DROP TABLE consents"));
    assert_eq!(lost, [] as [&str; 0]);
    let Repair { lost, .. } =
        repair(&of_version(&whole, SCHEMA_VERSION + 1, "DROP TABLE consents"));
    assert_eq!(lost, ["no lasting consents can be read"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_033_the_number_of_a_consent_that_a_journal_names_is_not_given_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    create(&store, spec("r")).await;
    let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
    let text = str::to_owned;
    let allowed = Event::ToolAuthorization {
        tool_call_id: text("c"),
        name: text("mail/send"),
        approved: true,
        decided_by: text("ann"),
        for_run: false,
        consent: Some(3),
    };
    append(&store, next(&run, 50, 2_100, vec![allowed])).await;
    drop(store);
    let whole = bytes_of(&dir);
    // As a program had it that knows no consents and was followed by this one.
    let dir = of_version(&whole, 13, "DROP TABLE consents");
    let Repair { lost, .. } = repair(&dir);
    assert_eq!(lost, [] as [&str; 0]);
    let consent = LastingConsent {
        subject: ConsentSubject::of(&run.spec, "/p/taskrun.toml", "mail/send"),
        session: None,
        approved: true,
        digest: text("d"),
        by: text("ann"),
        at: Timestamp(8),
        until: None,
    };
    assert_eq!(keep(&open(&dir), consent).await, 4);
}
