//! Memory of all guests together: the bound that keeps the host alive while each guest keeps to its
//! own limit.
//!
//! With its slot an instance has its first bytes, so a call that needs no more asks nobody. Bytes
//! beyond them are taken from a pool, and given back when the instance is gone. A call that begins
//! with more waits for it, without a slot, behind those of its tenant that came before; one that
//! grows is refused where there is not enough: if it waited with its memory in its hands, others
//! with theirs might wait for it.
//!
//! A tenant has at most three times as much as it leaves free: three quarters if it is alone, and
//! however many tenants take all that they may, the next one finds a part. A quarter of the pool is
//! for calls of runs that others have started, by the same rule: a guest that waits for such a run
//! keeps its memory meanwhile.

mod parts;
mod queue;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskrun::scope::CallScope;
use taskrun_journal::stop::CallAbort;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use self::parts::{FIRST_BYTES, Parts, Pot, beyond_first, leaves_enough};
use crate::admission::Admission;

pub(crate) use self::parts::{instances_within, tenant_most};

/// The pool. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct GuestMemory(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    parts: Parts,
    /// The slots; those that nobody has lend their first bytes.
    slots: Admission,
    held: Mutex<Held>,
    /// Calls that wait to begin.
    waiting: AtomicU32,
    /// Told whenever something is given back while calls wait.
    freed: Notify,
}

/// Bytes that are taken.
#[derive(Debug, Default)]
struct Held {
    /// Those of each pot.
    all: [u64; Pot::COUNT],
    /// Slots whose first bytes are among them.
    lent: u32,
    by_tenant: HashMap<String, Account>,
    /// The number of the next call that waits.
    next: u64,
}

/// The bytes that a tenant has, and its calls that wait for some.
#[derive(Debug, Default)]
struct Account {
    bytes: [u64; Pot::COUNT],
    /// By the last pot that they may take from: those of runs that nobody started from within, and
    /// those beneath others. Each began to wait before the one behind it.
    waits: [VecDeque<u64>; Pot::COUNT],
}

/// The bytes of one call's instance beyond the first ones, until this is dropped.
#[derive(Debug)]
pub(crate) struct CallMemory {
    pool: GuestMemory,
    /// Tells the tenant, and where its run stands.
    scope: Arc<CallScope>,
    taken: [AtomicU64; Pot::COUNT],
}

/// The bytes of memory that an instance of a component begins with: at most so many, until one has
/// shown it.
#[derive(Debug)]
pub(crate) struct BeginBytes(AtomicU64);

/// The refusal of memory: other guests have what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoMemory;

impl GuestMemory {
    /// So many bytes for all guests, of which the first ones of each slot come with that.
    pub(crate) fn new(bytes: u64, instances: u32, slots: Admission) -> Self {
        let parts = Parts::of(bytes, instances);
        let (held, waiting, freed) = (Mutex::default(), AtomicU32::new(0), Notify::new());
        Self(Arc::new(Pool { parts, slots, held, waiting, freed }))
    }

    /// The memory of a call whose instance begins with so many bytes, as soon as there is as much.
    /// Of more than a tenant may ever have that is waited for, and the instance is refused the rest.
    ///
    /// # Errors
    /// [`CallAbort::Unavailable`] if there is not as much in the time that the call may take, or in
    /// a minute; [`CallAbort::Stopped`] if the call is stopped while it waits.
    ///
    /// # Cancel safety
    /// Dropping the future takes nothing, and gives up the place in the queue.
    pub(crate) async fn begin(
        &self,
        scope: &Arc<CallScope>,
        bytes: u64,
    ) -> Result<CallMemory, CallAbort> {
        let (pool, scope, taken) = (self.clone(), Arc::clone(scope), Default::default());
        let memory = CallMemory { pool, scope, taken };
        match beyond_first(bytes) {
            0 => Ok(memory),
            wanted => {
                let wanted = wanted.min(self.0.parts.most_of_tenant());
                queue::wait(&memory, wanted).await.map(|()| memory)
            }
        }
    }

    /// The most bytes that one instance can ever have.
    pub(crate) fn most_of_instance(&self) -> u64 {
        FIRST_BYTES.saturating_add(self.0.parts.most_of_tenant())
    }
}

impl Pool {
    /// The bytes of a pot, with those that slots lend or would lend.
    fn bytes(&self, held: &Held, pot: Pot) -> u64 {
        let free = self.slots.free().min(self.parts.lendable.saturating_sub(held.lent));
        let lent = FIRST_BYTES.saturating_mul(held.lent.saturating_add(free).into());
        match pot {
            Pot::Shared => self.parts.shared.saturating_add(lent),
            Pot::Beneath => self.parts.beneath,
        }
    }

    /// Takes so many bytes from the first pot that has them for a tenant.
    fn take(
        &self,
        held: &mut Held,
        (tenant, pots): (&str, &[Pot]),
        bytes: u64,
    ) -> Result<Pot, NoMemory> {
        let has = held.by_tenant.get(tenant).map_or([0; Pot::COUNT], |account| account.bytes);
        for pot in pots.iter().copied() {
            let at = pot as usize;
            let (all, of_tenant) =
                (held.all[at].saturating_add(bytes), has[at].saturating_add(bytes));
            if leaves_enough(self.bytes(held, pot), all, of_tenant) && self.borrow(held, pot, all) {
                held.all[at] = all;
                held.by_tenant.entry(tenant.to_owned()).or_default().bytes[at] = of_tenant;
                return Ok(pot);
            }
        }
        Err(NoMemory)
    }

    /// Borrows the first bytes of free slots where a pot has not so many by itself; false if there
    /// are too few of these.
    fn borrow(&self, held: &mut Held, pot: Pot, all: u64) -> bool {
        let lent = match pot {
            Pot::Shared => self.parts.lent_for(all).max(held.lent),
            Pot::Beneath => held.lent,
        };
        let has_lent = lent == held.lent || self.slots.lend(lent - held.lent);
        if has_lent {
            held.lent = lent;
        }
        has_lent
    }

    fn give_back(&self, tenant: &str, bytes: [u64; Pot::COUNT]) {
        let mut held = self.held();
        for (all, bytes) in held.all.iter_mut().zip(bytes) {
            *all = all.saturating_sub(bytes);
        }
        let lent = self.parts.lent_for(held.all[Pot::Shared as usize]);
        self.slots.take_back(held.lent.saturating_sub(lent));
        held.lent = lent.min(held.lent);
        if let Some(account) = held.by_tenant.get_mut(tenant) {
            for (has, bytes) in account.bytes.iter_mut().zip(bytes) {
                *has = has.saturating_sub(bytes);
            }
        }
        held.forget_if_empty(tenant);
        drop(held);
        self.tell();
    }

    /// Has the calls that wait look again, if there are some.
    fn tell(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn forget_if_empty(&mut self, tenant: &str) {
        let is_empty = |account: &Account| {
            account.bytes == [0; Pot::COUNT] && account.waits.iter().all(VecDeque::is_empty)
        };
        if self.by_tenant.get(tenant).is_some_and(is_empty) {
            self.by_tenant.remove(tenant);
        }
    }
}

impl CallMemory {
    /// Takes what an instance of so many bytes in all still lacks.
    ///
    /// # Errors
    /// [`NoMemory`]; then nothing was taken.
    pub(crate) fn cover(&self, bytes: u64) -> Result<(), NoMemory> {
        let taken = self.taken();
        let wanted = beyond_first(bytes);
        match wanted > taken {
            true => self.take(&mut self.pool.0.held(), wanted - taken),
            false => Ok(()),
        }
    }

    /// A slot for the instance. A call that has taken nothing waits for it without a bound; one
    /// that has waits no longer than for memory, as it keeps from others what it has.
    ///
    /// # Errors
    /// [`CallAbort::Unavailable`] if a call that has taken memory waits for too long;
    /// [`CallAbort::Stopped`] if the call is stopped while it waits.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(crate) async fn enter(&self, slots: &Admission) -> Result<OwnedSemaphorePermit, CallAbort> {
        match self.taken() {
            0 => slots.enter(&self.scope).await,
            bytes => queue::wait_for_slot(self, bytes, slots).await,
        }
    }

    /// The bytes that it has taken.
    fn taken(&self) -> u64 {
        self.taken.iter().map(|taken| taken.load(Ordering::Relaxed)).sum()
    }

    fn take(&self, held: &mut Held, bytes: u64) -> Result<(), NoMemory> {
        let pot = self.pool.0.take(held, (self.tenant(), self.pots()), bytes)?;
        self.taken[pot as usize].fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn tenant(&self) -> &str {
        &self.scope.context().tenant
    }

    /// The pots that it may take from, the first one first.
    fn pots(&self) -> &'static [Pot] {
        Pot::of(self.scope.context().parent_run_id.is_some())
    }
}

impl Drop for CallMemory {
    fn drop(&mut self) {
        let taken = self.taken.each_mut().map(|taken| *taken.get_mut());
        match taken == [0; Pot::COUNT] {
            // Its slot is free, which may lend its first bytes.
            true => self.pool.0.tell(),
            false => self.pool.0.give_back(self.tenant(), taken),
        }
    }
}

impl BeginBytes {
    pub(crate) fn at_most(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    pub(crate) fn known(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes note of an instance that began with so many.
    pub(crate) fn note(&self, bytes: u64) {
        if bytes < self.known() {
            self.0.fetch_min(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
