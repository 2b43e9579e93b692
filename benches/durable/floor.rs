//! The floors: every event waits for the disk by itself, or all of a run in two commits.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::Watch;

/// Commits per second where the events of a run are written in these groups, each a commit, on one
/// connection of SQLite, set up like the product's.
pub(crate) fn commits(dir: &Path, groups: &[&[String]], time: Duration) -> f64 {
    let folder = tempfile::tempdir_in(dir).expect("a folder");
    let mut db = rusqlite::Connection::open(folder.path().join("floor.db")).expect("a file");
    db.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;
         CREATE TABLE events (
             pos INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL, seq INTEGER NOT NULL,
             body TEXT NOT NULL, UNIQUE (run, seq)
         ) STRICT",
    )
    .expect("tables");
    let watch = Watch::start();
    let mut commits = 0_u32;
    for run in 0_i64.. {
        let mut seq = 0_i64;
        for group in groups {
            let transaction = db.transaction().expect("begun");
            for body in *group {
                seq += 1;
                let sql = "INSERT INTO events (run, seq, body) VALUES (?1, ?2, ?3)";
                let mut insert = transaction.prepare_cached(sql).expect("a statement");
                insert.execute(rusqlite::params![run, seq, body]).expect("written");
            }
            transaction.commit().expect("written");
            commits += 1;
        }
        if watch.elapsed() >= time {
            break;
        }
    }
    f64::from(commits) / watch.elapsed().as_secs_f64()
}

/// Events per second where each one is appended to a plain file and synchronised.
pub(crate) fn appends(dir: &Path, bodies: &[String], time: Duration) -> f64 {
    let folder = tempfile::tempdir_in(dir).expect("a folder");
    let mut file = File::create(folder.path().join("floor")).expect("a file");
    let watch = Watch::start();
    let mut events = 0_u32;
    while watch.elapsed() < time {
        for body in bodies {
            file.write_all(body.as_bytes()).expect("written");
            file.sync_data().expect("synchronised");
            events += 1;
        }
    }
    f64::from(events) / watch.elapsed().as_secs_f64()
}
