//! Runs that a host claims in the moment in which it is to end (M-05).

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use taskrun_journal::status::Status;

use super::common::soon;
use super::deployments;
use crate::native::{ClosurePlanner, Op, answer, request};

/// The thread that hands the runs of its host over.
const CLOSER: &str = "closer";

/// Wakes nobody, and holds the closer up when it tells those who wait for the end of their host.
struct HoldUp {
    reached: SyncSender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl Wake for HoldUp {
    fn wake(self: Arc<Self>) {
        // Timers wake as well.
        if std::thread::current().name() == Some(CLOSER) {
            self.reached.send(()).expect("the test waits");
            let goes_on = self.goes_on.lock().expect("nobody panics with it");
            goes_on.recv_timeout(Duration::from_secs(60)).expect("the test lets it go on");
        }
    }
}

/// The run was claimed, and the host hears of it while it tells all others that it is to end: they are
/// told one after the other, and of two things.
#[tokio::test(flavor = "multi_thread")]
async fn m_05_a_run_that_is_claimed_as_its_host_hands_over_is_given_back() {
    let (mut world, shelf, _) = deployments::world();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let door = world.door().await;
    let host = world.start().await;
    world.store.hold(Op::Claim);
    let id = door.spawn(&request("a", "x")).await;
    soon("it is about to be claimed", world.store.somebody_waits()).await;

    // A request waits for the policy, or for the end of the host.
    shelf.begin_writing();
    let client = host.client();
    let nobody = request("nobody", "x");
    let (reached, is_reached) = sync_channel(1);
    let (go_on, goes_on) = sync_channel(1);
    let waker = Waker::from(Arc::new(HoldUp { reached, goes_on: Mutex::new(goes_on) }));
    let mut waiting = pin!(client.spawn(&nobody));
    let waits = async {
        while waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            waiting.set(client.spawn(&nobody));
            tokio::task::yield_now().await;
        }
    };
    soon("it waits", waits).await;

    let (controller, runtime) = (host.controller.clone(), tokio::runtime::Handle::current());
    let closer = std::thread::Builder::new().name(CLOSER.to_owned());
    let closer = closer
        .spawn(move || runtime.block_on(controller.hand_over(Duration::ZERO)))
        .expect("it runs");
    is_reached.recv_timeout(Duration::from_secs(60)).expect("it tells of the end");
    world.store.release();
    let is_let_go = async {
        while door.kinds(&id).await.len() < 3 {
            tokio::task::yield_now().await;
        }
    };
    soon("it is let go", is_let_go).await;
    go_on.send(()).expect("it waits");
    assert_eq!(closer.join().expect("it does not panic").stragglers, []);

    assert_eq!(door.kinds(&id).await, ["queued", "started", "lost"]);
    let next = world.start().await;
    assert_eq!(next.end(&id).await.status(), Status::Completed);
}
