//! A layer of SQLite's files that stands over SQLite's own: some functions of the files that it opens
//! are replaced, and each of these may call the one below.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rusqlite::ffi;

use super::fault::Fault;

/// Replaces functions of a file by what it is opened as, the flags of `xOpen`; false if it keeps all of
/// them.
pub(super) type Replace = fn(c_int, &mut ffi::sqlite3_io_methods) -> bool;

/// The functions of a file of ours, and those that SQLite's own layer gave it.
#[repr(C)]
struct Methods {
    /// First, so that a pointer to it is one to the whole.
    own: ffi::sqlite3_io_methods,
    below: ffi::sqlite3_io_methods,
}

/// SQLite's own layer, and what is replaced in its files.
struct Base {
    vfs: *mut ffi::sqlite3_vfs,
    replace: Replace,
}

#[expect(unsafe_code, reason = "SQLite's layers are shared by all threads, by its own contract")]
// SAFETY: a registered layer lives as long as the process and does not change.
unsafe impl Send for Base {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl Sync for Base {}

static BASE: OnceLock<Base> = OnceLock::new();

/// Makes the one layer of this process known to SQLite, under a name.
///
/// # Errors
/// The error of SQLite, each time that it is asked for.
#[expect(unsafe_code, reason = "SQLite takes layers by pointers only")]
pub(super) fn register(name: &'static CStr, replace: Replace) -> Result<(), Fault> {
    static REGISTERED: OnceLock<c_int> = OnceLock::new();
    let code = *REGISTERED.get_or_init(|| {
        // SAFETY: the layer found is valid for good and is copied; the copy lives for good.
        unsafe {
            let below = ffi::sqlite3_vfs_find(ptr::null());
            if below.is_null() {
                return ffi::SQLITE_ERROR;
            }
            let mut own = ptr::read(below);
            own.pNext = ptr::null_mut();
            own.zName = name.as_ptr();
            own.xOpen = Some(open);
            BASE.get_or_init(|| Base { vfs: below, replace });
            ffi::sqlite3_vfs_register(Box::into_raw(Box::new(own)), 0)
        }
    });
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(failure(code)) }
}

/// The error that SQLite names by a number.
pub(crate) fn failure(code: c_int) -> Fault {
    Fault::Sqlite(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))
}

#[expect(unsafe_code, reason = "SQLite calls it with pointers")]
unsafe extern "C" fn open(
    _layer: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    let Some(Base { vfs, replace }) = BASE.get() else { return ffi::SQLITE_CANTOPEN };
    // SAFETY: the arguments are SQLite's own, passed on to the layer that they are for; after it
    // answered well the functions of the file are those of that layer, which live for good.
    unsafe {
        let Some(open_below) = (**vfs).xOpen else { return ffi::SQLITE_CANTOPEN };
        let code = open_below(*vfs, name, file, flags, flags_out);
        if code == ffi::SQLITE_OK {
            let below = ptr::read((*file).pMethods);
            let mut own = ptr::read((*file).pMethods);
            if replace(flags, &mut own) {
                (*file).pMethods = methods_of(own, below);
            }
        }
        code
    }
}

/// Those of all files that were opened. SQLite's layer chooses among a handful, by the file system;
/// one for databases and one for logs are in use in practice.
fn known() -> MutexGuard<'static, Vec<&'static Methods>> {
    static KNOWN: Mutex<Vec<&'static Methods>> = Mutex::new(Vec::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one copy of functions for all files of one kind.
fn methods_of(
    own: ffi::sqlite3_io_methods,
    below: ffi::sqlite3_io_methods,
) -> *const ffi::sqlite3_io_methods {
    let mut known = known();
    let kind = |methods: &Methods| {
        let Methods { own, below } = methods;
        let locks = (below.xLock.map(|f| f as usize), below.xUnlock.map(|f| f as usize));
        let others = (below.xClose.map(|f| f as usize), below.xShmMap.map(|f| f as usize));
        (locks, others, own.xWrite.map(|f| f as usize))
    };
    let methods = Methods { own, below };
    let found = known.iter().find(|known| kind(known) == kind(&methods)).copied();
    let methods: &'static Methods = match found {
        Some(found) => found,
        None => {
            let methods = Box::leak(Box::new(methods));
            known.push(methods);
            methods
        }
    };
    ptr::from_ref(methods).cast()
}

/// The functions below those of a file of ours.
///
/// # Safety
/// Functions of the file were replaced as it was opened, and it is still open.
#[expect(unsafe_code, reason = "the functions of a file are found by its pointer")]
pub(super) unsafe fn below(file: *mut ffi::sqlite3_file) -> &'static ffi::sqlite3_io_methods {
    // SAFETY: `open` put a pointer to the first field of a `Methods` there, which lives for good.
    unsafe { &(*(*file).pMethods.cast::<Methods>()).below }
}

/// True of a file of which functions were replaced.
pub(super) fn is_ours(methods: *const ffi::sqlite3_io_methods) -> bool {
    known().iter().any(|known| ptr::eq(ptr::from_ref(*known).cast(), methods))
}
