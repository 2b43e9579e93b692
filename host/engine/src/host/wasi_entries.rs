//! The granted folders of WASI, reading a folder, and texts of errors: functions of ours in the
//! place of those that the bindings would have.
//!
//! The descriptors of granted folders are waited for, which the function of the bindings cannot do.
//! A folder is read as a whole into the host's memory, so its entries and the folders that are
//! read at once are bounded, and the host's own files are left out. The text of an error shows the
//! host's stack where backtraces are on, unless it is cut to what it says.

use std::sync::Arc;

use cap_std::fs::Dir as OpenDir;
use taskrun_policy::Capability;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::FsError;
use wasmtime_wasi::p2::bindings::filesystem::types::{DirectoryEntry, ErrorCode};

use super::wasi_files::{kind_of, on_thread};
use crate::buffers::Buffer;
use crate::files::by_place;
use crate::handles::HANDLES_MAX;
use crate::state::CallState;

/// Most entries of a directory that is read through WASI.
const ENTRIES_MAX: usize = 10_000;
/// Most folders that one call reads at the same time. Programs that walk through a tree read one on
/// each level, and have it open, too.
const OPEN_MAX: u32 = HANDLES_MAX;
/// Bytes of entries with which a call reads no further folder: it would keep all that all calls may.
const LISTING_BYTES_MAX: u64 = 16 << 20;

/// The instances as wasmtime's bindings name them.
const FILES: &str = "wasi:filesystem/types@0.2.12";
const PREOPENS: &str = "wasi:filesystem/preopens@0.2.12";
const ERROR: &str = "wasi:io/error@0.2.12";

type Store<'a> = StoreContextMut<'a, CallState>;
type Answer<T> = (Result<T, ErrorCode>,);
type Folders = (Vec<(Resource<Descriptor>, String)>,);

/// Most bytes of such entries, with the longest names that file systems take.
const ENTRIES_BYTES_MAX: usize = ENTRIES_MAX * (size_of::<DirectoryEntry>() + 255);

/// Most bytes of the entries of one folder that need nothing of the pool: a guest that keeps it
/// empty does not keep others from folders of some hundred entries.
const SMALL_BYTES_MAX: u64 = 16 << 10;

/// The entries of a folder that a guest has not taken yet.
struct Entries {
    left: std::vec::IntoIter<DirectoryEntry>,
    /// Bytes of all of them.
    bytes: u64,
    _kept: Option<Buffer>,
}

/// Puts our functions of `wasi:filesystem/types` in place of those that were added before.
pub(super) fn add_files(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let mut files = linker.instance(FILES)?;
    files.resource(
        "directory-entry-stream",
        ResourceType::host::<Entries>(),
        |mut store, rep| {
            let state = store.data_mut();
            state.open_directories = state.open_directories.saturating_sub(1);
            let entries = state.table.delete(Resource::<Entries>::new_own(rep))?;
            state.listing_bytes = state.listing_bytes.saturating_sub(entries.bytes);
            Ok(())
        },
    )?;
    files.func_wrap_async("[method]descriptor.read-directory", |store, (dir,)| {
        Box::new(async move { answer(read_directory(store, dir).await) })
    })?;
    files.func_wrap(
        "[method]directory-entry-stream.read-directory-entry",
        |mut store: Store<'_>, (stream,): (Resource<Entries>,)| {
            let state = store.data_mut();
            state.enter()?;
            let next = state.table.get_mut(&stream)?.left.next();
            Ok((Ok::<_, ErrorCode>(next),))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Adds `wasi:filesystem/preopens`, which has one function.
pub(super) fn add_preopens(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.instance(PREOPENS)?.func_wrap_async("get-directories", |store, ()| {
        Box::new(async move { get_directories(store).await })
    })
}

/// Puts our function of `wasi:io/error` in place of that which was added before.
pub(super) fn add_error(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    linker.instance(ERROR)?.func_wrap(
        "[method]error.to-debug-string",
        |mut store: Store<'_>, (error,): (Resource<wasmtime::Error>,)| {
            let (_, table) = store.data_mut().wasi();
            Ok((table.get(&error)?.to_string(),))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

fn answer<T>(result: Result<T, FsError>) -> wasmtime::Result<Answer<T>> {
    match result {
        Ok(value) => Ok((Ok(value),)),
        Err(error) => Ok((Err(error.downcast()?),)),
    }
}

async fn get_directories(mut store: Store<'_>) -> wasmtime::Result<Folders> {
    Ok((store.data_mut().granted_folders().await?,))
}

async fn read_directory(
    mut store: Store<'_>,
    dir: Resource<Descriptor>,
) -> Result<Resource<Entries>, FsError> {
    let state = store.data_mut();
    state.enter().map_err(FsError::trap)?;
    if state.open_directories >= OPEN_MAX || state.listing_bytes >= LISTING_BYTES_MAX {
        return Err(ErrorCode::Quota.into());
    }
    let open = match state.table.get(&dir)? {
        Descriptor::Dir(dir) => Arc::clone(&dir.dir),
        Descriptor::File(_) => return Err(ErrorCode::NotDirectory.into()),
    };
    let buffers = state.guest.engine.buffers().clone();
    let threads = state.file_threads();
    let workspace = state.workspace.clone().ok_or(ErrorCode::NotPermitted)?;
    let passing = buffers.take(ENTRIES_BYTES_MAX as u64).await;
    let read = on_thread(threads, store.data_mut().grant_check(), move || {
        let folder = OpenDir::from_std_file(open.try_clone()?);
        let entries = by_place::entries(&folder, ENTRIES_MAX, &workspace.guard())?;
        // Until the thread is back, and until what is kept is counted.
        Ok((entries, passing))
    });
    let read = read.await;
    let (entries, _passing) = store.data_mut().done(read, (Capability::WorkspaceRead, ""))?;
    let names: usize = entries.iter().map(|(name, _)| name.len()).sum();
    let bytes = (names + entries.len() * size_of::<DirectoryEntry>()) as u64;
    let kept = match bytes > SMALL_BYTES_MAX {
        true => Some(buffers.try_keep(bytes).ok_or(ErrorCode::Busy)?),
        false => None,
    };
    let entries: Vec<DirectoryEntry> = entries
        .into_iter()
        .map(|(name, kind)| DirectoryEntry { type_: kind_of(kind), name })
        .collect();
    let state = store.data_mut();
    let stream = state.table.push(Entries { left: entries.into_iter(), bytes, _kept: kept })?;
    state.open_directories += 1;
    state.listing_bytes += bytes;
    Ok(stream)
}
