//! The first bytes of a database file, which say whose it is.

use taskrun_journal::format::JournalFormat;

use super::schema::{APPLICATION_ID, FileVersion, SCHEMA_VERSION};

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;
/// Bytes of a checksum, at the end of its page.
pub(super) const SUM_BYTES: usize = 8;
/// Bytes of the header of a database.
const BYTES: usize = 100;

/// Offsets in the header: the length of pages, the bytes that each page reserves at its end, the
/// number of pages, the largest root of a table, and the two numbers that are an application's.
const PAGE_LENGTH: usize = 16;
const RESERVED: usize = 20;
const PAGES: usize = 28;
const LARGEST_ROOT: usize = 52;
const USER_VERSION: usize = 60;
const APPLICATION: usize = 68;

/// The header of a database.
pub(super) struct Header(pub(super) [u8; BYTES]);

impl Header {
    /// The header of a file of which no page was written: zeros.
    pub(super) const EMPTY: Self = Self([0; BYTES]);

    /// That of a file with this first page.
    pub(super) fn of_page(page: &[u8; PAGE_BYTES]) -> Self {
        let mut header = Self::EMPTY;
        header.0.copy_from_slice(&page[..BYTES]);
        header
    }

    /// True if the file has checksums: it reserves the bytes, or says that it is a store of this
    /// version, which does.
    pub(super) fn has_sums(&self) -> bool {
        let reserves = self.is_of_sqlite() && usize::from(self.0[RESERVED]) == SUM_BYTES;
        reserves || self.version().is_some_and(|version| version.tables == SCHEMA_VERSION)
    }

    /// True if the pages are as long as ours and end with a checksum. No flip of one bit makes of
    /// this length another one that SQLite knows, with which pages would be read past all comparison.
    pub(super) fn is_laid_out(&self) -> bool {
        let bytes = usize::from(u16::from_be_bytes([self.0[PAGE_LENGTH], self.0[PAGE_LENGTH + 1]]));
        bytes == PAGE_BYTES && usize::from(self.0[RESERVED]) == SUM_BYTES
    }

    /// True if the file says that it is a store of this version, with journals of a format up to this
    /// one.
    pub(super) fn is_of_store(&self, format: JournalFormat) -> bool {
        let is_known =
            |found: FileVersion| found.tables == SCHEMA_VERSION && found.format <= format;
        self.is_of_any_store() && self.version().is_some_and(is_known)
    }

    /// True if the file says that it is a store of any version with pages like ours.
    fn is_of_any_store(&self) -> bool {
        self.is_of_sqlite() && self.is_laid_out() && self.version().is_some()
    }

    /// The number of pages that the file says it has.
    pub(super) fn pages(&self) -> i64 {
        i64::from(u32::from_be_bytes(self.bytes_at(PAGES)))
    }

    /// True if pages of the file say of all others which use they have. Without them this is zero.
    pub(super) fn has_page_maps(&self) -> bool {
        self.bytes_at(LARGEST_ROOT) != [0; 4]
    }

    /// True if it says nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.0 == Self::EMPTY.0
    }

    fn is_of_sqlite(&self) -> bool {
        self.0.starts_with(b"SQLite format 3\0")
    }

    /// The version of the store; `None` of a file that is none.
    fn version(&self) -> Option<FileVersion> {
        let number = |at| i64::from(i32::from_be_bytes(self.bytes_at(at)));
        (number(APPLICATION) == APPLICATION_ID).then(|| FileVersion::of(number(USER_VERSION)))
    }

    fn bytes_at(&self, at: usize) -> [u8; 4] {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_header_of_a_store_of_this_version_is_that_of_a_store() {
        let format = JournalFormat::CURRENT;
        let version = |version: FileVersion| {
            u32::try_from(version.user_version()).expect("32 bits").to_be_bytes()
        };
        let mut ours = Header::EMPTY;
        let mut put = |at: usize, bytes: &[u8]| ours.0[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"SQLite format 3\0");
        put(PAGE_LENGTH, &4096_u16.to_be_bytes());
        put(RESERVED, &[8]);
        put(USER_VERSION, &version(FileVersion::with(format)));
        put(APPLICATION, b"TASK");
        put(PAGES, &70_000_u32.to_be_bytes());
        assert!(ours.is_of_store(format) && ours.has_sums() && !ours.is_empty());
        assert!(ours.is_of_any_store() && !ours.has_page_maps());
        assert_eq!(ours.pages(), 70_000);
        let later = FileVersion::with(JournalFormat(format.0 + 1));
        let other = FileVersion { tables: SCHEMA_VERSION + 1, format };
        let changes: [(usize, &[u8]); 6] = [
            (0, b"sQLite"),
            (PAGE_LENGTH, &8192_u16.to_be_bytes()),
            (RESERVED, &[0]),
            (USER_VERSION, &version(later)),
            (USER_VERSION, &version(other)),
            (APPLICATION, b"task"),
        ];
        for (at, bytes) in changes {
            let mut changed = Header(ours.0);
            changed.0[at..at + bytes.len()].copy_from_slice(bytes);
            assert!(!changed.is_of_store(format), "{at}: {bytes:?}");
            assert_eq!(changed.is_of_any_store(), at == USER_VERSION, "{at}: {bytes:?}");
        }
        assert!(!Header::EMPTY.is_of_store(format) && Header::EMPTY.is_empty());
    }
}
