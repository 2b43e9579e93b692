//! Functions of WASI that are ours in the place of wasmtime's, which trust a guest too far.
//!
//! Opening what is neither a file nor a directory could wait for ever, or have an effect; a
//! directory is read as a whole into the host's memory; and the text of an error shows the host's
//! stack where backtraces are on.

use std::sync::Arc;

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView};
use wasmtime_wasi::p2::FsError;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorType, DirectoryEntryStream, ErrorCode, HostDescriptor,
    HostDirectoryEntryStream, OpenFlags, PathFlags,
};

use crate::failure::Violation;
use crate::state::CallState;

/// Most entries of a directory that is read through WASI.
const ENTRIES_MAX: usize = 10_000;
/// Most directories that one call reads at the same time.
const OPEN_MAX: u32 = 8;

/// The instances as wasmtime's bindings name them.
const FILES: &str = "wasi:filesystem/types@0.2.12";
const ERROR: &str = "wasi:io/error@0.2.12";

type Store<'a> = StoreContextMut<'a, CallState>;
type Answer<T> = (Result<T, ErrorCode>,);

/// Puts our functions of `wasi:filesystem/types` in place of those that were added before.
pub(super) fn add_files(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let mut files = linker.instance(FILES)?;
    files.func_wrap_async("[method]descriptor.open-at", |store, params| {
        Box::new(async move { answer(open_at(store, params).await) })
    })?;
    files.func_wrap_async("[method]descriptor.read-directory", |store, (dir,)| {
        Box::new(async move { answer(read_directory(store, dir).await) })
    })?;
    let stream = ResourceType::host::<DirectoryEntryStream>();
    files.resource("directory-entry-stream", stream, |mut store, rep| {
        let state = store.data_mut();
        state.open_directories = state.open_directories.saturating_sub(1);
        HostDirectoryEntryStream::drop(&mut state.filesystem(), Resource::new_own(rep))
    })?;
    linker.allow_shadowing(false);
    Ok(())
}

/// The same for `wasi:io/error`.
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

type OpenAt = (Resource<Descriptor>, PathFlags, String, OpenFlags, DescriptorFlags);

async fn open_at(
    mut store: Store<'_>,
    (dir, links, path, how, flags): OpenAt,
) -> Result<Resource<Descriptor>, FsError> {
    let mut files = store.data_mut().filesystem();
    let borrowed = Resource::new_borrow(dir.rep());
    // What is not there yet may be made.
    if let Ok(found) = files.stat_at(borrowed, links, path.clone()).await {
        match found.type_ {
            DescriptorType::RegularFile
            | DescriptorType::Directory
            | DescriptorType::SymbolicLink => {}
            DescriptorType::Fifo
            | DescriptorType::Socket
            | DescriptorType::BlockDevice
            | DescriptorType::CharacterDevice
            | DescriptorType::Unknown => return Err(ErrorCode::NotPermitted.into()),
        }
    }
    files.open_at(dir, links, path, how, flags).await
}

async fn read_directory(
    mut store: Store<'_>,
    dir: Resource<Descriptor>,
) -> Result<Resource<DirectoryEntryStream>, FsError> {
    let state = store.data_mut();
    if state.open_directories >= OPEN_MAX {
        let violation = Violation::Limit { what: "open directories", limit: OPEN_MAX.into() };
        return Err(FsError::trap(violation));
    }
    let turns = Arc::clone(state.guest.engine.blocking());
    let mut files = state.filesystem();
    if let Descriptor::Dir(open) = files.table.get(&dir)? {
        let open = Arc::clone(&open.dir);
        let _turn = turns.acquire().await.map_err(|_| ErrorCode::Io)?;
        let counted = tokio::task::spawn_blocking(move || is_small(&open)).await;
        if !counted.map_err(|_| ErrorCode::Io)? {
            return Err(ErrorCode::Overflow.into());
        }
    }
    let stream = files.read_directory(dir).await?;
    store.data_mut().open_directories += 1;
    Ok(stream)
}

/// Whether a directory may be read as a whole. One that cannot be read says why when it is.
#[cfg(unix)]
fn is_small(dir: &std::fs::File) -> bool {
    rustix::fs::Dir::read_from(dir)
        .map_or(true, |entries| entries.take(ENTRIES_MAX + 3).count() <= ENTRIES_MAX + 2)
}

/// Elsewhere no folders are granted to WASI.
#[cfg(not(unix))]
fn is_small(_: &std::fs::File) -> bool {
    false
}
