//! The division of the memory for guests.

/// Bytes of an instance that come with its slot. A small guest in Rust begins with half of them.
pub(super) const FIRST_BYTES: u64 = 2 << 20;
/// The unit in which the pool is taken from, so that a guest that grows page by page asks rarely.
const STEP_BYTES: u64 = 1 << 20;
/// A tenant has at most as many times the bytes that are left free.
const TIMES_FREE: u64 = 3;
/// The part of the pool that is for calls of runs beneath others.
const BENEATH_PART: u64 = 4;
/// The part of the slots that keep their first bytes for themselves, also while nobody has them:
/// those that are lent come back only when a guest with much memory ends. Guests that wait for runs
/// keep theirs meanwhile, and those runs need some: so half of them is never lent.
const SLOTS_KEPT_PART: u32 = 2;

/// A part of the pool with an account of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pot {
    /// For all calls.
    Shared,
    /// For calls of runs that others have started.
    Beneath,
}

/// The division of the memory for guests, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// Bytes for all calls, beside those that slots lend.
    pub(super) shared: u64,
    /// Bytes for calls of runs that others have started.
    pub(super) beneath: u64,
    /// Slots that may lend their first bytes while nobody has them.
    pub(super) lendable: u32,
}

/// Most slots for instances where all guests together have so many bytes: first bytes take half of
/// them at most.
pub(crate) fn instances_within(bytes: u64) -> u32 {
    u32::try_from(bytes / 2 / FIRST_BYTES).unwrap_or(u32::MAX).max(1)
}

/// Bytes that a tenant can have beside the first ones of its instances and without runs beneath
/// others, where all guests together have so many bytes and there are so many slots.
pub(crate) fn tenant_most(bytes: u64, instances: u32) -> u64 {
    Parts::of(bytes, instances).most_of_tenant()
}

impl Pot {
    pub(super) const COUNT: usize = 2;

    /// The pots for calls of a run, the first one first.
    pub(super) fn of(is_beneath: bool) -> &'static [Self] {
        match is_beneath {
            true => &[Self::Shared, Self::Beneath],
            false => &[Self::Shared],
        }
    }
}

impl Parts {
    pub(super) fn of(bytes: u64, instances: u32) -> Self {
        let pool = bytes.saturating_sub(FIRST_BYTES.saturating_mul(instances.into()));
        let beneath = pool / BENEATH_PART;
        let lendable = instances - instances.div_ceil(SLOTS_KEPT_PART);
        Self { shared: pool - beneath, beneath, lendable }
    }

    /// The most that a tenant can have of what is for all calls.
    pub(super) fn most_of_tenant(&self) -> u64 {
        let lent = FIRST_BYTES.saturating_mul(self.lendable.into());
        let most = self.shared.saturating_add(lent) / (TIMES_FREE + 1) * TIMES_FREE;
        most / STEP_BYTES * STEP_BYTES
    }

    /// Slots that lend their first bytes where so many are taken of what is for all calls.
    pub(super) fn lent_for(&self, all: u64) -> u32 {
        let slots = all.saturating_sub(self.shared).div_ceil(FIRST_BYTES);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }
}

/// True if a tenant may have so many bytes of a pot of which all together have so many.
pub(super) fn leaves_enough(pot: u64, all: u64, of_tenant: u64) -> bool {
    let free = pot.checked_sub(all);
    free.is_some_and(|free| of_tenant <= free.saturating_mul(TIMES_FREE))
}

/// The bytes of an instance that come from the pool, in whole steps.
pub(super) fn beyond_first(bytes: u64) -> u64 {
    bytes.saturating_sub(FIRST_BYTES).div_ceil(STEP_BYTES).saturating_mul(STEP_BYTES)
}
