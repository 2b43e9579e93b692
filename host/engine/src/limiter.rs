//! The bound on all memories and tables of one instance together.

use std::sync::Arc;

use taskrun_policy::Limits;
use wasmtime::{Error, ResourceLimiter, Result};

use crate::config::{CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};
use crate::failure::Violation;
use crate::guest_memory::{CallMemory, NoMemory};

/// Counts for one store. A request beyond a limit ends the guest with a typed reason; a failed
/// `memory.grow` would leave that to the guest, most of which answer with an anonymous trap. One
/// beyond the maximum that a memory or table states itself fails, as WebAssembly says.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_bytes: u64,
    /// Bytes with which its memories began.
    begun_bytes: u64,
    memory_bytes_max: u64,
    /// The instance's part of the memory of all guests.
    memory: Arc<CallMemory>,
    table_elements: u64,
    table_elements_max: u64,
}

impl Limiter {
    pub(crate) fn new(limits: &Limits, memory: Arc<CallMemory>) -> Self {
        Self {
            memory_bytes: 0,
            begun_bytes: 0,
            memory_bytes_max: limits.memory_bytes,
            memory,
            table_elements: 0,
            table_elements_max: limits.table_elements.into(),
        }
    }

    /// Bytes with which the memories of the instance began. One that begins without any counts with
    /// what it first grows to.
    pub(crate) fn begun_bytes(&self) -> u64 {
        self.begun_bytes
    }

    fn beyond_memory(&self) -> Error {
        Violation::Memory { limit_bytes: self.memory_bytes_max }.into()
    }

    fn tables(&self) -> Error {
        Violation::Limit { what: "table elements", limit: self.table_elements_max }.into()
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        if is_beyond_own(desired, maximum, self.memory_bytes_max) {
            return Ok(false);
        }
        let grown = self.memory_bytes.saturating_add(desired.saturating_sub(current) as u64);
        if grown > self.memory_bytes_max {
            return Err(self.beyond_memory());
        }
        self.memory.cover(grown).map_err(|NoMemory| Violation::Unavailable)?;
        if current == 0 {
            self.begun_bytes = self.begun_bytes.saturating_add(desired as u64);
        }
        self.memory_bytes = grown;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: Error) -> Result<()> {
        // More than a slot of the pool.
        Err(self.beyond_memory())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        if is_beyond_own(desired, maximum, self.table_elements_max) {
            return Ok(false);
        }
        let grown = self.table_elements.saturating_add(desired.saturating_sub(current) as u64);
        if grown > self.table_elements_max {
            return Err(self.tables());
        }
        self.table_elements = grown;
        Ok(true)
    }

    fn table_grow_failed(&mut self, _: Error) -> Result<()> {
        Err(self.tables())
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }
}

/// True if a memory or table is to grow beyond a maximum below the limit. Such a one is its own:
/// that of the format and the size of a slot are not below a limit.
fn is_beyond_own(desired: usize, maximum: Option<usize>, limit: u64) -> bool {
    maximum.is_some_and(|maximum| desired > maximum && (maximum as u64) < limit)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use taskrun::scope::RunContext;

    use super::*;
    use crate::admission::Admission;
    use crate::apart;
    use crate::guest_memory::GuestMemory;

    /// Under a limit of so many MiB, where a tenant has six beside the first two of each.
    fn limiter_of(mib: u64) -> Limiter {
        let scope = apart::scope(RunContext::default(), Duration::from_secs(1));
        let pool = GuestMemory::new(13 << 20, 1, Admission::new(1));
        let begun = pool.begin(&scope, 0).now_or_never();
        let memory = begun.expect("nothing is waited for").expect("there is as much");
        let limits = Limits { memory_bytes: mib << 20, table_elements: 10, ..Limits::default() };
        Limiter::new(&limits, Arc::new(memory))
    }

    fn limiter() -> Limiter {
        limiter_of(1)
    }

    #[test]
    fn memory_that_all_guests_have_not_is_told_from_the_own_limit() {
        let mut limiter = limiter_of(64);
        assert!(limiter.memory_growing(0, 8 << 20, None).expect("there is as much"));
        let refused = limiter.memory_growing(8 << 20, 9 << 20, None).expect_err("a part is left");
        assert!(matches!(refused.downcast_ref::<Violation>(), Some(Violation::Unavailable)));
        let beyond = limiter.memory_growing(8 << 20, 65 << 20, None).expect_err("its limit");
        assert!(matches!(beyond.downcast_ref::<Violation>(), Some(Violation::Memory { .. })));
    }

    #[test]
    fn case_16_memories_are_summed() {
        let mut limiter = limiter();
        assert!(limiter.memory_growing(0, 512 << 10, None).unwrap());
        assert!(limiter.memory_growing(0, 448 << 10, None).expect("within its limit"));
        assert!(limiter.memory_growing(448 << 10, 512 << 10, None).expect("within its limit"));
        assert_eq!(limiter.begun_bytes(), 960 << 10, "it counts how much it began with");
        let error = limiter.memory_growing(512 << 10, 576 << 10, None).unwrap_err();
        let violation = error.downcast_ref::<Violation>().unwrap();
        assert!(matches!(violation, Violation::Memory { limit_bytes } if *limit_bytes == 1 << 20));
    }

    #[test]
    fn growth_beyond_an_own_maximum_fails_and_is_not_counted() {
        let mut limiter = limiter();
        let own = Some(512 << 10);
        assert!(limiter.memory_growing(0, 512 << 10, own).expect("within both"));
        let grown = limiter.memory_growing(512 << 10, 8 << 20, own).expect("its own maximum");
        assert!(!grown, "the guest is told");
        assert!(limiter.memory_growing(0, 512 << 10, None).expect("nothing was counted"));
        let beyond = limiter.memory_growing(512 << 10, 513 << 10, Some(4 << 30));
        assert!(beyond.is_err(), "the limit of the policy");
        assert!(limiter.table_growing(0, 4, Some(4)).expect("within both"));
        assert!(!limiter.table_growing(4, 5, Some(4)).expect("its own maximum"));
        assert!(limiter.table_growing(0, 6, None).expect("nothing was counted"));
        assert!(limiter.table_growing(6, 7, Some(20_000)).is_err(), "the limit of the policy");
    }

    #[test]
    fn tables_are_summed() {
        let mut limiter = limiter();
        assert!(limiter.table_growing(0, 6, None).unwrap());
        assert!(limiter.table_growing(0, 5, None).is_err());
        assert!(limiter.table_growing(6, 10, None).unwrap());
    }
}
