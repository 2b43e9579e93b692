//! The allocator of a component: the one that the standard library has for this target, except that
//! its heap begins within the memory with which an instance starts.
//!
//! A memory that a call grew is made smaller again before the next call. For both, a host changes the
//! protection of its pages, and has to interrupt all processors that run guests. So a call that needs
//! little memory does not grow it.
#![expect(unsafe_code, reason = "an allocator gives out memory")]

use std::alloc::{GlobalAlloc, Layout};
use std::arch::wasm32::memory_grow;
use std::cell::{Cell, UnsafeCell};
use std::ptr::{null_mut, with_exposed_provenance_mut};

use dlmalloc::{Allocator, Dlmalloc};

/// Bytes with which a heap begins: what a step uses whose conversation is a hundred messages of
/// 1 KiB. Pages that a call does not touch take no memory of the host.
const FIRST_BYTES: usize = 256 << 10;

const PAGE_BYTES: usize = 64 << 10;
/// Flag of a region that the allocator does not make one with its neighbor.
const NOT_MERGED: u32 = 1;
/// Bytes that are left at the end of the addresses, behind which no block may end.
const LAST_BYTES: usize = 16;

/// Kept apart from the allocator, whose beginning is not all zeros: a static with zeros alone takes no
/// bytes of the component.
static FIRST: First = First(UnsafeCell::new([0; FIRST_BYTES]));

#[global_allocator]
static HEAP: Heap = Heap(UnsafeCell::new(Dlmalloc::new_with_allocator(Memory {
    is_first_taken: Cell::new(false),
})));

#[repr(C, align(16))]
struct First(UnsafeCell<[u8; FIRST_BYTES]>);

struct Heap(UnsafeCell<Dlmalloc<Memory>>);

/// The source of the allocator's memory.
struct Memory {
    is_first_taken: Cell<bool>,
}

// SAFETY: without atomics a component has one thread.
#[cfg(not(target_feature = "atomics"))]
unsafe impl Sync for First {}
// SAFETY: as above.
#[cfg(not(target_feature = "atomics"))]
unsafe impl Sync for Heap {}

// SAFETY: the allocator fulfils the contract of this trait, and nothing that it calls allocates, so
// that it is entered once at a time.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { (*self.0.get()).malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; the block is one of this allocator, with its layout.
        unsafe { (*self.0.get()).free(block, layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { (*self.0.get()).calloc(layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; the block is one of this allocator, with its layout.
        unsafe { (*self.0.get()).realloc(block, layout.size(), layout.align(), size) }
    }
}

// SAFETY: what it gives is given once, lies within the memory, and is all zeros.
unsafe impl Allocator for Memory {
    fn alloc(&self, bytes: usize) -> (*mut u8, usize, u32) {
        if bytes <= FIRST_BYTES && !self.is_first_taken.replace(true) {
            return (FIRST.0.get().cast(), FIRST_BYTES, NOT_MERGED);
        }
        let pages = bytes.div_ceil(PAGE_BYTES);
        let before = memory_grow::<0>(pages);
        if before == usize::MAX {
            return (null_mut(), 0, 0);
        }
        let (start, bytes) = (before * PAGE_BYTES, pages * PAGE_BYTES);
        let is_last = start.wrapping_add(bytes) == 0;
        let bytes = if is_last { bytes - LAST_BYTES } else { bytes };
        (with_exposed_provenance_mut(start), bytes, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE_BYTES
    }
}
