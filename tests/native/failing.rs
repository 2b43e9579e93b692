//! A store that fails when it is told to, and otherwise is the one it wraps.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use taskrun_journal::dispatch::{AttemptOutcome, Dispatch};
use taskrun_journal::ids::HostId;
use taskrun_journal::layer::Layer;
use taskrun_journal::list::{Scope, TreePage, TreeQuery};
use taskrun_journal::run::Run;
use taskrun_journal::store::{
    Append, AppendOutcome, BatchOutcome, Claim, CreateOutcome, DispatchClaim, DispatchQuery,
    Dispatches, JointOutcome, NewBatch, NewRun, ReportChange, Store, StoreError,
};
use taskrun_journal::time::Timestamp;
use tokio::sync::watch;

/// A kind of write to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A new run.
    Create,
    /// Claims of runs.
    Claim,
    /// Appends of events.
    Append,
    /// A batch with its entries.
    Batch,
    /// A dispatch that is taken, or of which it is said what became of it.
    Dispatch,
}

/// On which side of a write the process stands still for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The write is not done.
    Before,
    /// The write is done, and the caller does not hear of it.
    After,
}

/// The failure of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is not done, and may be later.
    Full,
    /// It is not done, and never will be.
    Refused,
    /// It is done, and the answer does not say so.
    Unknown,
    /// It is not done: the journal has other events there.
    Conflict,
}

/// Fails writes of one kind, or holds them up.
pub struct Failing {
    inner: Arc<dyn Store>,
    cut: Mutex<Option<(Op, u64, Side)>>,
    is_cut: watch::Sender<bool>,
    fails: Mutex<Vec<(Op, u64, Fault)>>,
    all_fail: watch::Sender<Option<Op>>,
    seen: [AtomicU64; 5],
    tree_reads: AtomicU64,
    failing_tree_reads: AtomicU64,
    held: watch::Sender<Option<Op>>,
    held_answers: watch::Sender<Option<Op>>,
    waiting: watch::Sender<u64>,
}

impl Failing {
    /// Fails nothing yet.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            cut: Mutex::default(),
            is_cut: watch::Sender::new(false),
            fails: Mutex::default(),
            all_fail: watch::Sender::new(None),
            seen: Default::default(),
            tree_reads: AtomicU64::new(0),
            failing_tree_reads: AtomicU64::new(0),
            held: watch::Sender::new(None),
            held_answers: watch::Sender::new(None),
            waiting: watch::Sender::new(0),
        }
    }

    /// Fails the `nth` write of a kind from now on, the next one being 1.
    pub fn fail(&self, op: Op, nth: u64) {
        self.fail_so(op, nth, Fault::Full);
    }

    /// The same for one that cannot be done later either.
    pub fn refuse(&self, op: Op, nth: u64) {
        self.fail_so(op, nth, Fault::Refused);
    }

    /// Does the `nth` write of a kind, and does not say so.
    pub fn lose_answer(&self, op: Op, nth: u64) {
        self.fail_so(op, nth, Fault::Unknown);
    }

    /// Says of the `nth` append that it contradicts the journal.
    pub fn contradict(&self, nth: u64) {
        self.fail_so(Op::Append, nth, Fault::Conflict);
    }

    fn fail_so(&self, op: Op, nth: u64, fault: Fault) {
        let nth = self.seen[op as usize].load(Ordering::SeqCst) + nth;
        self.fails.lock().unwrap_or_else(PoisonError::into_inner).push((op, nth, fault));
    }

    /// Fails every write of a kind, or none any more.
    pub fn fail_all(&self, op: Option<Op>) {
        self.all_fail.send_replace(op);
    }

    /// The number of times that a write of a kind was tried.
    #[must_use]
    pub fn tries(&self, op: Op) -> u64 {
        self.seen[op as usize].load(Ordering::SeqCst)
    }

    /// The number of times that somebody read what the runs of a tree used.
    #[must_use]
    pub fn tree_reads(&self) -> u64 {
        self.tree_reads.load(Ordering::SeqCst)
    }

    /// Fails the next so many of those reads.
    pub fn fail_tree_reads(&self, count: u64) {
        self.failing_tree_reads.store(count, Ordering::SeqCst);
    }

    /// Writes of a kind wait until [`Self::release`].
    pub fn hold(&self, op: Op) {
        self.held.send_replace(Some(op));
    }

    /// Writes of a kind are done, and nobody hears of them until [`Self::release`].
    pub fn hold_answers(&self, op: Op) {
        self.held_answers.send_replace(Some(op));
    }

    /// Lets everything go on.
    pub fn release(&self) {
        self.held.send_replace(None);
        self.held_answers.send_replace(None);
    }

    /// Returns when a write waits.
    pub async fn somebody_waits(&self) {
        let mut waiting = self.waiting.subscribe();
        waiting.wait_for(|waiting| *waiting > 0).await.expect("the sender is here");
    }

    /// From the `nth` write of a kind on, the next one being 1, nothing is written any more and
    /// no write returns, as in a process that is about to be killed.
    pub fn cut(&self, op: Op, nth: u64, side: Side) {
        let nth = self.seen[op as usize].load(Ordering::SeqCst) + nth;
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = Some((op, nth, side));
    }

    /// Returns when the point of [`Self::cut`] is reached.
    pub async fn is_cut(&self) {
        let mut cut = self.is_cut.subscribe();
        cut.wait_for(|cut| *cut).await.expect("the sender is here");
    }

    /// True if something is to happen to a claim: none comes with a new run then, so that it happens to
    /// one that comes alone.
    fn claims_are_disturbed(&self) -> bool {
        let op = Some(Op::Claim);
        let is_ahead = |nth: u64| nth > self.tries(Op::Claim);
        let cut = *self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = self.fails.lock().unwrap_or_else(PoisonError::into_inner);
        [&self.held, &self.held_answers, &self.all_fail].iter().any(|armed| *armed.borrow() == op)
            || cut.is_some_and(|(op, nth, _)| op == Op::Claim && is_ahead(nth))
            || fails.iter().any(|(op, nth, _)| *op == Op::Claim && is_ahead(*nth))
    }

    async fn told_late(&self, op: Op) {
        let mut held = self.held_answers.subscribe();
        held.wait_for(|held| *held != Some(op)).await.expect("the sender is here");
    }

    /// Stands still for ever if this is the point to do so, or it has passed.
    async fn stand(&self, op: Op, number: u64, side: Side) {
        let cut = *self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        if cut == Some((op, number, side)) {
            self.is_cut.send_replace(true);
        }
        if *self.is_cut.borrow() {
            std::future::pending::<()>().await;
        }
    }

    async fn pass(&self, op: Op) -> Result<u64, StoreError> {
        let number = self.seen[op as usize].fetch_add(1, Ordering::SeqCst) + 1;
        self.stand(op, number, Side::Before).await;
        if *self.held.borrow() == Some(op) {
            self.waiting.send_modify(|waiting| *waiting += 1);
            let mut held = self.held.subscribe();
            held.wait_for(|held| *held != Some(op)).await.expect("the sender is here");
            self.waiting.send_modify(|waiting| *waiting -= 1);
        }
        let (path, detail) = ("failing".to_owned(), "too big".to_owned());
        match self.fault(op, number) {
            Some(Fault::Full) => Err(StoreError::Full { path }),
            Some(Fault::Refused) => Err(StoreError::Refused { path, detail }),
            Some(Fault::Unknown | Fault::Conflict) | None => Ok(number),
        }
    }

    fn fault(&self, op: Op, number: u64) -> Option<Fault> {
        if *self.all_fail.borrow() == Some(op) {
            return Some(Fault::Full);
        }
        let fails = self.fails.lock().unwrap_or_else(PoisonError::into_inner);
        let this = fails.iter().find(|(one, nth, _)| (*one, *nth) == (op, number));
        this.map(|(_, _, fault)| *fault)
    }

    /// The answer, unless it is lost.
    fn answer<T>(
        &self,
        op: Op,
        number: u64,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let detail = "the answer is lost".to_owned();
        match self.fault(op, number) {
            Some(Fault::Unknown) => Err(StoreError::Unknown { detail }),
            Some(Fault::Full | Fault::Refused | Fault::Conflict) | None => answer,
        }
    }
}

#[async_trait]
impl Layer for Failing {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn create(&self, run: NewRun) -> Result<CreateOutcome, StoreError> {
        let number = self.pass(Op::Create).await?;
        let answer = self.inner.create(run).await;
        self.stand(Op::Create, number, Side::After).await;
        self.told_late(Op::Create).await;
        self.answer(Op::Create, number, answer)
    }

    async fn create_and_claim(
        &self,
        run: NewRun,
        claim: Claim,
    ) -> Result<JointOutcome, StoreError> {
        if self.claims_are_disturbed() {
            return Ok(JointOutcome::Busy(Box::new(run)));
        }
        let number = self.pass(Op::Create).await?;
        let answer = self.inner.create_and_claim(run, claim).await;
        self.stand(Op::Create, number, Side::After).await;
        self.told_late(Op::Create).await;
        self.answer(Op::Create, number, answer)
    }

    async fn create_all(&self, runs: Vec<NewRun>) -> Result<Vec<CreateOutcome>, StoreError> {
        let number = self.pass(Op::Create).await?;
        let answer = self.inner.create_all(runs).await;
        self.stand(Op::Create, number, Side::After).await;
        self.told_late(Op::Create).await;
        self.answer(Op::Create, number, answer)
    }

    async fn batch(&self, batch: NewBatch) -> Result<BatchOutcome, StoreError> {
        let number = self.pass(Op::Batch).await?;
        let answer = self.inner.batch(batch).await;
        self.stand(Op::Batch, number, Side::After).await;
        self.told_late(Op::Batch).await;
        self.answer(Op::Batch, number, answer)
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, StoreError> {
        let number = self.pass(Op::Append).await?;
        if self.fault(Op::Append, number) == Some(Fault::Conflict) {
            return Ok(AppendOutcome::Conflict);
        }
        let answer = self.inner.append(append).await;
        self.stand(Op::Append, number, Side::After).await;
        self.told_late(Op::Append).await;
        self.answer(Op::Append, number, answer)
    }

    async fn tree(
        &self,
        query: &TreeQuery,
        after: Option<u64>,
        limit: usize,
    ) -> Result<TreePage, StoreError> {
        if query.counted_only {
            self.tree_reads.fetch_add(1, Ordering::SeqCst);
            let fewer = |left: u64| left.checked_sub(1);
            let (set, read) = (Ordering::SeqCst, Ordering::SeqCst);
            if self.failing_tree_reads.fetch_update(set, read, fewer).is_ok() {
                return Err(StoreError::Locked { path: "failing".to_owned() });
            }
        }
        self.inner.tree(query, after, limit).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        let number = self.pass(Op::Claim).await?;
        let answer = self.inner.claim(claim).await;
        self.stand(Op::Claim, number, Side::After).await;
        self.told_late(Op::Claim).await;
        self.answer(Op::Claim, number, answer)
    }
}

/// Dispatches whose writes fail, or are held up, with those of a store.
pub struct FailingDispatches {
    inner: Arc<dyn Dispatches>,
    with: Arc<Failing>,
}

impl FailingDispatches {
    /// Those behind, for whoever has this way to the store.
    #[must_use]
    pub fn new(inner: Arc<dyn Dispatches>, with: Arc<Failing>) -> Self {
        Self { inner, with }
    }
}

#[async_trait]
impl Dispatches for FailingDispatches {
    async fn next_dispatch(
        &self,
        subscribers: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        self.inner.next_dispatch(subscribers, now).await
    }

    async fn take_dispatches(&self, claim: DispatchClaim) -> Result<Vec<Dispatch>, StoreError> {
        let number = self.with.pass(Op::Dispatch).await?;
        let answer = self.inner.take_dispatches(claim).await;
        self.with.stand(Op::Dispatch, number, Side::After).await;
        self.with.told_late(Op::Dispatch).await;
        self.with.answer(Op::Dispatch, number, answer)
    }

    async fn settle_dispatch(
        &self,
        dispatch: u64,
        host: &HostId,
        outcome: AttemptOutcome,
    ) -> Result<bool, StoreError> {
        let number = self.with.pass(Op::Dispatch).await?;
        let answer = self.inner.settle_dispatch(dispatch, host, outcome).await;
        self.with.stand(Op::Dispatch, number, Side::After).await;
        self.with.told_late(Op::Dispatch).await;
        self.with.answer(Op::Dispatch, number, answer)
    }

    async fn dispatches(
        &self,
        query: &DispatchQuery,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Dispatch>, StoreError> {
        self.inner.dispatches(query, after, limit).await
    }

    async fn change_dispatch(&self, number: u64, change: ReportChange) -> Result<bool, StoreError> {
        self.inner.change_dispatch(number, change).await
    }

    async fn forget_dispatches(&self, scope: &Scope) -> Result<u64, StoreError> {
        self.inner.forget_dispatches(scope).await
    }

    async fn dispatched(&self) {
        self.inner.dispatched().await;
    }
}
