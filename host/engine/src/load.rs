//! From a file to a component that can be linked.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use taskrun::clock::SystemClock;
use taskrun_journal::time::Clock;

use crate::component::{ComponentBytes, ExaminedComponent, LoadedComponent, LoadedComponentInner};
use crate::digest;
use crate::engine::Engine;
use crate::error::LoadError;
use crate::file_identity::{self, FileIdentity};
use crate::inspect::{Inspection, kept};
use crate::shape;

impl Engine {
    /// Reads of this file from now on only what has this digest: the bytes that were decided about
    /// are those that run, also where the file is replaced in between.
    pub fn pin(&self, path: PathBuf, digest: blake3::Hash) {
        self.pins().lock().insert(path, digest);
    }

    /// Reads a component and looks at it: its size, its parts, what it asks for and offers. Nothing
    /// is compiled.
    ///
    /// # Errors
    /// Every case of [`LoadError`] that is about files, bytes, parts and versions, and about what it
    /// may take.
    ///
    /// # Cancel safety
    /// Dropping the future ends the worker that looks at it, if there is one; a look in this process
    /// goes on to its end.
    pub async fn examine_file(&self, path: &Path) -> Result<ExaminedComponent, LoadError> {
        let pinned = self.pins().lock().get(path).copied();
        let is_other = move |digest| pinned.is_some_and(|pinned| pinned != digest);
        let known = self.known_file(path).await?;
        let (path, limit) = (path.to_owned(), self.options().component_bytes_max);
        match known {
            Some(known) if is_other(known.digest) => Err(LoadError::Changed { path }),
            Some(known) => Ok(known),
            None => {
                let read = move || {
                    let bytes = read(&path, limit)?;
                    let digest = digest::of(&bytes);
                    // Before they are looked at: other bytes need not be a component.
                    match is_other(digest) {
                        true => Err(LoadError::Changed { path }),
                        false => Ok((bytes, digest)),
                    }
                };
                let (bytes, digest) = blocking("reading", read).await?;
                self.examine(bytes, digest).await
            }
        }
    }

    /// A component whose findings are kept, without its bytes: it is hashed and no more, and if this
    /// process has hashed the file as it is before, not even that. What runs is what was compiled of the
    /// bytes with that digest, in any case.
    async fn known_file(&self, path: &Path) -> Result<Option<ExaminedComponent>, LoadError> {
        let Some(cache) = self.compiler().cache().cloned() else { return Ok(None) };
        let (name, limit) = (path.to_owned(), self.options().component_bytes_max);
        let file = blocking("reading", move || OpenFile::open(&name, limit)).await?;
        let bytes = ComponentBytes::In(path.to_owned());
        if let Some(digest) = self.files().get(file.identity)
            && let Some(inspection) = self.inspections().get(&digest)
        {
            return Ok(Some(ExaminedComponent { bytes, digest, inspection }));
        }
        let (name, identity) = (path.to_owned(), file.identity);
        let look = move || {
            let (digest, is_settled) = file.digest(&name, limit)?;
            Ok((digest, is_settled, kept::find(&cache, &digest)))
        };
        let (digest, is_settled, found) = blocking("reading", look).await?;
        let Some(inspection) = found else { return Ok(None) };
        let examined = ExaminedComponent { bytes, digest, inspection: Arc::new(inspection) };
        if is_settled {
            self.files().put(identity, digest);
            self.inspections().put(&examined);
        }
        Ok(Some(examined))
    }

    /// The findings about a component, without reading it again where its file is pinned to bytes that
    /// were looked at before; whoever compiles it reads them.
    ///
    /// # Errors
    /// As [`Engine::examine_file`].
    pub(crate) async fn inspection(&self, path: &Path) -> Result<Arc<Inspection>, LoadError> {
        let pinned = self.pins().lock().get(path).copied();
        if let Some(known) = pinned.and_then(|digest| self.inspections().get(&digest)) {
            return Ok(known);
        }
        let examined = self.examine_file(path).await?;
        self.inspections().put(&examined);
        Ok(examined.inspection)
    }

    /// The findings about bytes with this digest; those that are kept, if there are some.
    async fn examine(
        &self,
        bytes: Vec<u8>,
        digest: blake3::Hash,
    ) -> Result<ExaminedComponent, LoadError> {
        let (limit, cache) = (self.options().component_bytes_max, self.compiler().cache().cloned());
        let count = move || {
            let size = bytes.len() as u64;
            if size > limit {
                return Err(LoadError::TooLarge { bytes: size, limit });
            }
            check_beginning(&bytes)?;
            let kept = cache.and_then(|cache| kept::find(&cache, &digest));
            if kept.is_none() {
                shape::check(&bytes)?;
            }
            Ok((Arc::new(bytes), kept))
        };
        let (bytes, kept) = blocking("looking at", count).await?;
        let inspection = match kept {
            Some(inspection) => inspection,
            None => self.look(&bytes, digest).await?,
        };
        let (bytes, inspection) = (ComponentBytes::Read(bytes), Arc::new(inspection));
        Ok(ExaminedComponent { bytes, digest, inspection })
    }

    /// Looks at bytes whose parts were counted, and keeps what is found.
    async fn look(
        &self,
        bytes: &Arc<Vec<u8>>,
        digest: blake3::Hash,
    ) -> Result<Inspection, LoadError> {
        let outline = self.compiler().outline(bytes, kept::entry(&digest)).await?;
        let inspection = Inspection::of(&digest, bytes.len() as u64, outline)?;
        let Some(cache) = self.compiler().cache().cloned() else { return Ok(inspection) };
        let keep = move || {
            kept::keep(&cache, &digest, &inspection);
            Ok(inspection)
        };
        blocking("keeping what was found of", keep).await
    }

    /// Compiles a component, or takes its native code from the cache.
    ///
    /// # Errors
    /// Every case of [`LoadError`] that is about compiling.
    ///
    /// # Cancel safety
    /// Dropping the future ends the compile worker, if there is one; a compilation in this
    /// process goes on to its end.
    pub async fn compile(
        &self,
        examined: &ExaminedComponent,
    ) -> Result<LoadedComponent, LoadError> {
        let digest = examined.digest;
        if let Some(loaded) = self.recent().get(&digest) {
            return Ok(loaded);
        }
        let flight = self.compiler().flight(digest);
        let _alone = flight.lock().await;
        // Whoever was here before may have compiled the same.
        if let Some(loaded) = self.recent().get(&digest) {
            return Ok(loaded);
        }
        let limit = self.options().component_bytes_max;
        let bytes = async || match &examined.bytes {
            ComponentBytes::Read(bytes) => Ok(Arc::clone(bytes)),
            ComponentBytes::In(path) => {
                let path = path.clone();
                blocking("reading", move || read_known(&path, limit, digest)).await.map(Arc::new)
            }
        };
        let component = self.compiler().native(bytes, digest).await?;
        let inspection = Inspection::clone(&examined.inspection);
        let loaded = LoadedComponent(Arc::new(LoadedComponentInner { component, inspection }));
        self.recent().put(digest, &loaded);
        Ok(loaded)
    }

    /// Reads and compiles a component. The bytes that are compiled are those that were looked at.
    ///
    /// # Errors
    /// Every case of [`LoadError`] that is not about grants, roles or descriptions;
    /// [`LoadError::Changed`] if the file changes before it is compiled and its bytes were known.
    ///
    /// # Cancel safety
    /// As [`Engine::compile`].
    pub async fn load_file(&self, path: &Path) -> Result<LoadedComponent, LoadError> {
        let examined = self.examine_file(path).await?;
        self.compile(&examined).await
    }

    /// Compiles a component, or takes its native code from the cache.
    ///
    /// # Errors
    /// As [`Engine::load_file`].
    ///
    /// # Cancel safety
    /// As [`Engine::compile`].
    pub async fn load(&self, bytes: Vec<u8>) -> Result<LoadedComponent, LoadError> {
        let hash = move || {
            let digest = digest::of(&bytes);
            Ok((bytes, digest))
        };
        let (bytes, digest) = blocking("reading", hash).await?;
        let examined = self.examine(bytes, digest).await?;
        self.compile(&examined).await
    }
}

/// The digest of a file's bytes, for [`Engine::pin`].
///
/// # Errors
/// [`LoadError::Read`], [`LoadError::NotAFile`], and [`LoadError::TooLarge`] beyond `limit` bytes.
pub fn digest_file(path: &Path, limit: u64) -> Result<blake3::Hash, LoadError> {
    let file = open_regular(path, limit)?;
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let read = digest::of_reader(file.take(limit), length);
    read.map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

/// A file whose bytes need not be read where they are known.
struct OpenFile {
    file: File,
    identity: FileIdentity,
    metadata: Metadata,
}

impl OpenFile {
    fn open(path: &Path, limit: u64) -> Result<Self, LoadError> {
        let file = open_regular(path, limit)?;
        let metadata = file.metadata();
        let metadata =
            metadata.map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
        Ok(Self { file, identity: FileIdentity::of(&metadata), metadata })
    }

    /// The digest of its bytes, and whether the file's identity stands for them from now on.
    fn digest(&self, path: &Path, limit: u64) -> Result<(blake3::Hash, bool), LoadError> {
        let failed = |source| LoadError::Read { path: path.to_owned(), source };
        let began = SystemClock::new().now();
        let digest =
            digest::of_reader((&self.file).take(limit), self.metadata.len()).map_err(failed)?;
        let after = FileIdentity::of(&self.file.metadata().map_err(failed)?);
        let is_settled = file_identity::is_settled(&self.metadata, began) && after == self.identity;
        Ok((digest, is_settled))
    }
}

/// The bytes of a file whose digest is known.
///
/// # Errors
/// [`LoadError::Changed`] if it has others by now.
fn read_known(path: &Path, limit: u64, digest: blake3::Hash) -> Result<Vec<u8>, LoadError> {
    let bytes = read(path, limit)?;
    match digest::of(&bytes) == digest {
        true => Ok(bytes),
        false => Err(LoadError::Changed { path: path.to_owned() }),
    }
}

/// Does something with a component on a thread that may block.
async fn blocking<T: Send + 'static>(
    doing: &str,
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| LoadError::internal(&format!("{doing} the component panicked")))?
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, LoadError> {
    let file = open_regular(path, limit)?;
    let length = file.metadata().map_or(0, |metadata| metadata.len().min(limit));
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // One byte more than allowed, so that a file that grows meanwhile is seen to be too large.
    file.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    Ok(bytes)
}

/// Opens a regular file without waiting: a pipe would have its reader wait for a writer.
pub(crate) fn open_regular(path: &Path, limit: u64) -> Result<std::fs::File, LoadError> {
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    let mut options = std::fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let flags = flags.bits().cast_signed();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
    }
    let file = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(LoadError::NotAFile { path: path.to_owned() });
    }
    match metadata.len() > limit {
        true => Err(LoadError::TooLarge { bytes: metadata.len(), limit }),
        false => Ok(file),
    }
}

/// After its beginning a component is a row of sections, each a kind, a length and as many bytes;
/// where the last one is longer than the file, its end is missing. The compiler would say so in
/// words that only its authors understand.
fn check_length(bytes: &[u8], mut at: usize) -> Result<(), LoadError> {
    let cut = |wanted: usize| LoadError::Truncated {
        detail: format!("it has {} bytes and should have at least {wanted}", bytes.len()),
    };
    while at < bytes.len() {
        at += 1;
        let (mut length, mut shift) = (0_usize, 0);
        loop {
            let byte = *bytes.get(at).ok_or_else(|| cut(at + 1))?;
            at += 1;
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
            if shift > 28 {
                // No number of 32 bits; the compiler says what is wrong.
                return Ok(());
            }
        }
        at = at.saturating_add(length);
    }
    if at > bytes.len() { Err(cut(at)) } else { Ok(()) }
}

/// A component begins with `\0asm`, its version and its layer, eight bytes in all.
fn check_beginning(bytes: &[u8]) -> Result<(), LoadError> {
    const WASM: &[u8] = b"\0asm";
    const MODULE: &[u8] = b"\0asm\x01\0\0\0";
    const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
    if bytes.is_empty() {
        return Err(LoadError::Empty);
    }
    if bytes.starts_with(MODULE) {
        return Err(LoadError::CoreModule);
    }
    if bytes.starts_with(COMPONENT) {
        return check_length(bytes, COMPONENT.len());
    }
    if MODULE.starts_with(bytes) || COMPONENT.starts_with(bytes) {
        return Err(LoadError::Truncated { detail: format!("it has only {} bytes", bytes.len()) });
    }
    if bytes.starts_with(WASM) {
        let detail = "its version of the binary format is unknown".to_owned();
        return Err(LoadError::Invalid { detail });
    }
    Err(LoadError::NotWasm)
}

#[cfg(test)]
mod tests;
