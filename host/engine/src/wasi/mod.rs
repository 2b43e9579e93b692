//! The state of WASI in one call: outputs, the way out to the network, open files. The functions
//! of its interfaces are in [`crate::host`].

mod http;
mod output;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use taskrun::scope::CallScope;
use taskrun_journal::text::cut;
use taskrun_policy::{Capability, Preopen};
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

/// The monotonic clock's reading when a call begins. WASI leaves it open; Go's runtime ends where
/// it is 0, which it takes for a clock that fails.
const CLOCK_ORIGIN: Duration = Duration::from_secs(1);

/// Most refusals of files that are remembered, so that the journal has each once: a program that
/// tries a few things over and over hides nothing else that it is refused.
const REMEMBERED_MAX: usize = 256;
/// Most bytes of the path of an open file or folder; what is longer is cut.
const WAY_BYTES_MAX: usize = 1_024;

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

/// Time since [`CLOCK_ORIGIN`] before the call began, on the scope's clock. Timers that name an
/// instant are counted from a reading of it.
struct Monotonic(Arc<CallScope>);

impl HostMonotonicClock for Monotonic {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        let since_origin = CLOCK_ORIGIN.saturating_add(self.0.elapsed());
        u64::try_from(since_origin.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The files and folders that a guest has open through WASI.
#[derive(Default)]
pub(crate) struct WasiFiles {
    /// The number of handles.
    pub(crate) share: Arc<AtomicU32>,
    /// The handles, which keep each counted, by their numbers in the table of resources.
    pub(crate) handles: HashMap<u32, Arc<Handle>>,
    /// The ways to them, by the same numbers, of granted folders as well.
    pub(crate) ways: HashMap<u32, OpenWay>,
    /// The first refusals that are recorded.
    refused: HashSet<String>,
    /// Counts the streams: each has a clone.
    pub(crate) streams: Arc<()>,
    /// The granted folders, opened when the guest first asks for them.
    pub(crate) granted: Option<Vec<GrantedFolder>>,
    /// The same as rules name them.
    pub(crate) preopens: Arc<[Preopen]>,
    /// Set once a rule is gone under which a folder was granted: nothing is written any more.
    pub(crate) is_revoked: Arc<AtomicBool>,
}

impl WasiFiles {
    /// True if a refusal is to be recorded: it is the first of this capability about this subject,
    /// as far as is remembered. The journal bounds how many it has.
    pub(crate) fn notes_refusal(&mut self, capability: Capability, subject: &str) -> bool {
        let refusal = format!("{capability} {}", cut(subject, WAY_BYTES_MAX));
        match self.refused.len() < REMEMBERED_MAX {
            true => self.refused.insert(refusal),
            false => !self.refused.contains(&refusal),
        }
    }
}

/// The way by which a guest came to an open file or folder.
#[derive(Clone, Default)]
pub(crate) struct OpenWay {
    /// The granted folder, as rules name it.
    pub(crate) granted: Arc<str>,
    /// The path from the workspace, as the guest went it.
    pub(crate) path: Arc<str>,
}

impl OpenWay {
    pub(crate) fn of_granted(dir: &str) -> Self {
        let granted: Arc<str> = dir.into();
        Self { path: Arc::clone(&granted), granted }
    }

    /// The path of something below, as the guest says it.
    pub(crate) fn subject(&self, path: &str) -> String {
        match (&*self.path, path) {
            ("", path) => path.to_owned(),
            (folder, "") => folder.to_owned(),
            (folder, path) => format!("{folder}/{path}"),
        }
    }

    pub(crate) fn below(&self, path: &str) -> Self {
        let path = cut(&self.subject(path), WAY_BYTES_MAX).into();
        Self { granted: Arc::clone(&self.granted), path }
    }
}

/// An open folder, and its name for the guest.
pub(crate) struct GrantedFolder {
    pub(crate) dir: Dir,
    pub(crate) name: String,
    pub(crate) preopen: Preopen,
    pub(crate) _handle: Handle,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_recorded_once_and_none_is_left_out_after_many_others() {
        const READ: Capability = Capability::WorkspaceRead;
        let mut files = WasiFiles::default();
        for number in 0..2 * REMEMBERED_MAX {
            assert!(files.notes_refusal(READ, &format!("junk/{number}")), "{number}");
        }
        assert!(!files.notes_refusal(READ, "junk/0"), "that is known already");
        assert!(files.notes_refusal(Capability::WorkspaceWrite, "junk/0"));
        assert!(files.notes_refusal(READ, "../private/secret.txt"));
        assert_eq!(files.refused.len(), REMEMBERED_MAX);
    }
}
