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
pub(crate) const MEMORIES_MAX: u32 = 4;
/// Tables of one component: a guest built for WASI has two, Python a few more.
pub(crate) const TABLES_MAX: u32 = 8;
/// Core instances of one component: a guest built for WASI has three, Python, which is linked at
/// start from many modules, some dozens.
pub(crate) const CORE_INSTANCES_MAX: u32 = 64;

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
        .max_tables_per_component(TABLES_MAX)
        .max_tables_per_module(TABLES_MAX)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
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
