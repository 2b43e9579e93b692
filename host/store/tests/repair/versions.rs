//! Runs with events of another version, in a store that is made anew.

use taskrun_journal::store::Store;
use taskrun_store::{Repair, SCHEMA_VERSION};

use super::common::*;
use super::damaged::*;
use super::{is_in_order, of_version, repair, runs};

/// The checksum of an event, as programs of all versions make it.
fn sum_of(run: &str, numbers: [i64; 3], body: &str) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for number in numbers {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(&(run.len() as u64).to_le_bytes());
    hasher.update(run.as_bytes());
    hasher.update(body.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    i64::from_le_bytes(first)
}

/// The bytes of a store with two runs, of one of which an event, by its number, has a part that no
/// program of this version writes.
async fn with_unheard_of(number: i64, part: &str, unheard_of: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    for id in ["one", "two"] {
        create(&store, spec(id)).await;
        let run = store.claim(wish("h", 1, 2_000)).await.expect("claims").remove(0);
        append(&store, next(&run, 50, 3_000, vec![note("a"), note("b")])).await;
    }
    drop(store);
    let db = stranger(&dir);
    let sql = "SELECT pos, id, at, body, sum FROM events
               WHERE run = (SELECT no FROM runs WHERE id = 'one') AND seq = ?1";
    let row = db.query_row(sql, [number], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
    });
    let (pos, id, at, body, sum): (i64, i64, i64, String, i64) = row.expect("the event");
    assert_eq!(sum_of("one", [number, id, at], &body), sum, "it is made as the store makes it");
    let other = body.replace(part, unheard_of);
    assert_ne!(other, body);
    let sum = sum_of("one", [number, id, at], &other);
    let update = "UPDATE events SET body = ?2, sum = ?3 WHERE pos = ?1";
    db.execute(update, rusqlite::params![pos, other, sum]).expect("writes");
    drop(db);
    std::fs::read(file(dir.path())).expect("reads")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_with_an_event_of_another_version_is_left_out_and_named_and_others_are_kept() {
    for (number, part, unheard_of, said) in [
        (3, "\"planner_note\"", "\"unheard_of\"", "run one: event 3 is of another version"),
        (
            1,
            "\"priority\"",
            "\"class\":\"unheard_of\",\"priority\"",
            "run \"one\": event 1 is of another version",
        ),
    ] {
        let whole = with_unheard_of(number, part, unheard_of).await;
        for version in [SCHEMA_VERSION - 1, SCHEMA_VERSION] {
            let dir = match version {
                SCHEMA_VERSION => store_of(&whole),
                version => of_version(&whole, version, ""),
            };
            let Repair { runs: kept, left_out, .. } = repair(&dir);
            assert_eq!((kept, left_out), (1, vec![said.to_owned()]), "version {version}");
            let store = open(&dir);
            is_in_order(&store).await;
            assert_eq!(runs(&store).await.keys().collect::<Vec<_>>(), ["two"]);
        }
    }
}
