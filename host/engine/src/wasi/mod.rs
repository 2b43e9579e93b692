//! The state of WASI in one call: outputs, the way out to the network, open files. The functions
//! of its interfaces are in [`crate::host`].

mod http;
mod output;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use taskrun::scope::CallScope;
use taskrun_policy::Preopen;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::WasiCtx;
use wasmtime_wasi::clocks::HostMonotonicClock;
use wasmtime_wasi::filesystem::Dir;
use wasmtime_wasi_http::WasiHttpCtx;

pub(crate) use self::http::CHUNK_BYTES_MAX;
use self::http::Hooks;
use self::output::Output;
use crate::course::Course;
use crate::guest::{Guest, Mode};
use crate::handles::Handle;

/// Most bytes of the headers that a guest puts together: beyond what servers take. Those of many
/// such collections at once are bounded in [`crate::host`].
pub(crate) const FIELD_BYTES_MAX: usize = 32 << 10;

/// WASI's part of a call.
pub(crate) struct WasiState {
    pub(crate) ctx: WasiCtx,
    pub(crate) http: WasiHttpCtx,
    pub(crate) hooks: Hooks,
    /// Calls of functions of `wasi:http` so far.
    pub(crate) http_calls: u32,
    /// In place of the call's resources for a guest that is to end: there are none, and no room.
    pub(crate) no_resources: ResourceTable,
}

impl WasiState {
    pub(crate) fn new(
        guest: &Arc<Guest>,
        scope: &Arc<CallScope>,
        course: &Course,
        mode: Mode,
    ) -> Self {
        let mut builder = WasiCtx::builder();
        builder
            .stdout(Output::new(guest, scope, "stdout"))
            .stderr(Output::new(guest, scope, "stderr"))
            .monotonic_clock(Monotonic(Arc::clone(scope)));
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(FIELD_BYTES_MAX);
        let hooks = Hooks::new(Arc::clone(guest), Arc::clone(scope), course.clone(), mode);
        let mut no_resources = ResourceTable::new();
        no_resources.set_max_capacity(0);
        Self { ctx: builder.build(), http, hooks, http_calls: 0, no_resources }
    }
}

/// Time since the call began, on the scope's clock.
struct Monotonic(Arc<CallScope>);

impl HostMonotonicClock for Monotonic {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The files and folders that a guest has open through WASI.
#[derive(Default)]
pub(crate) struct WasiFiles {
    /// The number of handles.
    pub(crate) share: Arc<AtomicU32>,
    /// The handles, which keep each counted, by their numbers in the table of resources.
    pub(crate) handles: HashMap<u32, Arc<Handle>>,
    /// Counts the streams: each has a clone.
    pub(crate) streams: Arc<()>,
    /// The granted folders, opened when the guest first asks for them.
    pub(crate) granted: Option<Vec<GrantedFolder>>,
    /// The same as rules name them.
    pub(crate) preopens: Arc<[Preopen]>,
    /// Set once a rule is gone under which a folder was granted: nothing is written any more.
    pub(crate) is_revoked: Arc<AtomicBool>,
}

/// An open folder, and its name for the guest.
pub(crate) struct GrantedFolder {
    pub(crate) dir: Dir,
    pub(crate) name: String,
    pub(crate) preopen: Preopen,
    pub(crate) _handle: Handle,
}
