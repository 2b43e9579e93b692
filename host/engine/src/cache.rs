//! Native code, and what is known of components beside it, kept between starts. wasmtime runs whatever
//! it is given to deserialize, so each file carries a keyed hash over everything that makes it the right
//! one, and a file that does not fit is as good as none.

mod mac;
mod native;
mod removal;

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::mac::Mac;
pub(crate) use self::native::NativeCode;
pub use self::removal::CachedFiles;
use crate::config::ENGINE_VERSION;

const HEADER_BYTES: usize = 8 + blake3::OUT_LEN;
/// Largest refusal that is read: a kind, a time and a text that is cut before.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;
/// Largest description that is read; a tool's description of itself is a result of a call, and few of
/// those are as large.
const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;
/// Largest inspection that is read: as much as the names of a component's imports and exports can be.
const INSPECTION_BYTES_MAX: u64 = 16 << 20;
/// Largest digest that is read, with its header.
const DIGEST_BYTES_MAX: u64 = (HEADER_BYTES + blake3::OUT_LEN) as u64;
const KEY_FILE: &str = "key";
/// Extension of a file that is being written.
const TEMPORARY: &str = "tmp";

/// A folder of native code that only this host can have written. Clones are the same cache.
#[derive(Clone)]
pub struct Cache {
    dir: Arc<Path>,
    key: Arc<[u8; 32]>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// The reason that a folder cannot be used as a cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The folder or its key cannot be made, read or written.
    #[error("cannot use {path:?} for native code", path = .path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Others can write there, so what is in it proves nothing.
    #[error("{path:?} can be read or written by others; it must be ours, no link, and have the mode {mode:o}", path = .path.display())]
    Exposed {
        /// The folder or file.
        path: PathBuf,
        /// The mode it must have.
        mode: u32,
    },
    /// The key is not 32 bytes; remove the folder to begin anew.
    #[error("{path:?} is not a key of 32 bytes", path = .path.display())]
    BadKey {
        /// The file of the key.
        path: PathBuf,
    },
}

/// Everything that a piece of native code must fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Hash of the component's bytes.
    pub(crate) component: blake3::Hash,
    /// Hash of engine, settings and processor.
    pub(crate) compatibility: blake3::Hash,
}

/// The kind of a file of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Content {
    /// Native code of a component.
    Native,
    /// The reason that a component has none.
    Refusal,
    /// A component's imports, exports and functions.
    Description,
    /// The digest of a file.
    FileDigest,
    /// The findings about a component before it was compiled.
    Inspection,
}

impl Content {
    const ALL: [Self; 5] =
        [Self::Native, Self::Refusal, Self::Description, Self::FileDigest, Self::Inspection];

    /// First bytes of a file; the digit is the version of the format.
    fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Native => b"trnativ2",
            Self::Refusal => b"trrefus2",
            Self::Description => b"trdescr2",
            Self::FileDigest => b"trdiges2",
            Self::Inspection => b"trinspe2",
        }
    }

    /// The version of the format, which is a part of the name: versions of the program with other
    /// formats have files of their own.
    fn form(self) -> char {
        char::from(self.magic()[7])
    }

    fn extension(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Refusal => "refused",
            Self::Description => "described",
            Self::FileDigest => "digest",
            Self::Inspection => "inspected",
        }
    }
}

impl Cache {
    /// Opens a folder, which is made with mode 0700 if it does not exist; its key, 32 random
    /// bytes, is a file of mode 0600 in it.
    ///
    /// # Errors
    /// [`CacheError`]; a host can go on without a cache.
    pub fn open(dir: &Path) -> Result<Self, CacheError> {
        make_private_dir(dir).map_err(|source| CacheError::Io { path: dir.to_owned(), source })?;
        check_private(dir, 0o700)?;
        let path = dir.join(KEY_FILE);
        let io_error = |source| CacheError::Io { path: path.clone(), source };
        let key = match read_key(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_key(dir, &path).map_err(io_error)?;
                read_key(&path).map_err(io_error)?
            }
            other => other.map_err(io_error)?,
        };
        check_private(&path, 0o600)?;
        let key: [u8; 32] =
            key.try_into().map_err(|_| CacheError::BadKey { path: path.clone() })?;
        Ok(Self { dir: dir.into(), key: Arc::new(key) })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, content: Content, entry: Entry) -> PathBuf {
        let (component, fits) = (entry.component.to_hex(), entry.compatibility.to_hex());
        let (form, extension) = (content.form(), content.extension());
        self.dir.join(format!("{component}-{}-{form}.{extension}", &fits[..16]))
    }

    /// The keyed hash of a file of this kind for `entry`.
    fn mac(&self, content: Content, entry: Entry) -> Mac {
        let version = blake3::hash(ENGINE_VERSION.as_bytes());
        let fits = [version.as_bytes(), entry.compatibility.as_bytes(), entry.component.as_bytes()];
        let facts = fits.into_iter().map(|hash| &hash[..]);
        Mac::new(&self.key, std::iter::once(&content.magic()[..]).chain(facts))
    }

    /// The native code for `entry`, if it is there and was written with this key for exactly it.
    pub(crate) fn get(&self, entry: Entry) -> Option<NativeCode> {
        self.find(Content::Native, entry, |file, len| {
            let mac = self.mac(Content::Native, entry);
            NativeCode::read(&file, len, Content::Native.magic(), &mac)
        })
    }

    /// Keeps native code. A failure is logged and changes nothing.
    pub(crate) fn put(&self, entry: Entry, code: &[u8]) {
        self.keep(Content::Native, entry, code);
    }

    /// The reason that there is no native code for `entry`, if that was found out before.
    pub(crate) fn refusal(&self, entry: Entry) -> Option<VerifiedFile> {
        self.read(Content::Refusal, entry, REFUSAL_BYTES_MAX)
    }

    /// Remembers why there is no native code. A failure is logged and changes nothing.
    pub(crate) fn put_refusal(&self, entry: Entry, refusal: &[u8]) {
        self.keep(Content::Refusal, entry, refusal);
    }

    /// The description of a component, in the words of [`crate::catalog`].
    pub(crate) fn description(&self, entry: Entry) -> Option<VerifiedFile> {
        self.read(Content::Description, entry, DESCRIPTION_BYTES_MAX)
    }

    /// Keeps what was found out about a component. A failure is logged and changes nothing.
    pub(crate) fn put_description(&self, entry: Entry, description: &[u8]) {
        self.keep(Content::Description, entry, description);
    }

    /// The findings about a component that was looked at before, in the words of [`crate::inspect::kept`].
    pub(crate) fn inspection(&self, entry: Entry) -> Option<VerifiedFile> {
        self.read(Content::Inspection, entry, INSPECTION_BYTES_MAX)
    }

    /// Keeps the findings about a component. A failure is logged and changes nothing.
    pub(crate) fn put_inspection(&self, entry: Entry, inspection: &[u8]) {
        self.keep(Content::Inspection, entry, inspection);
    }

    /// The digest of a file that was read before.
    pub(crate) fn file_digest(&self, entry: Entry) -> Option<VerifiedFile> {
        self.read(Content::FileDigest, entry, DIGEST_BYTES_MAX)
    }

    /// Keeps the digest of a file. A failure is logged and changes nothing.
    pub(crate) fn put_file_digest(&self, entry: Entry, digest: &[u8]) {
        self.keep(Content::FileDigest, entry, digest);
    }

    fn read(&self, content: Content, entry: Entry, max: u64) -> Option<VerifiedFile> {
        self.find(content, entry, |file, len| {
            let bytes = read_bounded(file, len, max)?;
            Ok(self.verify(content, entry, bytes))
        })
    }

    /// The result of `read`, which is given the file for an entry and its length, and gives `None` if the
    /// file is not what was written.
    fn find<T>(
        &self,
        content: Content,
        entry: Entry,
        read: impl FnOnce(File, u64) -> io::Result<Option<T>>,
    ) -> Option<T> {
        let path = self.path(content, entry);
        let opened = open_ours(&path);
        if let Ok((file, _)) = &opened
            && let Err(error) = removal::renew(file)
        {
            tracing::debug!(path = %path.display(), %error, "its time cannot be renewed");
        }
        match opened.and_then(|(file, len)| read(file, len)) {
            Ok(Some(verified)) => Some(verified),
            Ok(None) => {
                tracing::warn!(path = %path.display(), "not what was written; it is as good as none");
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read what is kept");
                None
            }
        }
    }

    fn verify(&self, content: Content, entry: Entry, bytes: Vec<u8>) -> Option<VerifiedFile> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (mac, code) = rest.split_first_chunk::<32>()?;
        // `blake3::Hash` compares in constant time.
        let wanted = self.mac(content, entry).of(code);
        let fits = magic == content.magic() && blake3::Hash::from_bytes(*mac) == wanted;
        fits.then_some(VerifiedFile(bytes))
    }

    fn keep(&self, content: Content, entry: Entry, code: &[u8]) {
        let path = self.path(content, entry);
        if let Err(error) = self.write(content, &path, entry, code) {
            tracing::warn!(path = %path.display(), %error, "cannot be kept");
        }
    }

    fn write(&self, content: Content, path: &Path, entry: Entry, code: &[u8]) -> io::Result<()> {
        let (mut file, temporary) = private_file(&self.dir)?;
        let written = file
            .write_all(content.magic())
            .and_then(|()| file.write_all(self.mac(content, entry).of(code).as_bytes()))
            .and_then(|()| file.write_all(code))
            .and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // Whatever is wrong with the folder, there is nothing more to do about it.
            fs::remove_file(&temporary).ok();
        }
        written
    }
}

/// Bytes of a cache file whose hash was found right.
#[derive(Debug)]
pub(crate) struct VerifiedFile(Vec<u8>);

impl VerifiedFile {
    /// The bytes that were kept.
    pub(crate) fn code(&self) -> &[u8] {
        &self.0[HEADER_BYTES..]
    }
}

fn read_key(path: &Path) -> io::Result<Vec<u8>> {
    let (file, len) = open_ours(path)?;
    read_bounded(file, len, 64)
}

/// Opens a file of ours, which is no link, and no pipe that waits for its other end; with its length.
fn open_ours(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let flags = flags.bits().cast_signed();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
    }
    let file = options.open(path)?;
    let len = file.metadata()?.len();
    Ok((file, len))
}

fn read_bounded(file: File, len: u64, max: u64) -> io::Result<Vec<u8>> {
    if len > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{len} bytes")));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes the key under another name first: of two hosts that start at once, both get the same.
fn make_key(dir: &Path, path: &Path) -> io::Result<()> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let (mut file, temporary) = private_file(dir)?;
    let linked = file
        .write_all(&key)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&temporary, path));
    fs::remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn private_file(dir: &Path) -> io::Result<(File, PathBuf)> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let path = dir.join(format!(".{:016x}.{TEMPORARY}", u64::from_le_bytes(random)));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    Ok((options.open(&path)?, path))
}

fn make_private_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

#[cfg(unix)]
fn check_private(path: &Path, mode: u32) -> Result<(), CacheError> {
    use std::os::unix::fs::MetadataExt;

    // Not through a link: whoever made that can lead it elsewhere.
    let metadata = fs::symlink_metadata(path)
        .map_err(|source| CacheError::Io { path: path.to_owned(), source })?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    match ours && !metadata.is_symlink() && metadata.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(CacheError::Exposed { path: path.to_owned(), mode }),
    }
}

#[cfg(not(unix))]
fn check_private(_: &Path, _: u32) -> Result<(), CacheError> {
    Ok(())
}

#[cfg(test)]
mod tests;
