//! The configuration of wasmtime. Everything that shapes native code is constant, so that the cache
//! and the compile worker agree with the engine.

use wasmparser::WasmFeatures;
use wasmtime::{
    Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, WasmBacktraceDetails,
};

use taskrun_policy::{MEMORY_BYTES_MAX, TABLE_ELEMENTS_MAX};

/// Memories of one component. JavaScript on QuickJS has three, a component composed of several
/// programs one for each; together they have what one may have. Each slot reserves 4 GiB of
/// address space, of which there are 128 TiB: a thousand instances take 16.
pub const MEMORIES_MAX: u32 = 4;
/// Tables of one component: a guest built for WASI has two, Python a few more.
pub const TABLES_MAX: u32 = 8;
/// Core instances of one component: a guest built for WASI has three, Python, which is linked at
/// start from many modules, some dozens.
pub const CORE_INSTANCES_MAX: u32 = 64;

/// Bytes that wasmtime keeps of an instance beside its memories and tables, all its core instances
/// together: 32 for each function that is exported, is in a table or has a reference taken of it,
/// and as many or fewer for each import and global. They are on the host's heap and no part of the
/// memory for guests, of which each slot has 2 MiB: with twice as many, all slots together could
/// have more than that memory leaves the host. A Python tool has less than half.
const INSTANCE_BYTES_MAX: usize = 1 << 20;

/// Stack of a guest: half a megabyte is what native threads of small programs live with.
const WASM_STACK_BYTES: usize = 512 << 10;
/// Stack of a call: the guest's and that of the host functions it calls, of which one that starts a
/// run has the deepest calls.
const FIBER_STACK_BYTES: usize = 2 << 20;

/// Bytes of a call's stack that are cleared and kept when it is over; the rest is given back, or a
/// crowd of guests that overflow theirs leaves half a megabyte for each.
const STACK_KEEP_RESIDENT_BYTES: usize = 32 << 10;

/// Slots of the pool that are kept warm while no call has them, and what each keeps of a memory: as
/// much as a call of a small tool writes to. Together they are what is left of a crowd.
const WARM_SLOTS_MAX: u32 = 128;
const KEEP_RESIDENT_BYTES: usize = 128 << 10;

/// The settings that the engine and the compile worker share.
pub(crate) fn base() -> Config {
    let mut config = Config::new();
    config
        .concurrency_support(false)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false)
        .epoch_interruption(true)
        .consume_fuel(false)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(FIBER_STACK_BYTES)
        .async_stack_zeroing(true)
        .memory_reservation(4 << 30)
        .memory_guard_size(32 << 20)
        .memory_init_cow(true)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config
}

/// The proposals that [`base`] has the compiler accept, which does not tell them itself.
pub(crate) fn features() -> WasmFeatures {
    let mut features = WasmFeatures::WASM3 | WasmFeatures::COMPONENT_MODEL;
    features.remove(WasmFeatures::MEMORY64 | WasmFeatures::RELAXED_SIMD);
    // Those for which wasmtime has features of its own that it is built without.
    features.remove(WasmFeatures::GC_TYPES | WasmFeatures::EXCEPTIONS | WasmFeatures::THREADS);
    features
}

/// The engine's own settings: instances come from a pool of `instances` slots. Public so that
/// what is built on them can be measured against wasmtime alone under the same ones.
pub fn pooled(instances: u32) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES_MAX))
        .total_memories(instances.saturating_mul(MEMORIES_MAX))
        .total_tables(instances.saturating_mul(TABLES_MAX))
        .total_stacks(instances)
        .max_memories_per_component(MEMORIES_MAX)
        .max_memories_per_module(MEMORIES_MAX)
        .max_tables_per_component(TABLES_MAX)
        .max_tables_per_module(TABLES_MAX)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_component_instance_size(INSTANCE_BYTES_MAX)
        .max_core_instance_size(INSTANCE_BYTES_MAX)
        .max_memory_size(usize::try_from(MEMORY_BYTES_MAX).unwrap_or(usize::MAX))
        .table_elements(TABLE_ELEMENTS_MAX as usize)
        .max_unused_warm_slots(WARM_SLOTS_MAX.min(instances))
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(4096)
        .async_stack_keep_resident(STACK_KEEP_RESIDENT_BYTES)
        .pagemap_scan(Enabled::Auto)
        // What waits for others to be given back together is a whole memory for each that waits.
        .decommit_batch_size(1);
    let mut config = base();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// The bounds to which the pool holds a component when its native code is taken. A program with
/// others may take what this one does not.
pub(crate) fn pool_bounds() -> [u64; 6] {
    let [memories, tables, instances, elements] =
        [MEMORIES_MAX, TABLES_MAX, CORE_INSTANCES_MAX, TABLE_ELEMENTS_MAX].map(u64::from);
    [memories, tables, instances, elements, MEMORY_BYTES_MAX, INSTANCE_BYTES_MAX as u64]
}

/// Names everything that native code depends on: engine version, settings, processor.
pub(crate) fn compatibility(engine: &wasmtime::Engine) -> blake3::Hash {
    struct Collect(blake3::Hasher);
    impl std::hash::Hasher for Collect {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut collect = Collect(blake3::Hasher::new());
    std::hash::Hash::hash(&engine.precompile_compatibility_hash(), &mut collect);
    collect.0.update(ENGINE_VERSION.as_bytes());
    collect.0.finalize()
}

/// The only version that native code of ours is made by.
pub const ENGINE_VERSION: &str = "wasmtime 48.0.8";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The proposals by their words in the docs. Garbage collection is that of its types here:
    /// without them its own flag adds no more than supertypes of functions.
    const PROPOSALS: [(WasmFeatures, &str); 38] = [
        (WasmFeatures::MUTABLE_GLOBAL, "mutable globals"),
        (WasmFeatures::SATURATING_FLOAT_TO_INT, "float conversions that do not trap"),
        (WasmFeatures::SIGN_EXTENSION, "sign extension"),
        (WasmFeatures::MULTI_VALUE, "multiple values"),
        (WasmFeatures::REFERENCE_TYPES, "reference types"),
        (WasmFeatures::BULK_MEMORY, "bulk memory"),
        (WasmFeatures::SIMD, "SIMD"),
        (WasmFeatures::TAIL_CALL, "tail calls"),
        (WasmFeatures::EXTENDED_CONST, "extended constants"),
        (WasmFeatures::FUNCTION_REFERENCES, "typed function references"),
        (WasmFeatures::MULTI_MEMORY, "multiple memories"),
        (WasmFeatures::COMPONENT_MODEL, "the component model"),
        (WasmFeatures::RELAXED_SIMD, "relaxed SIMD"),
        (WasmFeatures::THREADS, "threads"),
        (WasmFeatures::SHARED_EVERYTHING_THREADS, "shared-everything threads"),
        (WasmFeatures::EXCEPTIONS, "exceptions"),
        (WasmFeatures::LEGACY_EXCEPTIONS, "legacy exceptions"),
        (WasmFeatures::MEMORY64, "64-bit memories"),
        (WasmFeatures::GC_TYPES, "garbage collection"),
        (WasmFeatures::MEMORY_CONTROL, "memory control"),
        (WasmFeatures::CUSTOM_PAGE_SIZES, "custom page sizes"),
        (WasmFeatures::STACK_SWITCHING, "stack switching"),
        (WasmFeatures::WIDE_ARITHMETIC, "wide arithmetic"),
        (WasmFeatures::CUSTOM_DESCRIPTORS, "custom descriptors"),
        (WasmFeatures::COMPACT_IMPORTS, "compact imports"),
        (WasmFeatures::CM_ASYNC, "async functions"),
        (WasmFeatures::CM_ASYNC_STACKFUL, "stackful async functions"),
        (WasmFeatures::CM_MORE_ASYNC_BUILTINS, "more async built-ins"),
        (WasmFeatures::CM_THREADING, "threads of components"),
        (WasmFeatures::CM_ERROR_CONTEXT, "error contexts"),
        (WasmFeatures::CM_VALUES, "values"),
        (WasmFeatures::CM_NESTED_NAMES, "nested names"),
        (WasmFeatures::CM_FIXED_LENGTH_LISTS, "fixed-length lists"),
        (WasmFeatures::CM_GC, "garbage-collected values"),
        (WasmFeatures::CM_MAP, "maps"),
        (WasmFeatures::CM64, "64-bit pointers"),
        (WasmFeatures::CM_IMPLEMENTS, "interfaces by implementation"),
        (WasmFeatures::CM_CANON_NAMES, "canonical names"),
    ];

    #[test]
    fn the_docs_list_each_proposal_as_it_is_set() {
        const PAGE: &str = include_str!("../../../docs/limits.md");
        let listed = |beginning: &str| -> BTreeSet<&str> {
            let line = PAGE.lines().find(|line| line.starts_with(beginning)).expect("a line");
            let (_, list) = line.split_once(": ").expect("a list");
            list.split('.').next().expect("the list").split(", ").collect()
        };
        let words = |is_on: bool| -> BTreeSet<&str> {
            let proposals = PROPOSALS.iter();
            let listed = proposals.filter(|(flag, _)| features().contains(*flag) == is_on);
            listed.map(|(_, words)| *words).collect()
        };
        assert_eq!(listed("[Proposals]"), words(true));
        let mut off = listed("Proposals that are off");
        off.extend(listed("Proposals of the component model"));
        assert_eq!(off, words(false));
        let told = PROPOSALS.iter().fold(WasmFeatures::empty(), |told, (flag, _)| told | *flag);
        assert_eq!(told | WasmFeatures::GC | WasmFeatures::FLOATS, WasmFeatures::all());
    }
}
