//! The claims of a host, and its looks for work.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use taskrun::error::ControllerError;
use taskrun::spawn::SpawnRequest;
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::layer::Layer;
use taskrun_journal::list::ListFilter;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::{
    Append, AppendOutcome, Claim, CreateOutcome, JointOutcome, NewRun, Prospect, Store, StoreError,
};
use taskrun_store::MemoryStore;
use tokio::sync::{Notify, Semaphore};

use crate::native::{ClosurePlanner, Native, Op, Planned, World, answer, request};

/// A store that counts claims, and in which nobody who looks finds any work.
struct Blind {
    inner: Arc<MemoryStore>,
    claims: AtomicU64,
}

#[async_trait]
impl Layer for Blind {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.inner.claim(claim).await
    }

    async fn prospect(&self, _: &Claim) -> Result<Prospect, StoreError> {
        Ok(Prospect::Nothing)
    }
}

/// The task of a run whose acceptance is heard of in any case.
const AT_ONCE: &str = "at once";

/// A store that counts writes, and in which a run that is accepted is heard of when it is let.
struct Heard {
    inner: Arc<MemoryStore>,
    creations: AtomicU64,
    claims: AtomicU64,
    appends: AtomicU64,
    accepted: Notify,
    told: Semaphore,
}

#[async_trait]
impl Layer for Heard {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError> {
        self.creations.fetch_add(1, Ordering::SeqCst);
        self.inner.create(run).await
    }

    async fn create_and_claim(
        &self,
        run: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        self.creations.fetch_add(1, Ordering::SeqCst);
        let is_told = run.run.spec.task == AT_ONCE;
        let both = self.inner.create_and_claim(run, claim).await;
        self.accepted.notify_one();
        if !is_told {
            self.told.acquire().await.expect("it stays open").forget();
        }
        both
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        let runs = self.inner.claim(claim).await?;
        self.claims.fetch_add(u64::from(!runs.is_empty()), Ordering::SeqCst);
        Ok(runs)
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        self.appends.fetch_add(1, Ordering::SeqCst);
        self.inner.append(append).await
    }
}

async fn heard(slots: usize) -> (Arc<Heard>, Native) {
    let inner = Arc::new(MemoryStore::new());
    let heard = Arc::new(Heard {
        inner: Arc::clone(&inner),
        creations: AtomicU64::new(0),
        claims: AtomicU64::new(0),
        appends: AtomicU64::new(0),
        accepted: Notify::new(),
        told: Semaphore::new(0),
    });
    let mut world = World::over(heard.clone(), inner.clone(), inner);
    world.settings.slots = slots;
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    world.agent(
        "waits",
        ClosurePlanner::new(|_, _| async { std::future::pending::<Planned>().await }),
    );
    let host = world.start().await;
    // While it looks for runs of before, none begins as it is accepted.
    host.settle().await;
    (heard, host)
}

/// On disk each write is a commit.
#[tokio::test]
async fn a_run_for_which_there_is_a_slot_is_written_when_it_is_accepted_and_when_it_ends() {
    let (heard, host) = heard(2).await;
    for runs in 1..=3 {
        heard.told.add_permits(1);
        let id = host.spawn(&request("a", "x")).await;
        assert_eq!(host.end(&id).await.status(), Status::Completed);
        let count = |of: &AtomicU64| of.load(Ordering::SeqCst);
        let seen = (count(&heard.creations), count(&heard.claims), count(&heard.appends));
        assert_eq!(seen, (runs, 0, runs));
    }
}

/// A hand-over to a task of the runtime would wake a thread.
#[tokio::test]
async fn a_run_is_accepted_by_the_task_that_asks_where_the_store_answers_at_once() {
    let (heard, host) = heard(2).await;
    let asked = request("a", AT_ONCE);
    let id = host.spawn(&asked).now_or_never().expect("it is accepted");
    assert_eq!(heard.creations.load(Ordering::SeqCst), 1);
    assert_eq!(host.end(&id).await.status(), Status::Completed);
    assert_eq!(heard.claims.load(Ordering::SeqCst), 0);
}

/// It was taken: nobody else would begin it before the host looks after its own runs.
#[tokio::test]
async fn a_run_begins_whose_acceptance_nobody_waits_for_any_more() {
    let (heard, host) = heard(2).await;
    let asked = request("a", "x");
    tokio::select! {
        _ = host.spawn(&asked) => panic!("it was not told"),
        () = heard.accepted.notified() => {}
    }
    heard.told.add_permits(1);
    let all = host.client().list(&ListFilter::default(), None, 9).await.expect("lists");
    let id = all.runs[0].id().to_string();
    assert_eq!(host.end(&id).await.status(), Status::Completed);
}

/// It stands in the store as one that is executed here.
#[tokio::test]
async fn a_run_begins_of_which_the_store_does_not_say_that_it_was_taken() {
    let mut world = World::new();
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    world.store.lose_answer(Op::Create, 1);
    let lost = host.client().spawn(&request("a", "x")).await;
    assert!(matches!(lost, Err(ControllerError::Storage(StoreError::Unknown { .. }))), "{lost:?}");
    let all = host.client().list(&ListFilter::default(), None, 9).await.expect("lists");
    let run = host.end(all.runs[0].id().as_str()).await;
    assert_eq!((run.status(), run.state.epoch), (Status::Completed, 1));
}

/// The answer to a request for an id that is taken may be lost, too.
#[tokio::test]
async fn a_run_that_works_is_not_begun_again_by_a_request_for_its_id() {
    let mut world = World::new();
    let plans = Arc::new(AtomicU64::new(0));
    world.agent("waits", counted(&plans));
    let host = world.start().await;
    let asked = SpawnRequest { id: Some("r".to_owned()), ..request("waits", "x") };
    host.spawn(&asked).await;
    host.settle().await;
    assert_eq!(plans.load(Ordering::SeqCst), 1);
    world.store.lose_answer(Op::Create, 1);
    let lost = host.client().spawn(&asked).await;
    assert!(matches!(lost, Err(ControllerError::Storage(StoreError::Unknown { .. }))), "{lost:?}");
    host.settle().await;
    assert_eq!(plans.load(Ordering::SeqCst), 1);
}

/// A store that keeps a run without taking it, and does not say so before another claim has.
struct Unsaid {
    inner: Arc<MemoryStore>,
    taken: Notify,
}

#[async_trait]
impl Layer for Unsaid {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn create_and_claim(&self, run: NewRun, _: Claim) -> Result<JointOutcome, StoreError> {
        self.inner.create(run).await?;
        self.taken.notified().await;
        Err(StoreError::Unknown { detail: "nobody said".to_owned() })
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        let runs = self.inner.claim(claim).await?;
        if !runs.is_empty() {
            self.taken.notify_one();
        }
        Ok(runs)
    }
}

/// The answer to its acceptance does not say that it was taken, either.
#[tokio::test]
async fn a_run_that_another_claim_took_is_not_begun_again() {
    let inner = Arc::new(MemoryStore::new());
    let unsaid = Arc::new(Unsaid { inner: Arc::clone(&inner), taken: Notify::new() });
    let mut world = World::over(unsaid, inner.clone(), inner);
    let plans = Arc::new(AtomicU64::new(0));
    world.agent("waits", counted(&plans));
    let host = world.start().await;
    host.settle().await;
    let lost = host.client().spawn(&request("waits", "x")).await;
    assert!(matches!(lost, Err(ControllerError::Storage(StoreError::Unknown { .. }))), "{lost:?}");
    host.settle().await;
    assert_eq!(plans.load(Ordering::SeqCst), 1);
}

/// An agent that never answers, and counts how often it is asked.
fn counted(plans: &Arc<AtomicU64>) -> ClosurePlanner {
    let inside = Arc::clone(plans);
    ClosurePlanner::new(move |_, _| {
        inside.fetch_add(1, Ordering::SeqCst);
        async { std::future::pending::<Planned>().await }
    })
}

/// It would be of a host that is not in the list any more.
#[tokio::test]
async fn a_controller_that_closes_waits_for_a_run_that_is_just_accepted() {
    let (heard, host) = heard(2).await;
    let asked = request("waits", "x");
    let mut accepted = pin!(host.spawn(&asked));
    tokio::select! {
        _ = &mut accepted => panic!("it was not told"),
        () = heard.accepted.notified() => {}
    }
    let mut closed = pin!(host.controller.close(Duration::from_secs(3600)));
    tokio::select! {
        biased;
        _ = &mut closed => panic!("one is being accepted"),
        () = host.settle() => {}
    }
    heard.told.add_permits(1);
    let (id, closed) = tokio::join!(accepted, closed);
    assert_eq!(closed.stragglers, []);
    let id = RunId::new(&id).expect("an id");
    let run = heard.inner.get(&id).await.expect("gets").expect("it is there");
    assert_eq!((run.status(), run.state.hold), (Status::Canceled, Hold::Nobody));
}

/// Each begins as it is accepted, while there are slots.
#[tokio::test]
async fn a_run_that_is_accepted_beside_another_one_does_not_wait_for_that() {
    let (heard, host) = heard(2).await;
    let (first, second) = (request("waits", "x"), request("a", AT_ONCE));
    let mut first = pin!(host.spawn(&first));
    tokio::select! {
        _ = &mut first => panic!("it was not told"),
        () = heard.accepted.notified() => {}
    }
    let second = host.spawn(&second).await;
    assert_eq!(host.end(&second).await.status(), Status::Completed);
    heard.told.add_permits(1);
    host.reach(&first.await, Status::Running).await;
    assert_eq!(heard.claims.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_run_for_which_there_is_no_slot_waits_for_one() {
    let (heard, host) = heard(1).await;
    heard.told.add_permits(9);
    let first = host.spawn(&request("waits", "x")).await;
    host.reach(&first, Status::Running).await;
    let second = host.spawn(&request("a", "x")).await;
    assert_eq!(host.get(&second).await.status(), Status::Queued);
    let third = host.spawn(&request("a", "x")).await;
    host.client().cancel(&first, None).await.expect("cancels");
    for waited in [second, third] {
        assert_eq!(host.end(&waited).await.status(), Status::Completed);
    }
    assert_eq!(heard.claims.load(Ordering::SeqCst), 2);
    // Once none waits any more, the next one begins as it is accepted.
    host.settle().await;
    let last = host.spawn(&request("a", "x")).await;
    assert_eq!(host.end(&last).await.status(), Status::Completed);
    assert_eq!(heard.claims.load(Ordering::SeqCst), 2);
}

/// A host claims what is accepted by itself without a look, and does not claim once more where that
/// left slots free: in a store on disk each is a question, or a transaction, for each run.
#[tokio::test]
async fn a_host_claims_a_run_that_it_accepts_once_and_without_a_look() {
    let inner = Arc::new(MemoryStore::new());
    let blind = Arc::new(Blind { inner: inner.clone(), claims: AtomicU64::new(0) });
    let mut world = World::over(blind.clone(), inner.clone(), inner);
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    for runs in 1..=3 {
        let id = host.spawn(&request("a", "x")).await;
        assert_eq!(host.end(&id).await.status(), Status::Completed);
        // One when it began.
        let claims = blind.claims.load(Ordering::SeqCst);
        assert!(claims <= 1 + runs, "{claims} claims of {runs} runs");
    }
}
