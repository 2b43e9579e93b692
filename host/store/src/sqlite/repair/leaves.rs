//! Rows on the leaves of tables, read where these stand in the file.
//!
//! The way to a row leads from the root of its table through inner pages, and one of these that
//! cannot be read hides all leaves beneath it, which are what was written. So each page of the file
//! is looked at, whatever its checksum says; one that begins as a leaf of a table has rows
//! (<https://sqlite.org/fileformat2.html>, 1.6 and 2.1). It does not say of which table, so only
//! rows that have a checksum of their own are known.
//!
//! A free page still has the rows that were removed from it, or that stand on another page as well.
//! A store has pages with maps of all others (1.8), and what these call free is passed over.

use rusqlite::types::Value;

use super::pages::SummedFile;
use crate::sqlite::fault::Fault;
use crate::sqlite::header::{Header, PAGE_BYTES, SUM_BYTES};
use crate::sqlite::schema::bits;
use crate::sqlite::sums::ChecksumState;

type Page = [u8; PAGE_BYTES];

/// Bytes of a page that SQLite uses.
const USABLE: usize = PAGE_BYTES - SUM_BYTES;
/// The first byte of a leaf of a table.
const LEAF: u8 = 13;
/// Offsets in a leaf: the number of its rows, and the first of their places.
const ROWS: usize = 3;
const PLACES: usize = 8;
/// Most bytes of a row on its leaf, and the fewest where the rest is on further pages,
const LOCAL_MAX: usize = USABLE - 35;
const LOCAL_MIN: usize = (USABLE - 12) * 32 / 255 - 23;
/// each of which begins with the number of the next.
const NEXT_BYTES: usize = 4;
/// Most bytes of a row that SQLite writes.
const ROW_BYTES_MAX: i64 = 1_000_000_000;

/// The first page with a map. It is of the pages after it, up to the next one with a map.
const FIRST_MAP: i64 = 2;
/// Bytes of an entry of a map, which begins with the use of its page.
const ENTRY_BYTES: usize = 5;
const ENTRIES: i64 = (USABLE / ENTRY_BYTES) as i64;
/// Uses of pages: the root of a tree, a page that is free, the first of further pages of a row,
/// another one of these, and a page of a tree that is no root.
const ROOT: u8 = 1;
const FREE: u8 = 2;
const FIRST_FURTHER: u8 = 3;
const FURTHER: u8 = 4;
const BENEATH_ROOT: u8 = 5;

/// A row on a leaf.
#[derive(Debug, PartialEq)]
pub(super) struct LeafRow {
    pub(super) number: i64,
    pub(super) values: Vec<Value>,
    /// True if the page is known to be in use; where no map can be read, it may be free.
    pub(super) is_in_use: bool,
}

/// Gives each row with so many columns on the leaves of all tables to `keep`, in no order. One page
/// and one row are in memory at a time, and no more further pages are read than the file has.
pub(super) fn rows(
    file: &SummedFile,
    columns: usize,
    mut keep: impl FnMut(LeafRow) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let Some(header) = file.header()?.filter(Header::is_laid_out) else { return Ok(()) };
    let (mut page, mut map): (Page, Option<Page>) = ([0; PAGE_BYTES], None);
    let mut further = FurtherPages { file, left: file.pages };
    for number in FIRST_MAP..=header.pages().min(file.pages) {
        let Some(state) = file.read_page(number, &mut page)? else { return Ok(()) };
        let place = (number - FIRST_MAP) % (ENTRIES + 1);
        if header.has_page_maps() && place == 0 {
            map = (state != ChecksumState::Differs).then_some(page);
            continue;
        }
        let is_in_use = match map.as_ref().map(|map| use_of(map, place)) {
            Some(ROOT | BENEATH_ROOT) => true,
            Some(FREE | FIRST_FURTHER | FURTHER) => continue,
            // A map that is zeros, or something else that is none.
            Some(_) | None => false,
        };
        if page[0] != LEAF {
            continue;
        }
        let count = usize::from(short(&page, ROWS)).min((USABLE - PLACES) / 2);
        let mut named = [false; USABLE];
        for n in 0..count {
            let place = usize::from(short(&page, PLACES + 2 * n));
            // No two rows begin at one place.
            if named.get_mut(place).is_none_or(|named| std::mem::replace(named, true)) {
                continue;
            }
            let Some(cell) = Cell::at(&page, place, row_bytes_max(file.pages)) else { continue };
            if let Some(values) = cell.values(&mut further, columns)? {
                keep(LeafRow { number: cell.number, values, is_in_use })?;
            }
        }
    }
    Ok(())
}

/// The use of the page so many after its map.
fn use_of(map: &Page, place: i64) -> u8 {
    let entry = usize::try_from(place - 1).ok().and_then(|n| map.get(n * ENTRY_BYTES));
    entry.copied().unwrap_or_default()
}

fn short(page: &Page, at: usize) -> u16 {
    u16::from_be_bytes([page[at], page[at + 1]])
}

/// Most bytes of a row in a file of so many pages.
fn row_bytes_max(pages: i64) -> usize {
    let bytes = pages.saturating_mul(USABLE as i64).min(ROW_BYTES_MAX);
    usize::try_from(bytes).unwrap_or_default()
}

/// Further pages of rows. Each one is of one row, so no more are read than the file has.
struct FurtherPages<'f> {
    file: &'f SummedFile,
    left: i64,
}

impl FurtherPages<'_> {
    /// Reads one; false if there is none of this number, or so many were read.
    fn read(&mut self, number: u32, page: &mut Page) -> Result<bool, Fault> {
        if number == 0 || self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        Ok(self.file.read_page(number.into(), page)?.is_some())
    }
}

/// A row as it stands on its leaf.
struct Cell<'p> {
    number: i64,
    /// Bytes of the row, and those of them that are on the leaf.
    bytes: usize,
    local: &'p [u8],
    /// The page with the next ones; 0 if there are no more.
    next: u32,
}

impl<'p> Cell<'p> {
    /// The one of at most so many bytes at a place of a page, unless it would not end there.
    fn at(page: &'p Page, place: usize, bytes_max: usize) -> Option<Self> {
        let (bytes, rest) = varint(page.get(place..USABLE)?)?;
        let (number, rest) = varint(rest)?;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= bytes_max)?;
        let (local, rest) = rest.split_at_checked(local_bytes(bytes))?;
        let next = match local.len() == bytes {
            true => 0,
            false => u32::from_be_bytes(*rest.first_chunk()?),
        };
        Some(Self { number: bits(number), bytes, local, next })
    }

    /// Its values, if there are so many and all of it is there.
    fn values(
        &self,
        further: &mut FurtherPages<'_>,
        columns: usize,
    ) -> Result<Option<Vec<Value>>, Fault> {
        // First, so that further pages are read of few others.
        let Some((types, head)) = self.types(columns) else { return Ok(None) };
        let Some(row) = self.whole(further)? else { return Ok(None) };
        let mut rest = &row[head..];
        let values = types.into_iter().map(|kind| {
            let (bytes, after) = rest.split_at_checked(length(kind)?)?;
            rest = after;
            value(kind, bytes)
        });
        Ok(values.collect())
    }

    /// The types of its values, if there are so many and they fill it, and the bytes before these.
    fn types(&self, columns: usize) -> Option<(Vec<u64>, usize)> {
        let (head, rest) = varint(self.local)?;
        let head = usize::try_from(head).ok()?;
        let mut rest = self.local.get(self.local.len() - rest.len()..head)?;
        let (mut types, mut bytes) = (Vec::with_capacity(columns), head);
        while !rest.is_empty() && types.len() < columns {
            let (kind, after) = varint(rest)?;
            bytes = bytes.checked_add(length(kind)?)?;
            types.push(kind);
            rest = after;
        }
        let fits = rest.is_empty() && types.len() == columns && bytes == self.bytes;
        fits.then_some((types, head))
    }

    /// All bytes of it, or nothing where its further pages end before it does, or lead back to one
    /// of themselves again and again.
    fn whole(&self, further: &mut FurtherPages<'_>) -> Result<Option<Vec<u8>>, Fault> {
        let (mut row, mut next, mut page) = (self.local.to_vec(), self.next, [0; PAGE_BYTES]);
        // The page that was read last as so many were, each time twice as many: whatever leads back
        // comes to one of these before long.
        let (mut read, mut marked) = (0_usize, 0);
        while row.len() < self.bytes {
            if next == marked || !further.read(next, &mut page)? {
                return Ok(None);
            }
            read += 1;
            if read.is_power_of_two() {
                marked = next;
            }
            let more = (self.bytes - row.len()).min(USABLE - NEXT_BYTES);
            row.extend_from_slice(&page[NEXT_BYTES..NEXT_BYTES + more]);
            next = u32::from_be_bytes([page[0], page[1], page[2], page[3]]);
        }
        Ok(Some(row))
    }
}

/// The bytes on its leaf of a row of so many.
fn local_bytes(bytes: usize) -> usize {
    if bytes <= LOCAL_MAX {
        return bytes;
    }
    // So that the last of the further pages is full.
    let local = LOCAL_MIN + (bytes - LOCAL_MIN) % (USABLE - NEXT_BYTES);
    if local <= LOCAL_MAX { local } else { LOCAL_MIN }
}

/// The number of one to nine bytes at the beginning of some, and the bytes after it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (n, byte) in bytes.iter().take(8).enumerate() {
        number = (number << 7) | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((number, &bytes[n + 1..]));
        }
    }
    // All bits of a ninth byte count.
    let last = bytes.get(8)?;
    Some(((number << 8) | u64::from(*last), &bytes[9..]))
}

/// The bytes of a value of a type; `None` of a type that there is not.
fn length(kind: u64) -> Option<usize> {
    match kind {
        0 | 8 | 9 => Some(0),
        1..=4 => usize::try_from(kind).ok(),
        5 => Some(6),
        6 | 7 => Some(8),
        10 | 11 => None,
        12.. => usize::try_from((kind - 12) / 2).ok(),
    }
}

/// The value of a type that these bytes are; `None` of a text that is none.
fn value(kind: u64, bytes: &[u8]) -> Option<Value> {
    Some(match kind {
        0 => Value::Null,
        8 => Value::Integer(0),
        9 => Value::Integer(1),
        7 => Value::Real(f64::from_be_bytes(bytes.try_into().ok()?)),
        1..=6 => Value::Integer(integer(bytes)),
        _ if kind.is_multiple_of(2) => Value::Blob(bytes.to_vec()),
        _ => Value::Text(String::from_utf8(bytes.to_vec()).ok()?),
    })
}

/// A signed number, its highest byte first.
fn integer(bytes: &[u8]) -> i64 {
    let sign = if bytes.first().is_some_and(|first| first & 0x80 != 0) { -1 } else { 0 };
    bytes.iter().fold(sign, |number, byte| (number << 8) | i64::from(*byte))
}

#[cfg(test)]
mod tests;
