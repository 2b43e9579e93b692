//! Threads that offer the processor, as Linux divides it.

use std::future::poll_fn;
use std::task::Poll;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Handle};

use super::*;

/// Polls that two threads of one processor make, and how often it is the other's after one.
fn polls_and_changes(threads: fn(&Handle) -> ExchangeThreads) -> (usize, usize) {
    const POLLS: usize = 500;
    let allowed = sched_getaffinity(None).unwrap();
    let one = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
    let runtimes = ["one", "two"].map(|name| {
        let pin = move || {
            let mut only = CpuSet::new();
            only.set(one);
            sched_setaffinity(None, &only).unwrap();
        };
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name(name).on_thread_start(pin).build().unwrap()
    });
    let present = Arc::new(AtomicUsize::new(0));
    let order = Arc::<Mutex<Vec<String>>>::default();
    let tasks = runtimes.each_ref().map(|runtime| {
        let (present, order) = (Arc::clone(&present), Arc::clone(&order));
        let mut polls = 0;
        threads(runtime.handle()).spawn(poll_fn(move |context| {
            if polls == 0 {
                present.fetch_add(1, Ordering::Relaxed);
            }
            polls += 1;
            // Polls before the other is there, too, do not count.
            if present.load(Ordering::Relaxed) == 2 {
                let name = std::thread::current().name().unwrap_or_default().to_owned();
                let mut order = order.lock().unwrap();
                order.push(name);
                if order.len() >= POLLS {
                    return Poll::Ready(());
                }
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    });
    let [one, two] = &runtimes;
    let [first, second] = tasks;
    one.block_on(first).unwrap();
    two.block_on(second).unwrap();
    let order = order.lock().unwrap();
    (order.len(), order.windows(2).filter(|pair| pair[0] != pair[1]).count())
}

/// A thread that has a claim to a processor keeps it until the kernel's next tick otherwise, whoever
/// waits.
#[test]
fn exchanges_of_a_call_that_used_up_its_slice_offer_the_processor_after_each_poll() {
    let (polls, changes) = polls_and_changes(ExchangeThreads::cooperative);
    assert!(changes > polls / 4, "{changes} in {polls}");
    let (polls, changes) = polls_and_changes(ExchangeThreads::of);
    assert!(changes < polls / 4, "{changes} in {polls}");
}
