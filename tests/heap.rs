//! The heap of a host with deferred runs, in a process of its own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rusqlite::ffi::sqlite3_memory_used;
use taskrun::autonomy::AutonomyRequest;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::run::Run;
use taskrun_store::{Durability, SqliteOptions, SqliteStore};
use taskrun_tests::native::{
    ClosurePlanner, Looks, Native, World, answer, call_of, in_time, request,
};

/// The most by which a host with a thousand deferred runs may be larger than one with a few.
const BYTES_MAX: i64 = 1 << 20;
const HOUR: Duration = Duration::from_secs(3_600);
/// Looks of a host, one in a second, in which it has given back what it gives back at rest.
const REST_LOOKS: u64 = 8;

/// Counts the bytes that Rust code has in use; SQLite counts its own.
struct Counting;

static IN_USE: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static HEAP: Counting = Counting;

fn count(layout: Layout, sign: i64) {
    IN_USE.fetch_add(sign * i64::try_from(layout.size()).unwrap_or(i64::MAX), Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "an allocator is made of such functions")]
// SAFETY: all of it is done by the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: the caller keeps the promises of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(layout, -1);
        // SAFETY: the caller keeps the promises of this function.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Bytes in use of the process.
#[expect(unsafe_code, reason = "rusqlite has no such call")]
fn in_use() -> i64 {
    // SAFETY: it takes nothing, and SQLite its own lock.
    let of_sqlite = unsafe { sqlite3_memory_used() };
    IN_USE.load(Ordering::Relaxed) + of_sqlite
}

/// Has runs go on until they wait for their next round.
async fn defer(host: &Native, numbers: std::ops::Range<u32>) {
    let mut ids = Vec::new();
    for number in numbers {
        let autonomous = Some(AutonomyRequest::default());
        let request = SpawnRequest { autonomous, ..request("a", &format!("x{number}")) };
        ids.push(host.spawn(&request).await);
    }
    for id in ids {
        host.until(&id, "is deferred", |run: &Run| run.state.rounds.due.is_some()).await;
    }
}

#[tokio::test]
async fn m_55_a_host_keeps_nothing_for_a_deferred_run_over_an_hour() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let options = SqliteOptions { durability: Durability::Process, ..SqliteOptions::default() };
    let sqlite = Arc::new(SqliteStore::open(folder.path(), options).expect("opens"));
    let looks = Looks::of(sqlite.clone());
    let mut world = World::over(looks.clone(), sqlite.clone(), sqlite.clone());
    world.agent(
        "a",
        ClosurePlanner::new(|input, _| async move {
            match input.run.turn {
                1 => call_of(&[("s", "host/schedule_next_turn", r#"{"wake_in_sec":7200}"#)]),
                _ => answer("nothing to do"),
            }
        }),
    );
    world.settings.slots = 64;
    let host = world.start().await;
    // Of so many each thread, statement and table of the host is there.
    defer(&host, 0..100).await;
    in_time(looks.more(REST_LOOKS)).await;
    let before = in_use();
    defer(&host, 100..1_100).await;
    world.clock.advance(HOUR);
    let mut grown = i64::MAX;
    let settles = async {
        while grown > BYTES_MAX {
            looks.more(1).await;
            grown = in_use() - before;
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(60), settles).await;
    assert!(settled.is_ok(), "{grown} bytes more are in use than with a tenth of the runs");
    println!("{grown} bytes more are in use beside a thousand deferred runs");
    assert_eq!(host.controller.executing(), 0);
}
