//! The bound on all memories and tables of one instance together.

use taskrun_policy::Limits;
use wasmtime::{Error, ResourceLimiter, Result};

use crate::config::{CORE_INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};
use crate::failure::Violation;

/// Counts for one store. A request beyond a limit ends the guest with a typed reason; a failed
/// `memory.grow` would leave that to the guest, most of which answer with an anonymous trap.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_bytes: u64,
    memory_bytes_max: u64,
    table_elements: u64,
    table_elements_max: u64,
}

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            memory_bytes: 0,
            memory_bytes_max: limits.memory_bytes,
            table_elements: 0,
            table_elements_max: limits.table_elements.into(),
        }
    }

    fn memory(&self) -> Error {
        Violation::Memory { limit_bytes: self.memory_bytes_max }.into()
    }

    fn tables(&self) -> Error {
        Violation::Limit { what: "table elements", limit: self.table_elements_max }.into()
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> Result<bool> {
        let grown = self.memory_bytes.saturating_add(desired.saturating_sub(current) as u64);
        if grown > self.memory_bytes_max {
            return Err(self.memory());
        }
        self.memory_bytes = grown;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: Error) -> Result<()> {
        // More than the memory's own maximum or a slot of the pool.
        Err(self.memory())
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> Result<bool> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter() -> Limiter {
        Limiter::new(&Limits { memory_bytes: 1 << 20, table_elements: 10, ..Limits::default() })
    }

    #[test]
    fn case_16_memories_are_summed() {
        let mut limiter = limiter();
        assert!(limiter.memory_growing(0, 512 << 10, None).unwrap());
        assert!(limiter.memory_growing(0, 512 << 10, None).unwrap());
        let error = limiter.memory_growing(512 << 10, 576 << 10, None).unwrap_err();
        let violation = error.downcast_ref::<Violation>().unwrap();
        assert!(matches!(violation, Violation::Memory { limit_bytes } if *limit_bytes == 1 << 20));
    }

    #[test]
    fn tables_are_summed() {
        let mut limiter = limiter();
        assert!(limiter.table_growing(0, 6, None).unwrap());
        assert!(limiter.table_growing(0, 5, None).is_err());
        assert!(limiter.table_growing(6, 10, None).unwrap());
    }
}
