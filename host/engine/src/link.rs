//! Linking: each interface that a component imports and may have, and no other.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use taskrun::ports::planner::ConversationView;
use taskrun_policy::{Capability, CapabilityAccess, Preopen};
use wasmtime::component::{HasSelf, InstancePre, Linker};

use crate::bindings::{conversation, interfaces, memory_write};
use crate::component::LoadedComponent;
use crate::engine::Engine;
use crate::error::{LoadError, NeedBound};
use crate::files::{ProtectedPaths, Workspace, WorkspaceFolder};
use crate::grants::{self, Role};
use crate::guest::{AgentGrants, Guest};
use crate::guest_memory::BeginBytes;
use crate::host::wasi;
use crate::inspect::memories::size_words;
use crate::inspect::{CONVERSATION, ImportClass, ImportInfo, Inspection};
use crate::state::CallState;

/// A component that can be instantiated, and what its calls share.
pub(crate) type LinkedComponent = (InstancePre<CallState>, Arc<Guest>);

/// Checks a component against an agent's grants and links it.
pub(crate) fn link(
    engine: &Arc<Engine>,
    loaded: &LoadedComponent,
    role: Role,
    with: AgentGrants,
) -> Result<LinkedComponent, LoadError> {
    let inspection = loaded.inspect();
    grants::check(inspection, role, &with.agent, &with.grants)?;
    let (workspace, preopens) = folders(engine.protected(), inspection, role, &with)?;
    let bounds = workspace.as_ref().map(|_| {
        let folders = with.grants.writable_folders();
        Arc::new(engine.disk().bounds(folders, with.workspace_limits, &with.limits))
    });
    let begin_bytes = begin_bytes(engine, loaded, with.limits.memory_bytes)?;
    let mut linker = Linker::new(engine.wasmtime());
    let mut added = BTreeSet::new();
    for import in &inspection.imports {
        // Of an interface in several versions, as of parts that were linked together, there is one
        // implementation.
        if import.class == ImportClass::Types || !added.insert(import.name()) {
            continue;
        }
        add(&mut linker, import).map_err(|error| LoadError::Internal(format!("{error:#}")))?;
    }
    let pre =
        linker.instantiate_pre(loaded.component()).map_err(|error| LoadError::mismatch(&error))?;
    let guest = Guest {
        engine: Arc::clone(engine),
        digest: loaded.digest().to_owned(),
        source: with.source,
        begin_bytes,
        limits: with.limits,
        workspace,
        bounds,
        preopens,
        hears_cancellation: inspection.imports("taskrun:plugin/cancellation"),
        view: match inspection.imports(CONVERSATION) {
            true => ConversationView::New,
            false => ConversationView::Whole,
        },
    };
    Ok((pre, Arc::new(guest)))
}

/// Bytes of memory that an instance of a component begins with under a limit, at most: as if each
/// of its memories began as large as the largest.
///
/// # Errors
/// [`LoadError::TooMuch`] if it needs more than the limit, which is of all its memories together, or
/// than this host or any other one ever has for an instance.
fn begin_bytes(
    engine: &Engine,
    loaded: &LoadedComponent,
    limit: u64,
) -> Result<BeginBytes, LoadError> {
    const PAGE_BYTES: u64 = 64 << 10;
    let inspection = loaded.inspect();
    if let Some(refusal) = inspection.refusal() {
        return Err(refusal);
    }
    // None that imports modules is linked.
    let needed = loaded.component().resources_required();
    let Some(needed) = needed else { return Ok(BeginBytes::at_most(0)) };
    let largest = needed.max_initial_memory_size.unwrap_or(0).saturating_mul(PAGE_BYTES);
    let needs = largest.max(inspection.memory_bytes);
    let too_much = |bound, fault: String| {
        let detail = format!("it begins with {} of memory, {fault}", size_words(needs));
        LoadError::TooMuch { detail, bound }
    };
    if needs > limit {
        let fault = format!("and `memory` in its `limits` is {}", size_words(limit));
        return Err(too_much(NeedBound::Limits, fault));
    }
    let most = engine.memory().most_of_instance();
    if needs > most {
        let fault = format!("of which a tenant has {} MiB here; give the host more", most >> 20);
        return Err(too_much(NeedBound::Host, fault));
    }
    Ok(BeginBytes::at_most(largest.saturating_mul(needed.num_memories.into()).min(limit)))
}

/// The workspace and the folders in it that a component gets under an agent's grants, if it may use
/// files.
pub(crate) fn folders(
    protected: &ProtectedPaths,
    inspection: &Inspection,
    role: Role,
    with: &AgentGrants,
) -> Result<(Option<Workspace>, Vec<Preopen>), LoadError> {
    let preopens = match role {
        Role::Agent | Role::Tool => grants::preopens(inspection, &with.grants)?,
        Role::Policy => Vec::new(),
    };
    let uses_files = inspection.imports.iter().any(|import| match import.class {
        ImportClass::Capability(capability) => {
            capability.has_paths() && with.grants.access(capability) == CapabilityAccess::Selective
        }
        ImportClass::Types
        | ImportClass::Always
        | ImportClass::Agents
        | ImportClass::WasiFiles
        | ImportClass::WasiInert
        | ImportClass::Sockets
        | ImportClass::OtherWasi
        | ImportClass::Unknown => false,
    });
    let workspace = match uses_files || !preopens.is_empty() {
        true => Some(open_workspace(protected, with, &preopens)?),
        false => None,
    };
    Ok((workspace, preopens))
}

/// Opens the workspace, unless the host's own files would be at hand there. WASI's file system
/// is not ours to look into, so no folder with such a file in it is given to that.
fn open_workspace(
    protected: &ProtectedPaths,
    with: &AgentGrants,
    preopens: &[Preopen],
) -> Result<Workspace, LoadError> {
    let root = with.workspace.as_path();
    let exposed = |folder: PathBuf, file| LoadError::Exposed { folder, file };
    if let Some(file) = protected.containing(root) {
        return Err(exposed(root.to_owned(), file));
    }
    for preopen in preopens {
        let folder = root.join(&preopen.dir);
        if let Some(file) = protected.overlapping(&folder) {
            return Err(exposed(folder, file));
        }
    }
    let folder = WorkspaceFolder::new(root, with.workspace_root.as_deref());
    Workspace::of(folder, protected.clone())
        .map(|workspace| workspace.anew())
        .map_err(|source| LoadError::Workspace { path: root.to_owned(), source })
}

type Own = HasSelf<CallState>;

/// Adds the implementation of one import. What has none was refused before.
fn add(linker: &mut Linker<CallState>, import: &ImportInfo) -> wasmtime::Result<()> {
    let name = import.name();
    match import.class {
        ImportClass::Types
        | ImportClass::Sockets
        | ImportClass::OtherWasi
        | ImportClass::Unknown => Ok(()),
        ImportClass::Always | ImportClass::Agents => add_ours(linker, name),
        ImportClass::WasiFiles | ImportClass::WasiInert => wasi::add_given(linker, name),
        ImportClass::Capability(_) if name.starts_with("wasi:http/") => {
            wasi::add_http(linker, name)
        }
        ImportClass::Capability(_) if name == CONVERSATION => {
            conversation::add_to_linker::<_, Own>(linker, |state| state)
        }
        ImportClass::Capability(capability) => add_capability(linker, capability),
    }
}

fn add_ours(linker: &mut Linker<CallState>, name: &str) -> wasmtime::Result<()> {
    match name.strip_prefix("taskrun:plugin/").unwrap_or(name) {
        "log" => interfaces::log::add_to_linker::<_, Own>(linker, |state| state),
        "clock" => interfaces::clock::add_to_linker::<_, Own>(linker, |state| state),
        "random" => interfaces::random::add_to_linker::<_, Own>(linker, |state| state),
        "run" => interfaces::run::add_to_linker::<_, Own>(linker, |state| state),
        "cancellation" => interfaces::cancellation::add_to_linker::<_, Own>(linker, |state| state),
        "events" => interfaces::events::add_to_linker::<_, Own>(linker, |state| state),
        "state" => interfaces::state::add_to_linker::<_, Own>(linker, |state| state),
        "reminders" => interfaces::reminders::add_to_linker::<_, Own>(linker, |state| state),
        // `types` has no functions. Anything else fails to link, which says its name.
        _ => Ok(()),
    }
}

fn add_capability(linker: &mut Linker<CallState>, capability: Capability) -> wasmtime::Result<()> {
    match capability {
        Capability::Model => interfaces::model::add_to_linker::<_, Own>(linker, |state| state),
        Capability::WorkspaceRead => {
            interfaces::workspace_read::add_to_linker::<_, Own>(linker, |state| state)
        }
        Capability::WorkspaceWrite => {
            interfaces::workspace_write::add_to_linker::<_, Own>(linker, |state| state)
        }
        Capability::Http => interfaces::http::add_to_linker::<_, Own>(linker, |state| state),
        Capability::Prompts => interfaces::prompts::add_to_linker::<_, Own>(linker, |state| state),
        Capability::Controller => {
            interfaces::controller::add_to_linker::<_, Own>(linker, |state| state)
        }
        Capability::Memory => interfaces::memory::add_to_linker::<_, Own>(linker, |state| state),
        Capability::Metrics => interfaces::metrics::add_to_linker::<_, Own>(linker, |state| state),
        Capability::MemoryWrite => memory_write::add_to_linker::<_, Own>(linker, |state| state),
    }
}
