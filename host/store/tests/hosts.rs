//! Hosts, hearts and locks of the store in a file.

mod common;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use taskrun::clock::SystemClock;
use taskrun_journal::machine;
use taskrun_journal::store::{Host, Hosts, PresentHost, Stay, Store, StoreError};
use taskrun_journal::time::{Clock, Timestamp};
use taskrun_store::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// Calls `check` until it is true, without giving up the thread to the executor.
fn spin_until(mut check: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    while !check() {
        assert!(clock.monotonic() < Duration::from_secs(60), "it happens before the deadline");
        std::thread::yield_now();
    }
}

/// A host with so long a lease.
fn host_with(lease: Duration) -> Host {
    Host { lease, ..host_of(&host_id("h"), PIN) }
}

/// A lease in which hearts beat every millisecond.
const SHORT: Duration = Duration::from_millis(6);

#[tokio::test]
async fn hearts_beat_while_the_runtime_is_blocked() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    store.register(host_with(SHORT)).await.expect("registers");
    let before = store.stats().heartbeats;
    // The only thread of the executor does nothing else until three beats were written.
    spin_until(|| store.stats().heartbeats >= before + 3);
}

#[tokio::test]
async fn each_host_beats_in_its_own_lease() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let slow = Host { id: host_id("slow"), ..host_with(Duration::from_secs(36_000)) };
    store.register(slow.clone()).await.expect("registers");
    store.register(host_with(SHORT)).await.expect("registers");
    let beats = || -> Vec<i64> {
        let db = stranger(&dir);
        let mut sql = db.prepare("SELECT beat_ms FROM hosts ORDER BY id").expect("compiles");
        let rows = sql.query_map([], |row| row.get(0)).expect("selects");
        rows.map(|row| row.expect("a row")).collect()
    };
    let before = beats();
    spin_until(|| beats()[0] > before[0]);
    assert_eq!(beats()[1], before[1], "the slow one has hours left");
    assert!(store.hosts().await.expect("lists").contains(&slow));
}

#[tokio::test]
async fn hearts_go_on_after_somebody_kept_the_file_locked() {
    let dir = tempfile::tempdir().expect("a folder");
    let fast = SqliteOptions { busy_timeout: Duration::from_millis(1), ..options() };
    let store = SqliteStore::open(dir.path(), fast).expect("opens");
    store.register(host_with(SHORT)).await.expect("registers");
    let blocker = stranger(&dir);
    blocker.busy_timeout(Duration::from_secs(5)).expect("sets");
    blocker.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let refused = store.create(new_run(spec("r"))).await;
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    let before = store.stats().heartbeats;
    blocker.execute_batch("COMMIT").expect("unlocks");
    spin_until(|| store.stats().heartbeats >= before + 3);
}

#[tokio::test]
async fn a_host_whose_beats_cannot_be_written_falls_silent_and_speaks_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let fast = SqliteOptions { busy_timeout: Duration::from_millis(1), ..options() };
    let store = SqliteStore::open(dir.path(), fast).expect("opens");
    let (host, stranger_to_it) = (host_id("h"), host_id("other"));
    assert_eq!(store.silence(&host), None);
    store.register(host_with(SHORT)).await.expect("registers");
    assert_eq!(store.silence(&stranger_to_it), None);
    let silence = || store.silence(&host).expect("it is registered here");
    let blocker = stranger(&dir);
    blocker.busy_timeout(Duration::from_secs(5)).expect("sets");
    blocker.execute_batch("BEGIN IMMEDIATE").expect("locks");
    spin_until(|| silence() > SHORT * 20);
    blocker.execute_batch("COMMIT").expect("unlocks");
    spin_until(|| silence() < SHORT * 20);
    assert!(store.retire(&host, Stay::default()).await.expect("retires"));
    assert_eq!(store.silence(&host), None);
}

#[tokio::test]
async fn a_silent_host_does_not_live_and_lives_again_when_it_speaks() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    // Its own next beat is an hour away.
    let host = host_with(Duration::from_secs(6 * 3_600));
    store.register(host.clone()).await.expect("registers");
    create(&store, spec("r")).await;
    store.claim(wish("h", 1, 2_000)).await.expect("claims");
    assert_eq!(store.orphans(9).await.expect("answers"), []);
    let db = stranger(&dir);
    db.execute("UPDATE hosts SET beat_ms = beat_ms - lease_ms", []).expect("writes");
    assert_eq!(store.hosts().await.expect("lists"), []);
    let present = store.present_hosts().await.expect("lists").remove(0);
    assert_eq!(present.host, host, "its process is there");
    assert!(present.silence >= Some(host.lease), "{present:?}");
    // That it was silent before anybody could write here does not count.
    assert_eq!(store.orphans(9).await.expect("answers"), []);
    db.execute("UPDATE hosts SET beat_ms = beat_ms + lease_ms", []).expect("writes");
    assert_eq!(store.hosts().await.expect("lists"), std::slice::from_ref(&host));
    let present = store.present_hosts().await.expect("lists");
    assert_eq!(present, [PresentHost { host, silence: None }]);
    assert_eq!(store.orphans(9).await.expect("answers"), []);
}

/// Of a host whose process is there and whose heart does not beat, and which holds the run `r`.
const LEASE_SHORT: Duration = Duration::from_millis(600);

/// Makes such a host; its lock is held as long as the file.
async fn fall_silent(dir: &TempDir) -> File {
    let store = open(dir);
    store.register(host_with(LEASE_SHORT)).await.expect("registers");
    create(&store, spec("r")).await;
    store.claim(wish("h", 1, 2_000)).await.expect("claims");
    store.close();
    let lock = File::open(dir.path().join("hosts/h.lock")).expect("opens");
    lock.try_lock().expect("nobody has it");
    lock
}

/// Asks until the run is an orphan, and gives how long that took.
async fn until_orphaned(store: &SqliteStore) -> Duration {
    let clock = SystemClock::new();
    let began = clock.monotonic();
    loop {
        let runs = within(store.orphans(9)).await.expect("answers");
        if !runs.is_empty() {
            assert_eq!(ids(&runs), ["r"]);
            return clock.monotonic() - began;
        }
    }
}

#[tokio::test]
async fn a_silent_host_is_taken_for_dead_by_who_could_write_for_a_whole_lease() {
    let dir = tempfile::tempdir().expect("a folder");
    let lock = fall_silent(&dir).await;
    let store = open(&dir);
    let took = within(until_orphaned(&store)).await;
    // Times of beats are whole milliseconds.
    assert!(took + Duration::from_millis(2) >= LEASE_SHORT, "{took:?}");
    // Whose process is gone is dead at once.
    drop(lock);
    assert_eq!(open(&dir).present_hosts().await.expect("lists"), []);
    assert_eq!(ids(&open(&dir).orphans(9).await.expect("answers")), ["r"]);
}

#[tokio::test]
async fn nobody_is_taken_for_dead_while_the_store_is_locked_nor_for_a_lease_after_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let _lock = fall_silent(&dir).await;
    let impatient = SqliteOptions { busy_timeout: Duration::from_millis(10), ..options() };
    let store = SqliteStore::open(dir.path(), impatient).expect("opens");
    let clock = SystemClock::new();
    let blocker = stranger(&dir);
    for _ in 0..2 {
        // So long that it would be dead by its silence, before and after it was first looked at.
        blocker.execute_batch("BEGIN IMMEDIATE").expect("locks");
        let until = clock.monotonic() + LEASE_SHORT * 2;
        while clock.monotonic() < until {
            assert_eq!(store.orphans(9).await.expect("answers"), []);
        }
        blocker.execute_batch("COMMIT").expect("frees");
        // The first write of this process after it.
        assert_eq!(store.orphans(9).await.expect("answers"), []);
    }
    let took = within(until_orphaned(&store)).await;
    assert!(took + Duration::from_millis(2) >= LEASE_SHORT, "{took:?}");
}

#[tokio::test]
async fn a_host_was_last_heard_when_its_last_beat_was_sent() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    let host = host_with(Duration::from_secs(6 * 3_600));
    let heard = async || store.heard(&host.id).await.expect("answers");
    assert_eq!(heard().await, None, "it is unknown");
    store.register(host.clone()).await.expect("registers");
    assert_eq!(heard().await, Some(host.started_at));
    let db = stranger(&dir);
    db.execute("UPDATE hosts SET beat_ms = beat_ms + 7000", []).expect("writes");
    let later = host.started_at.plus(Duration::from_secs(7));
    assert_eq!(heard().await, Some(later));
    // Whoever enters again has not begun to live then.
    store.register(host.clone()).await.expect("again, which is harmless");
    assert!(heard().await >= Some(host.started_at));
}

#[tokio::test]
async fn dead_hosts_that_hold_nothing_are_swept() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir);
    for host in ["idle", "busy"] {
        let other = open(&dir);
        other.register(host_of(&host_id(host), PIN)).await.expect("registers");
    }
    create(&store, spec("r")).await;
    let run = store.claim(wish("busy", 1, 2_000)).await.expect("claims").remove(0);
    let rows = || -> Vec<String> {
        let db = stranger(&dir);
        let mut sql = db.prepare("SELECT id FROM hosts ORDER BY id").expect("compiles");
        let rows = sql.query_map([], |row| row.get(0)).expect("selects");
        rows.map(|row| row.expect("a row")).collect()
    };
    let lock = |host: &str| dir.path().join("hosts").join(format!("{host}.lock")).exists();
    assert_eq!(ids(&store.orphans(9).await.expect("answers")), ["r"]);
    assert_eq!(rows(), ["busy"]);
    assert!(!lock("idle") && lock("busy"));
    let lost = machine::decide::lose(&run, Timestamp(3_000), None);
    store.append(next(&run, 50, 3_000, lost)).await.expect("appends");
    assert_eq!(store.orphans(9).await.expect("answers"), []);
    assert_eq!(rows(), [""; 0]);
    assert!(!lock("busy"));
}

#[tokio::test]
async fn a_host_is_registered_by_one_process_at_a_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mine, theirs) = (open(&dir), open(&dir));
    let host = host_of(&host_id("h"), PIN);
    mine.register(host.clone()).await.expect("registers");
    mine.register(host.clone()).await.expect("again, which is harmless");
    let refused = theirs.register(host.clone()).await;
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    assert_eq!(theirs.hosts().await.expect("lists"), std::slice::from_ref(&host));
    drop(mine);
    theirs.register(host).await.expect("registers");
}

#[tokio::test]
async fn a_host_that_cannot_be_registered_again_lives_as_before() {
    let dir = tempfile::tempdir().expect("a folder");
    let fast = SqliteOptions { busy_timeout: Duration::from_millis(1), ..options() };
    let (store, other) = (SqliteStore::open(dir.path(), fast).expect("opens"), open(&dir));
    let host = host_of(&host_id("h"), PIN);
    store.register(host.clone()).await.expect("registers");
    create(&store, spec("r")).await;
    store.claim(wish("h", 1, 2_000)).await.expect("claims");
    let blocker = stranger(&dir);
    blocker.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let agents = Arc::new(["another@1".to_owned()].into());
    let refused = store.register(Host { agents, ..host.clone() }).await;
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    blocker.execute_batch("COMMIT").expect("unlocks");
    for seen_by in [&store, &other] {
        assert_eq!(seen_by.orphans(10).await.expect("reads"), []);
        assert_eq!(seen_by.hosts().await.expect("lists"), std::slice::from_ref(&host));
    }
    let never = Host { id: host_id("never"), ..host };
    blocker.execute_batch("BEGIN IMMEDIATE").expect("locks");
    let refused = store.register(never.clone()).await;
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    blocker.execute_batch("COMMIT").expect("unlocks");
    other.register(never).await.expect("its lock is free");
}
