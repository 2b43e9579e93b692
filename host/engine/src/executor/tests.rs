//! Tasks on threads of an executor.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use futures::executor::block_on;
use futures::task::SpawnExt;

use super::*;

fn start(count: usize, name: &str) -> Executor {
    Executor::start(count, name, || ()).expect("threads")
}

/// Times that the threads of a name went to sleep.
#[cfg(target_os = "linux")]
fn sleeps(name: &str) -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux tells").map_while(Result::ok);
    let text = |folder: &std::path::Path, file| {
        std::fs::read_to_string(folder.join(file)).unwrap_or_default()
    };
    let folders = threads.map(|thread| thread.path());
    let named = folders.filter(|folder| text(folder, "comm").trim() == name);
    let sleeps = |folder: std::path::PathBuf| {
        let status = text(&folder, "status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("it is told").trim().parse::<usize>().expect("a number")
    };
    named.map(sleeps).sum()
}

#[cfg(target_os = "linux")]
#[test]
fn a_task_that_becomes_ready_wakes_one_thread() {
    const TIMES: usize = 300;
    const THREADS: usize = 4;
    const NAME: &str = "one-is-woken";
    let executor = start(THREADS, NAME);
    let all_wait = || {
        while lock(&executor.spawner().0.queue).waiting < THREADS {
            std::thread::yield_now();
        }
    };
    let (ask, mut asked) = futures::channel::mpsc::unbounded::<()>();
    let (answer, answers) = mpsc::channel();
    let task = executor.spawner().spawn(async move {
        use futures::StreamExt;
        while asked.next().await.is_some() {
            answer.send(()).expect("it is waited for");
        }
    });
    all_wait();
    let before = sleeps(NAME);
    for _ in 0..TIMES {
        all_wait();
        ask.unbounded_send(()).expect("it listens");
        answers.recv().expect("it answers");
    }
    all_wait();
    let slept = sleeps(NAME) - before;
    assert!((TIMES / 2..TIMES * 3 / 2).contains(&slept), "{slept} in {TIMES}");
    drop(ask);
    assert_eq!(block_on(task), Some(()));
}

/// From outside, and by a task that is being polled.
#[test]
fn tasks_that_become_ready_together_have_a_thread_each() {
    let executor = start(3, "together");
    let met = Arc::new(Barrier::new(3));
    let spawner = executor.spawner().clone();
    let meets = |met: &Arc<Barrier>| {
        let met = Arc::clone(met);
        async move {
            met.wait();
        }
    };
    let (second, third) = (meets(&met), meets(&met));
    let first = executor.spawner().spawn(async move {
        let others = [spawner.spawn(second), spawner.spawn(third)];
        met.wait();
        for other in others {
            other.await.expect("it ends");
        }
    });
    assert_eq!(block_on(first), Some(()));
    let met = Arc::new(Barrier::new(3));
    let tasks = [(); 3].map(|()| executor.spawner().spawn(meets(&met)));
    for task in tasks {
        assert_eq!(block_on(task), Some(()));
    }
}

/// Else one that is never through would keep others from the only thread.
#[test]
fn a_task_that_wakes_itself_goes_behind_the_others() {
    let executor = start(1, "turns");
    let polls = Arc::new(AtomicUsize::new(0));
    let turns = |other: Option<FallibleTask<()>>| {
        let polls = Arc::clone(&polls);
        async move {
            for _ in 0..100 {
                polls.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            if let Some(other) = other {
                other.await.expect("it ends");
            }
        }
    };
    let endless = executor.spawner().spawn(async {
        loop {
            tokio::task::yield_now().await;
        }
    });
    let one = executor.spawner().spawn(turns(None));
    let both = executor.spawner().spawn(turns(Some(one)));
    assert_eq!(block_on(both), Some(()));
    assert_eq!(polls.load(Ordering::Relaxed), 200);
    assert_eq!(block_on(endless.cancel()), None);
}

#[test]
fn a_panic_ends_its_task_and_not_its_thread() {
    let executor = start(1, "panic");
    let task = executor.spawner().spawn(async { panic!("of a test") });
    assert_eq!(block_on(task), None::<()>);
    assert_eq!(block_on(executor.spawner().spawn(async { 7 })), Some(7));
}

#[test]
fn what_is_in_the_queue_of_an_executor_is_dropped_with_it() {
    let executor = start(1, "dropped");
    let (begun, began) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let busy = executor.spawner().spawn(async move {
        begun.send(()).expect("it is waited for");
        released.recv().expect("it is released");
        7
    });
    began.recv().expect("it begins");
    let held = Arc::new(());
    let theirs = Arc::clone(&held);
    let queued = executor.spawner().spawn(async move { drop(theirs) });
    let spawner = executor.spawner().clone();
    drop(executor);
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!(block_on(queued), None);
    assert!(spawner.spawn_with_handle(async {}).is_err());
    assert_eq!(block_on(spawner.spawn(async {})), None);
    release.send(()).expect("it waits");
    assert_eq!(block_on(busy), Some(7), "one that is being polled is polled to its pause");
}
