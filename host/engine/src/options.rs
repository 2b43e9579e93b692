//! The options of an engine, and their defaults.

use std::path::PathBuf;
use std::time::Duration;

use crate::cache::Cache;
use crate::compile::CompileWorker;
use crate::config::MEMORIES_MAX;
use crate::guest_memory::{instances_within, tenant_most};
use crate::machine_memory::guest_memory_default;

/// Largest component unless set otherwise. A Python tool is 18 MB, a JavaScript one 12 MB.
pub const COMPONENT_BYTES_DEFAULT: u64 = 64 << 20;
/// CPU time that a tool may take to describe itself unless set otherwise: it is asked while the host
/// starts.
pub(crate) const DESCRIBE_DEADLINE_DEFAULT: Duration = Duration::from_secs(2);
/// Time on a processor that a call has before others unless set otherwise. A call of a small tool
/// takes a twentieth of it.
pub(crate) const SLICE_DEFAULT: Duration = Duration::from_millis(1);
/// Most instances at once unless set otherwise. Each may take 64 MiB, and each reserves 4 GiB of
/// address space for each memory that it may have.
pub const INSTANCES_DEFAULT: u32 = 1_000;

/// Memory mappings that the rest of the process may need.
const MAPPINGS_FOR_OTHERS: u32 = 5_000;
/// Memory mappings of one instance: seven with one memory, and three for each further one.
const MAPPINGS_PER_INSTANCE: u32 = 7 + 3 * (MEMORIES_MAX - 1);

/// Settings of an [`Engine`](crate::Engine).
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Instances at once; further calls wait. `None` is [`INSTANCES_DEFAULT`], or fewer where
    /// the operating system's `vm.max_map_count` does not allow as many, or where the first 2 MiB of
    /// each would take more than half of the memory for guests.
    pub instances: Option<u32>,
    /// Bytes of the memories of all guests together. A call that begins with more than there is
    /// waits, a minute at most; one that grows beyond it ends with
    /// [`CallAbort::Unavailable`](taskrun_journal::stop::CallAbort::Unavailable). `None` is
    /// [`guest_memory_default`].
    pub guest_memory_bytes: Option<u64>,
    /// Where native code is kept between starts; `None` compiles each time.
    pub cache: Option<Cache>,
    /// Program that looks at components and compiles them in a process of its own, under limits on
    /// time and memory; `None` does both in this process, where only sizes and counts are bounded: a
    /// hostile component of 130 KB has it take 6 GiB.
    pub compile_worker: Option<CompileWorker>,
    /// Largest component, in bytes.
    pub component_bytes_max: u64,
    /// CPU time that a tool may take to describe itself. It may last ten times as long.
    pub describe_deadline: Duration,
    /// Threads on which guests begin, and as many of lower priority on which those go on that have
    /// used up their slice; from 1 to 64. So no guest runs on a thread of its caller, and a
    /// short call does not wait for long ones. `None` lets guests run where their callers are
    /// polled, for programs that have nothing else to do.
    pub guest_threads: Option<usize>,
    /// Time on a processor that a call has before it goes behind those that have not had as much.
    pub slice: Duration,
    /// The host's own files and folders: no guest gets at them, whatever its rules allow. The
    /// cache and the compile worker are among them without being named; see also
    /// [`Engine::protect`](crate::Engine::protect).
    pub protected: Vec<PathBuf>,
    /// Folders whose disk must have free what a workspace's `reserve` names before a guest
    /// writes to a file: where the host keeps its store. Default none; the workspace's own disk
    /// must in any case.
    pub keep_free: Vec<PathBuf>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            instances: None,
            guest_memory_bytes: None,
            cache: None,
            compile_worker: None,
            component_bytes_max: COMPONENT_BYTES_DEFAULT,
            describe_deadline: DESCRIBE_DEADLINE_DEFAULT,
            guest_threads: None,
            slice: SLICE_DEFAULT,
            protected: Vec::new(),
            keep_free: Vec::new(),
        }
    }
}

impl EngineOptions {
    /// Bytes of the memories of all guests together.
    pub(crate) fn guest_memory_bytes(&self) -> u64 {
        self.guest_memory_bytes.unwrap_or_else(guest_memory_default)
    }

    /// The number of instances in the pool, where all guests together have so many bytes.
    pub(crate) fn instances(&self, memory_bytes: u64) -> u32 {
        let mapped = max_map_count().map_or(INSTANCES_DEFAULT, instances_for);
        let allowed = mapped.min(instances_within(memory_bytes));
        match self.instances {
            Some(wanted) if wanted > allowed => {
                let why = "vm.max_map_count, or the memory for guests, allows fewer instances";
                tracing::warn!(wanted, allowed, memory_bytes, "{why}");
                allowed
            }
            Some(wanted) => wanted.max(1),
            None => INSTANCES_DEFAULT.min(allowed),
        }
    }
}

/// Bytes that the guests of one tenant may have together, as long as it is alone, of
/// [`guest_memory_default`]: beside the first 2 MiB of each, and without runs that others have
/// started, for which a further part is kept.
#[must_use]
pub fn tenant_memory_default() -> u64 {
    let options = EngineOptions::default();
    let bytes = options.guest_memory_bytes();
    tenant_most(bytes, options.instances(bytes))
}

/// Instances at once that the operating system's `vm.max_map_count` allows.
#[must_use]
pub fn instances_for(max_map_count: u32) -> u32 {
    (max_map_count.saturating_sub(MAPPINGS_FOR_OTHERS) / MAPPINGS_PER_INSTANCE).max(1)
}

fn max_map_count() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_of_all_instances_are_half_of_the_memory_at_most() {
        let of = |instances| EngineOptions { instances, ..EngineOptions::default() };
        assert_eq!(of(None).instances(64 << 20), 16);
        assert_eq!(of(Some(4)).instances(64 << 20), 4);
        assert_eq!(of(Some(40)).instances(64 << 20), 16);
    }

    #[test]
    fn the_pool_leaves_mappings_for_others() {
        assert_eq!(instances_for(65_530), 3_783);
        assert_eq!(instances_for(1_000), 1);
    }
}
