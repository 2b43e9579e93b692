//! A disk that takes no writes any more while a host works (case 68), with the real store under
//! the controller.
//!
//! Each test is a process of its own, as a limit of a process is one of the two ways in which the
//! kernel is made to refuse; see [`disk::Way`]. It says what it was told is kept, and its parent
//! looks whether that is so.

mod disk;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskrun::error::ControllerError;
use taskrun::ports::tool::{ToolReply, ToolWait};
use taskrun_journal::ids::RunId;
use taskrun_journal::machine;
use taskrun_journal::question::Answer;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::Store;
use taskrun_journal::tool::ToolHints;
use taskrun_policy::InterruptionPolicy;
use taskrun_store::{SqliteOptions, SqliteStore};

use self::disk::{Disk, Way};
use super::common::{Gates, check_journal, count, following, named, soon, words_so_far};
use crate::native::{
    ClosurePlanner, ClosureTool, Native, Op, World, answer, call_of, in_time, value,
};

/// Tells a child its way and its folder.
const WAY: &str = "TASKRUN_TEST_READ_ONLY_WAY";
const FOLDER: &str = "TASKRUN_TEST_READ_ONLY_FOLDER";
/// Lease of a host whose disk refuses for longer.
const LEASE_SHORT: Duration = Duration::from_millis(900);
/// Longest pause between attempts to record an end.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The words for a child, if this is one: where its store is, and how its disk is made to refuse.
fn told() -> Option<(std::path::PathBuf, Way)> {
    #[expect(clippy::disallowed_methods, reason = "how the parent tells its child what to do")]
    let read = |name: &str| std::env::var(name).ok();
    Some((read(FOLDER)?.into(), Way::of(&read(WAY)?)?))
}

/// Runs a test of this name in processes of its own, one for each way; looks in each store
/// afterwards whether everything that was said to be kept is there.
async fn in_children(name: &str) {
    let mut ran = Vec::new();
    for way in Way::ALL {
        let folder = tempfile::tempdir().expect("a folder");
        // A write beyond what a process may write is an error only where the signal is ignored.
        // With one thread the harness writes the test's name before what that says, on its line.
        let child = "trap '' XFSZ; exec \"$0\" --exact \"$1\" --nocapture --test-threads=2";
        let output = Command::new("sh")
            .args(["-c", child])
            .arg(std::env::current_exe().expect("this test"))
            .arg(format!("read_only::{name}"))
            .env(WAY, way.word())
            .env(FOLDER, folder.path())
            .output()
            .expect("the child runs");
        // Whatever it left behind can be removed.
        Disk::new(way, folder.path()).accept().ok();
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{way:?}: {said}{complained}");
        if let Some(line) = said.lines().find(|line| line.starts_with("not so here: ")) {
            println!("{way:?} is {line}");
            continue;
        }
        assert!(said.contains("\nall is well\n"), "{way:?}: {said}{complained}");
        ran.push(way);
        check_kept(folder.path(), &said).await;
    }
    // What anybody may do to himself is never left out.
    assert!(ran.contains(&Way::NoBytes), "{ran:?}");
}

/// Everything that a child was told is kept is there.
async fn check_kept(folder: &Path, said: &str) {
    let store = SqliteStore::open(folder, SqliteOptions::default()).expect("opens");
    let mut kept = 0;
    for line in said.lines().filter_map(|line| line.strip_prefix("kept ")) {
        let (id, status) = line.split_once(' ').expect("a run and its status");
        let id = RunId::new(id).expect("an id");
        let run = store.get(&id).await.expect("gets").expect("it was acknowledged");
        assert_eq!(run.status().as_str(), status);
        let journal = store.read(&id, 0, 1_000).await.expect("reads");
        assert_eq!(machine::fold(&journal), Ok(run));
        check_journal(&journal);
        kept += 1;
    }
    assert!(kept > 0, "{said}");
}

/// A world over a real store.
fn world(folder: &Path) -> World {
    let store = Arc::new(SqliteStore::open(folder, SqliteOptions::default()).expect("opens"));
    World::over(store.clone(), store.clone(), store)
}

/// Says that the disk does not refuse so here, if that is so.
fn is_possible(disk: &Disk) -> bool {
    match disk.check() {
        Ok(()) => true,
        Err(error) => {
            println!("not so here: {error}");
            false
        }
    }
}

/// The error of a caller whose change the disk refused: of a commit that failed nobody knows what
/// a restart finds, so it is not said that nothing happened.
fn assert_refused<T>(what: &str, answer: Result<T, ControllerError>) {
    let told = answer.err();
    match &told {
        Some(ControllerError::Storage(error)) => {
            let codes = ["store-unknown", "store-unavailable", "store-read-only"];
            assert!(codes.contains(&error.code()), "{what}: {error}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

/// Agents that wait at the gate of their run: one answers then, one calls a tool; and one that
/// asks a person at once. Gives how often the tool was called.
fn agents(world: &mut World, gates: &Arc<Gates>) -> Arc<AtomicU32> {
    let called = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&called);
    let tool = ClosureTool::new("f", ToolHints::default(), move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { value("1") }
    });
    world.tool("t", InterruptionPolicy::Fail, tool);
    let ask = ClosureTool::new("f", ToolHints::default(), |_, _| async {
        Ok(Ok(ToolReply::Park(ToolWait::Person { question: "which?".into(), timeout: None })))
    });
    world.tool("ask", InterruptionPolicy::Fail, ask);
    world.agent("answers", gates.planner());
    world.agent("asks", following(vec![vec![("c", "ask/f", "{}")]]));
    let inside = Arc::clone(gates);
    let works = ClosurePlanner::new(move |input, _| {
        let gates = Arc::clone(&inside);
        async move {
            let _inside = gates.pass(&input.run.run_id).await;
            match input.resume {
                None => call_of(&[("c", "t/f", "{}")]),
                Some(_) => answer(&words_so_far(&input)),
            }
        }
    });
    world.agent("works", works);
    called
}

/// Nothing that is refused changes anything, and whoever asks is told.
async fn refuses_everybody(host: &Native) {
    let (controller, scope) = (&host.controller, &host.scope);
    let new = named("new", "answers");
    assert_refused("a spawn", controller.at(scope).spawn(&new).await);
    let this = Answer::Text("this".into());
    assert_refused("an answer", controller.at(scope).named("me").answer("asks", None, this).await);
    assert_refused("a cancellation", controller.at(scope).cancel("canceled", None).await);
    // What is there can be read.
    let found = controller.at(scope).get("new").await;
    assert!(matches!(found, Err(ControllerError::NotFound { .. })), "{found:?}");
    for (id, status) in
        [("asks", Status::Blocked), ("canceled", Status::Running), ("late", Status::Queued)]
    {
        assert_eq!(host.get(id).await.status(), status, "{id}");
    }
}

#[tokio::test]
async fn case_68_a_disk_that_turns_read_only_costs_time_and_no_run() {
    let Some((folder, way)) = told() else {
        let name = "case_68_a_disk_that_turns_read_only_costs_time_and_no_run";
        return in_children(name).await;
    };
    let disk = Disk::new(way, &folder);
    if !is_possible(&disk) {
        return;
    }
    let (mut world, gates) = (world(&folder), Gates::new());
    let called = agents(&mut world, &gates);
    let host = world.start().await;
    host.spawn(&named("asks", "asks")).await;
    host.reach("asks", Status::Blocked).await;
    for (id, agent) in [("answers", "answers"), ("works", "works"), ("canceled", "answers")] {
        host.spawn(&named(id, agent)).await;
    }
    gates.have_come(3).await;
    // The claim of one more comes to a disk that refuses it.
    world.store.hold(Op::Claim);
    host.spawn(&named("late", "answers")).await;
    in_time(world.store.somebody_waits()).await;

    disk.refuse().expect("the disk refuses");
    refuses_everybody(&host).await;
    world.store.release();
    // One has its answer, which cannot be recorded; the other one decides on a call, and so does
    // not begin it.
    gates.open("answers");
    gates.open("works");
    in_time(world.clock.wait_for_sleepers(3)).await;
    for (id, status) in
        [("answers", Status::Running), ("works", Status::Running), ("late", Status::Queued)]
    {
        assert_eq!(host.get(id).await.status(), status, "{id}");
    }
    assert_eq!(called.load(Ordering::SeqCst), 0, "no call begins that is not on record");
    assert_eq!(gates.inside(), 1, "what was not recorded stops nobody");

    disk.accept().expect("the disk accepts");
    world.clock.advance(PAUSE_MAX);
    for id in ["canceled", "late", "new"] {
        gates.open(id);
    }
    host.spawn(&named("new", "answers")).await;
    let this = Answer::Text("this".into());
    host.client().named("me").answer("asks", None, this).await.expect("taken");
    for (id, status) in [
        ("answers", Status::Completed),
        ("works", Status::Completed),
        ("canceled", Status::Completed),
        ("late", Status::Completed),
        ("new", Status::Completed),
        ("asks", Status::Completed),
    ] {
        let run = host.end(id).await;
        assert_eq!(run.status(), status, "{id}");
        println!("kept {id} {}", status.as_str());
    }
    assert_eq!(host.view("works").await.stop_reason, Some(StopReason::FinalResponse));
    assert_eq!(host.get("answers").await.state.reply.result().as_deref(), Some("done answers"));
    assert_eq!(called.load(Ordering::SeqCst), 1, "begun once it was on record");
    println!("all is well");
}

#[tokio::test]
async fn case_68_a_host_whose_disk_refuses_for_longer_than_its_lease_stands_still_and_goes_on() {
    let Some((folder, way)) = told() else {
        let name = "case_68_a_host_whose_disk_refuses_for_longer_than_its_lease_stands_still_and_\
                    goes_on";
        return in_children(name).await;
    };
    let disk = Disk::new(way, &folder);
    if !is_possible(&disk) {
        return;
    }
    let (mut world, gates) = (world(&folder), Gates::new());
    world.settings.lease = LEASE_SHORT;
    let called = agents(&mut world, &gates);
    let host = world.start().await;
    host.spawn(&named("works", "works")).await;
    gates.have_come(1).await;

    disk.refuse().expect("the disk refuses");
    // It cannot say any more that it lives: others may soon take the run.
    let stands = async {
        while !host.controller.stands_still() {
            tokio::task::yield_now().await;
        }
    };
    soon("it stands still", stands).await;
    gates.open("works");
    host.settle().await;
    assert_eq!(gates.inside(), 1, "its guest is kept");
    assert_eq!(host.kinds("works").await, ["queued", "started"]);
    assert_eq!(called.load(Ordering::SeqCst), 0);

    disk.accept().expect("the disk accepts");
    let run = host.end("works").await;
    assert_eq!(run.status(), Status::Completed);
    let journal = host.journal("works").await;
    assert_eq!((count(&journal, "lost"), count(&journal, "resumed")), (0, 0));
    assert_eq!(count(&journal, "tool_call_scheduled"), 1);
    assert_eq!(called.load(Ordering::SeqCst), 1);
    println!("kept works {}", run.status().as_str());
    println!("all is well");
}
