//! Few writes for a commit.
//!
//! SQLite writes each page of a commit to the log by two calls, one for the frame's header and one for
//! the page. A commit of one run has 16 pages, which is 32 calls of the system; here the frames are
//! collected, and written together with the one that ends the commit.
//!
//! Nothing of that may be seen later than SQLite takes it to be written: the frames are written before
//! the call for the last page of the commit returns, so before the log is waited for, before its index
//! names them, and before the lock is given back; and before anything else is done with the log. Only
//! what is sure to be followed by more is kept, so the last page of a commit is not. A failure is one of
//! the call that wrote, of which SQLite undoes the commit like by one of any other. Frames that are
//! written before the commit, as a transaction is larger than the cache, are not collected: nothing would
//! say that they were rolled back.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr;

use rusqlite::ffi;

use super::header::PAGE_BYTES;
use super::vfs::below;

/// Length of the log's own header.
const LOG_HEADER_BYTES: usize = 32;
/// Length of the header of a frame in the log. Its bytes from 4 to 8 are zeros unless the frame ends a
/// commit.
const FRAME_HEADER_BYTES: usize = 24;
/// Most bytes of one write: SQLite's own layer takes longer ones for shorter ones (`nBuf &= 0x1ffff`),
/// and says of some that the disk is full.
const WRITE_BYTES_MAX: usize = 0x1_ffff;

/// The part of a log that a write is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    LogHeader,
    /// The header of a frame, and whether the frame ends a commit.
    FrameHeader {
        ends: bool,
    },
    Page,
    /// A piece of one of these.
    Other,
}

impl Part {
    /// The part that some bytes are, if they stand right behind one that is known.
    fn of(bytes: &[u8]) -> Self {
        match bytes.len() {
            LOG_HEADER_BYTES => Self::LogHeader,
            FRAME_HEADER_BYTES => Self::FrameHeader { ends: bytes[4..8] != [0; 4] },
            PAGE_BYTES => Self::Page,
            _ => Self::Other,
        }
    }

    /// True if more of the same commit is sure to follow this part, which stands right behind another one;
    /// `None` for the first of a commit.
    fn is_followed(self, before: Option<Self>) -> bool {
        match self {
            Self::FrameHeader { .. } => {
                matches!(before, None | Some(Self::LogHeader | Self::Page))
            }
            Self::Page => before == Some(Self::FrameHeader { ends: false }),
            Self::LogHeader | Self::Other => false,
        }
    }
}

/// The frames of a commit that is under way on a thread.
struct Frames {
    is_committing: bool,
    /// The log of this commit, as soon as it is used.
    file: *mut ffi::sqlite3_file,
    /// The bytes that are not written yet, and their place in the log.
    bytes: Vec<u8>,
    at: i64,
    /// The last write of this commit, and the place where what follows it begins.
    last: Option<(Part, i64)>,
}

thread_local! {
    static FRAMES: RefCell<Frames> = const { RefCell::new(Frames::NONE) };
}

/// The result of a write of some bytes to a place.
trait Write: FnMut(&[u8], i64) -> c_int {}
impl<F: FnMut(&[u8], i64) -> c_int> Write for F {}

impl Frames {
    const NONE: Self =
        Self { is_committing: false, file: ptr::null_mut(), bytes: Vec::new(), at: 0, last: None };

    /// Takes a write of the commit. One that does not follow the one before it is done at once: frames
    /// that were written before the commit are changed, and their headers once more after it.
    fn put(&mut self, bytes: &[u8], at: i64, mut write: impl Write) -> c_int {
        let (part, before) = (Part::of(bytes), self.last.map(|(part, _)| part));
        let is_next = self.last.is_none_or(|(_, end)| end == at);
        if !is_next || self.bytes.len() + bytes.len() > WRITE_BYTES_MAX {
            let code = self.write_out(&mut write);
            if code != ffi::SQLITE_OK {
                return code;
            }
        }
        let length = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        self.last = Some((if is_next { part } else { Part::Other }, at.saturating_add(length)));
        if self.bytes.is_empty() {
            self.at = at;
        }
        self.bytes.extend_from_slice(bytes);
        match is_next && part.is_followed(before) {
            true => ffi::SQLITE_OK,
            false => self.write_out(&mut write),
        }
    }

    /// Writes what was collected. After a failure nothing is left.
    fn write_out(&mut self, write: &mut impl Write) -> c_int {
        if self.bytes.is_empty() {
            return ffi::SQLITE_OK;
        }
        let code = write(&self.bytes, self.at);
        self.bytes.clear();
        if code != ffi::SQLITE_OK {
            self.last = None;
        }
        code
    }
}

/// Does a commit, whose frames are written together.
///
/// # Panics
/// If it was done and some of it cannot be written: the log does not have what its index says.
pub(crate) fn together<T, E>(commit: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let end = CommitEnd;
    FRAMES.with_borrow_mut(|frames| frames.is_committing = true);
    let committed = commit();
    if committed.is_ok() {
        // Nothing is left of a commit of the SQLite that is known. That of another one may not be lost.
        let written = write_rest();
        assert_eq!(written, ffi::SQLITE_OK, "a part of a commit is not written");
    }
    drop(end);
    committed
}

/// Ends the collection. What is left then is of a commit that failed.
struct CommitEnd;

impl Drop for CommitEnd {
    fn drop(&mut self) {
        FRAMES.with_borrow_mut(|frames| {
            let mut bytes = std::mem::take(&mut frames.bytes);
            bytes.clear();
            *frames = Frames { bytes, ..Frames::NONE };
        });
    }
}

/// Uses the frames of the commit of this thread that writes a log; `None` if there is none, as on a
/// thread that is about to end.
fn of_commit<T>(file: *mut ffi::sqlite3_file, work: impl FnOnce(&mut Frames) -> T) -> Option<T> {
    let used = FRAMES.try_with(|frames| {
        let mut frames = frames.borrow_mut();
        if !frames.is_committing {
            return None;
        }
        // A commit has one log; of another one nothing is collected.
        if frames.file.is_null() {
            frames.file = file;
        }
        (frames.file == file).then(|| work(&mut frames))
    });
    used.ok().flatten()
}

/// Replaces those functions of a log which write it, or which see what was written.
pub(super) fn replace(methods: &mut ffi::sqlite3_io_methods) {
    methods.xRead = Some(read);
    methods.xWrite = Some(write);
    methods.xTruncate = Some(truncate);
    methods.xSync = Some(sync);
    methods.xFileSize = Some(file_size);
}

/// Writes bytes below.
///
/// # Safety
/// That of [`below`].
#[expect(unsafe_code, reason = "files are SQLite's")]
unsafe fn write_below(file: *mut ffi::sqlite3_file, bytes: &[u8], at: i64) -> c_int {
    #[cfg(test)]
    if let Some(code) = tests::meet(bytes.len()) {
        return code;
    }
    // SAFETY: the caller's; the bytes are as many as is said.
    unsafe {
        let Some(write) = below(file).xWrite else { return ffi::SQLITE_IOERR };
        let Ok(amount) = c_int::try_from(bytes.len()) else { return ffi::SQLITE_TOOBIG };
        write(file, bytes.as_ptr().cast(), amount, at)
    }
}

/// Writes what is left of the commit of this thread.
fn write_rest() -> c_int {
    let (file, left) = FRAMES.with_borrow(|frames| (frames.file, frames.bytes.len()));
    if left == 0 {
        return ffi::SQLITE_OK;
    }
    tracing::error!(left, "SQLite ended a commit otherwise than expected");
    #[expect(unsafe_code, reason = "files are SQLite's")]
    // SAFETY: the file was used by this commit, of a connection that is open still.
    unsafe {
        write_out(file)
    }
}

/// Writes what was collected for a log.
///
/// # Safety
/// That of [`below`].
#[expect(unsafe_code, reason = "files are SQLite's")]
unsafe fn write_out(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: the caller's.
    let mut write = |bytes: &[u8], at| unsafe { write_below(file, bytes, at) };
    of_commit(file, |frames| frames.write_out(&mut write)).unwrap_or(ffi::SQLITE_OK)
}

#[expect(unsafe_code, reason = "SQLite calls it with pointers")]
unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    buffer: *const c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    let Ok(length) = usize::try_from(amount) else { return ffi::SQLITE_IOERR };
    // SAFETY: SQLite gives a file of ours and a buffer of `amount` bytes.
    unsafe {
        let bytes = std::slice::from_raw_parts(buffer.cast::<u8>(), length);
        let write = |bytes: &[u8], at| write_below(file, bytes, at);
        let collected = of_commit(file, |frames| frames.put(bytes, offset, write));
        collected.unwrap_or_else(|| write(bytes, offset))
    }
}

/// Writes what was collected for a log, and then does something else with it; the first error of both.
///
/// # Safety
/// That of [`below`].
#[expect(unsafe_code, reason = "files are SQLite's")]
unsafe fn after_writing(
    file: *mut ffi::sqlite3_file,
    next: Option<impl FnOnce() -> c_int>,
) -> c_int {
    // SAFETY: the caller's.
    let code = unsafe { write_out(file) };
    match next {
        Some(next) if code == ffi::SQLITE_OK => next(),
        Some(_) => code,
        None => ffi::SQLITE_IOERR,
    }
}

#[expect(unsafe_code, reason = "SQLite calls it with pointers")]
unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    buffer: *mut c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite gives a file of ours and a buffer of `amount` bytes.
    unsafe {
        after_writing(
            file,
            below(file).xRead.map(|read| move || read(file, buffer, amount, offset)),
        )
    }
}

#[expect(unsafe_code, reason = "SQLite calls it with pointers")]
unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: ffi::sqlite3_int64) -> c_int {
    // SAFETY: SQLite gives a file of ours.
    unsafe { after_writing(file, below(file).xTruncate.map(|cut| move || cut(file, length))) }
}

#[expect(unsafe_code, reason = "SQLite calls it with pointers")]
unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite gives a file of ours.
    unsafe { after_writing(file, below(file).xSync.map(|sync| move || sync(file, flags))) }
}

#[expect(unsafe_code, reason = "SQLite calls it with pointers")]
unsafe extern "C" fn file_size(
    file: *mut ffi::sqlite3_file,
    length: *mut ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite gives a file of ours, and a place for the number.
    unsafe { after_writing(file, below(file).xFileSize.map(|size| move || size(file, length))) }
}

#[cfg(test)]
mod tests;
