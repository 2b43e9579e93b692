//! Checksums of pages.
//!
//! SQLite has none: a flipped bit in an index, or in a column, is not known from what was written.
//! So each page of the database ends with a checksum of its place and of the rest of it, in bytes
//! that the file format reserves for such uses and that every other program keeps as they are. It
//! is written with the page and compared when the page is read; a page that does not fit is
//! damaged, and nothing that needs it is answered.
//!
//! The log has checksums of its own, which SQLite compares when it takes up the log of somebody who
//! died, and not when it reads from it. Pages stand in it without one of these, so that another
//! program that copies them into the file leaves pages without a checksum (zeros), and none with a
//! wrong one. Such pages are taken as they are until this program writes them. A page that another
//! program *changes* keeps the checksum of what was there before, which is what damage looks like,
//! and is refused like it.
//!
//! A page and its checksum are one write of one page, so that whatever dies between two writes
//! leaves each page with its own. A page that is half written, as by a loss of power, does not fit;
//! until the copy of the log into the file is whole and on the disk, SQLite reads that page from
//! the log.
//!
//! This is done below SQLite, between it and its own layer over the operating system (`vfs.rs`).

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::time::Duration;

use rusqlite::{Connection, ffi};

use super::fault::Fault;
use super::header::{Header, PAGE_BYTES, SUM_BYTES};
use super::vfs::{below, failure, is_ours};

/// Most reads of a page whose checksum differs: another process may be writing it.
const READS_MAX: u32 = 4;
const REREAD_PAUSE: Duration = Duration::from_millis(1);
/// SQLite's code for a damaged file, extended by a number that it does not use. After that code alone
/// it would commit nothing in the same transaction, so that nobody could pass over what is damaged.
const DAMAGED_PAGE: c_int = ffi::SQLITE_CORRUPT | (0x40 << 8);

/// The result of comparing a page with its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumState {
    Fits,
    /// It has no checksum.
    Bare,
    Differs,
}

/// The bytes of the first page that its checksum covers. Left out are its counters, of changes and
/// of changes of the schema, and the version of SQLite that wrote them: other programs count on in
/// the copies that they make, and with no other value of them does SQLite read anything else (3.40,
/// 3.54).
const SUMMED_OF_FIRST: [Range<usize>; 4] = [0..24, 28..40, 44..92, 100..PAGE_BYTES - SUM_BYTES];

/// Checksum of the page at an offset; never zeros, which stand for none.
fn sum_of(page: &[u8; PAGE_BYTES], offset: i64) -> [u8; SUM_BYTES] {
    // In one piece, of which all four chunks are hashed at once. Given one after the other, the place and
    // the page take three times as long.
    let mut summed = [0; size_of::<i64>() + PAGE_BYTES - SUM_BYTES];
    let (place, rest) = summed.split_at_mut(size_of::<i64>());
    place.copy_from_slice(&offset.to_le_bytes());
    let length = match offset {
        0 => SUMMED_OF_FIRST.into_iter().fold(0, |at, part| {
            let end = at + part.len();
            rest[at..end].copy_from_slice(&page[part]);
            end
        }),
        _ => {
            rest.copy_from_slice(&page[..PAGE_BYTES - SUM_BYTES]);
            rest.len()
        }
    };
    let hash = blake3::hash(&summed[..size_of::<i64>() + length]);
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&hash.as_bytes()[..SUM_BYTES]);
    if sum == [0; SUM_BYTES] { [1; SUM_BYTES] } else { sum }
}

/// Compares the page at an offset with its checksum.
pub(crate) fn fit(page: &[u8; PAGE_BYTES], offset: i64) -> ChecksumState {
    let sum = &page[PAGE_BYTES - SUM_BYTES..];
    if sum == [0; SUM_BYTES] {
        ChecksumState::Bare
    } else if *sum == sum_of(page, offset) {
        ChecksumState::Fits
    } else {
        ChecksumState::Differs
    }
}

fn is_page(amount: c_int, offset: i64) -> bool {
    usize::try_from(amount) == Ok(PAGE_BYTES) && offset % (PAGE_BYTES as i64) == 0
}

/// Replaces those functions of a database which read and write a part of it, and that which tells what
/// may be read of it.
pub(super) fn replace(methods: &mut ffi::sqlite3_io_methods) {
    // Without mapping: mapped pages are read past this layer.
    methods.iVersion = methods.iVersion.min(2);
    methods.xRead = Some(read);
    methods.xWrite = Some(write);
    methods.xDeviceCharacteristics = Some(characteristics);
}

/// Reads past the comparison.
///
/// # Safety
/// That of [`below`].
#[expect(unsafe_code, reason = "files are SQLite's")]
unsafe fn read_below(file: *mut ffi::sqlite3_file, buffer: &mut [u8], offset: i64) -> c_int {
    // SAFETY: the buffer is as long as it says.
    unsafe {
        let Some(read) = below(file).xRead else { return ffi::SQLITE_IOERR };
        let amount = c_int::try_from(buffer.len()).unwrap_or(c_int::MAX);
        read(file, buffer.as_mut_ptr().cast(), amount, offset)
    }
}

/// True if the header of a file says that it has checksums.
///
/// # Safety
/// That of [`below`].
#[expect(unsafe_code, reason = "files are SQLite's")]
unsafe fn file_has_sums(file: *mut ffi::sqlite3_file) -> bool {
    let mut header = Header::EMPTY;
    // SAFETY: the caller's.
    let code = unsafe { read_below(file, &mut header.0, 0) };
    code == ffi::SQLITE_OK && header.has_sums()
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
        let Some(read) = below(file).xRead else { return ffi::SQLITE_IOERR };
        let code = read(file, buffer, amount, offset);
        if code == ffi::SQLITE_IOERR_SHORT_READ && is_page(amount, offset) {
            // SQLite takes what is missing for zeros. Beyond the end of the file that is right.
            let is_cut = size(file).is_some_and(|size| size > offset) && file_has_sums(file);
            return if is_cut { DAMAGED_PAGE } else { code };
        }
        if code != ffi::SQLITE_OK || !is_page(amount, offset) {
            return code;
        }
        let page = &mut *buffer.cast::<[u8; PAGE_BYTES]>();
        match fit(page, offset) {
            ChecksumState::Bare => ffi::SQLITE_OK,
            // In the log and in memory it has none.
            ChecksumState::Fits => {
                page[PAGE_BYTES - SUM_BYTES..].fill(0);
                ffi::SQLITE_OK
            }
            ChecksumState::Differs if file_has_sums(file) => DAMAGED_PAGE,
            ChecksumState::Differs => ffi::SQLITE_OK,
        }
    }
}

#[expect(unsafe_code, reason = "SQLite calls it with pointers")]
unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    buffer: *const c_void,
    amount: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite gives a file of ours and a buffer of `amount` bytes.
    unsafe {
        let Some(write) = below(file).xWrite else { return ffi::SQLITE_IOERR };
        if !is_page(amount, offset) {
            return write(file, buffer, amount, offset);
        }
        let page = &*buffer.cast::<[u8; PAGE_BYTES]>();
        // Of a file of another kind the last bytes of a page are content.
        let has_sums = match offset {
            0 => Header::of_page(page).has_sums(),
            _ => file_has_sums(file),
        };
        if !has_sums {
            return write(file, buffer, amount, offset);
        }
        let mut summed = *page;
        summed[PAGE_BYTES - SUM_BYTES..].copy_from_slice(&sum_of(page, offset));
        write(file, summed.as_ptr().cast(), amount, offset)
    }
}

/// The abilities of the file, as SQLite sees them. Long values it would otherwise read past the
/// pages that they are in, without their last bytes.
#[expect(unsafe_code, reason = "SQLite calls it with pointers")]
unsafe extern "C" fn characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite gives a file of ours.
    unsafe {
        let below = below(file).xDeviceCharacteristics;
        below.map_or(0, |below| below(file) & !ffi::SQLITE_IOCAP_SUBPAGE_READ)
    }
}

/// The length of a file.
///
/// # Safety
/// That of [`below`].
#[expect(unsafe_code, reason = "files are SQLite's")]
unsafe fn size(file: *mut ffi::sqlite3_file) -> Option<i64> {
    let mut bytes: ffi::sqlite3_int64 = 0;
    // SAFETY: the caller's; the number lives until the function returns.
    let code = unsafe { below(file).xFileSize?(file, &raw mut bytes) };
    (code == ffi::SQLITE_OK).then_some(bytes)
}

fn control(db: &Connection, what: c_int, argument: *mut c_void) -> Result<(), Fault> {
    #[expect(unsafe_code, reason = "what SQLite is asked here has no other door")]
    // SAFETY: the connection is open, and both callers give what `what` is about.
    let code = unsafe {
        let main: *const c_char = c"main".as_ptr();
        ffi::sqlite3_file_control(db.handle(), main, what, argument)
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(failure(code)) }
}

/// Reserves the bytes of checksums in a database of which no page was written.
pub(crate) fn reserve(db: &Connection) -> Result<(), Fault> {
    let mut bytes = c_int::try_from(SUM_BYTES).unwrap_or(c_int::MAX);
    control(db, ffi::SQLITE_FCNTL_RESERVE_BYTES, ptr::from_mut(&mut bytes).cast())
}

/// # Errors
/// [`Fault::Damaged`] if the file does not reserve them.
pub(crate) fn check_reserved(db: &Connection) -> Result<(), Fault> {
    match header_of(db)? {
        Some(header) if header.is_laid_out() => Ok(()),
        Some(_) | None => Err(Fault::Damaged("it has no room for checksums".to_owned())),
    }
}

/// The header of the file of a connection, without a lock and whatever its log says; `None` of a
/// shorter file.
pub(crate) fn header_of(db: &Connection) -> Result<Option<Header>, Fault> {
    let file = file_of(db)?;
    let mut header = Header::EMPTY;
    #[expect(unsafe_code, reason = "files are SQLite's")]
    // SAFETY: the file is that of this connection, which is open and was opened in our layer.
    let code = unsafe { read_below(file, &mut header.0, 0) };
    match code {
        ffi::SQLITE_OK => Ok(Some(header)),
        ffi::SQLITE_IOERR_SHORT_READ => Ok(None),
        code => Err(failure(code)),
    }
}

/// The database of a connection, which was opened in our layer.
fn file_of(db: &Connection) -> Result<*mut ffi::sqlite3_file, Fault> {
    let mut file: *mut ffi::sqlite3_file = ptr::null_mut();
    control(db, ffi::SQLITE_FCNTL_FILE_POINTER, ptr::from_mut(&mut file).cast())?;
    #[expect(unsafe_code, reason = "files are SQLite's")]
    // SAFETY: the file of an open connection has functions, or none where it could not be opened.
    let methods = unsafe { file.as_ref().map_or(ptr::null(), |file| file.pMethods) };
    if is_ours(methods) { Ok(file) } else { Err(failure(ffi::SQLITE_MISUSE)) }
}

/// Some pages of the file, as they stand there.
#[derive(Debug, Default)]
pub(crate) struct PageScan {
    /// Those whose checksum does not fit, or of which a part is missing, by number from 1.
    pub(crate) damaged: Vec<i64>,
    /// The number of pages without one.
    pub(crate) bare: u64,
    /// The number of the page after these; `None` at the end of the file.
    pub(crate) next: Option<i64>,
}

/// Reads the page of a number, from 1, as it stands in the file, and compares it with its checksum;
/// `None` beyond the end of the file. One in which the file ends does not fit, and ends with zeros.
pub(crate) fn read_page(
    db: &Connection,
    number: i64,
    page: &mut [u8; PAGE_BYTES],
) -> Result<Option<ChecksumState>, Fault> {
    let file = file_of(db)?;
    let offset = (number - 1).saturating_mul(PAGE_BYTES as i64);
    #[expect(unsafe_code, reason = "files are SQLite's")]
    // SAFETY: the file is that of this connection, which is open and was opened in our layer.
    let (code, size) = unsafe { (read_below(file, page, offset), size(file)) };
    match code {
        ffi::SQLITE_OK => Ok(Some(fit(page, offset))),
        ffi::SQLITE_IOERR_SHORT_READ if size > Some(offset) => Ok(Some(ChecksumState::Differs)),
        ffi::SQLITE_IOERR_SHORT_READ => Ok(None),
        code => Err(failure(code)),
    }
}

/// Looks at so many pages from a number on, which is at least 1. The connection is to be in a
/// transaction.
pub(crate) fn look(db: &Connection, from: i64, count: i64) -> Result<PageScan, Fault> {
    let mut looked = PageScan { next: Some(from), ..PageScan::default() };
    let mut page = [0; PAGE_BYTES];
    for number in from..from.saturating_add(count) {
        let mut reads = 0;
        let found = loop {
            let Some(fit) = read_page(db, number, &mut page)? else { break None };
            reads += 1;
            match fit {
                ChecksumState::Differs if reads < READS_MAX => {
                    std::thread::park_timeout(REREAD_PAUSE)
                }
                found @ (ChecksumState::Fits | ChecksumState::Bare | ChecksumState::Differs) => {
                    break Some(found);
                }
            }
        };
        match found {
            None => {
                looked.next = None;
                break;
            }
            Some(ChecksumState::Fits) => {}
            Some(ChecksumState::Bare) => looked.bare += 1,
            Some(ChecksumState::Differs) => looked.damaged.push(number),
        }
        looked.next = Some(number + 1);
    }
    Ok(looked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores on the disk have these: another value would make each of their pages a damaged one.
    #[test]
    fn the_checksum_of_a_page_is_what_it_always_was() {
        let page = std::array::from_fn(|at| (at % 251) as u8);
        assert_eq!(sum_of(&page, 0), [115, 158, 40, 251, 190, 249, 14, 33]);
        assert_eq!(sum_of(&page, 3 * 4096), [212, 116, 127, 216, 243, 96, 110, 102]);
    }
}
