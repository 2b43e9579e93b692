//! The memory that the process gives back to the system.
//!
//! Freed blocks are no leak and yet stay: after ten thousand hostile calls glibc kept some hundred
//! mebibytes of them between the few that are in use. Other allocators are compared in
//! docs/decisions/sandbox.md.

/// Bytes from which on a block is mapped by itself, and so given back when it is freed. By default
/// glibc raises this with each such block, up to 32 MiB; what guests send is often larger than a
/// mebibyte and cut the heap to pieces.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BYTES_MIN: i32 = 512 << 10;

/// Has large blocks given back as soon as they are freed, in the whole process.
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the standard library has no such call")
)]
pub(crate) fn set_up() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator takes its own lock for it. It refuses what it does not know.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
    }
}

/// Gives the pages of this process's heap on which nothing is in use back to the system, on a thread of
/// its own: for a large heap it takes some ten milliseconds. For whatever comes to rest and has freed
/// memory; an engine calls it itself when no guest ran for a second.
pub fn give_back_memory() {
    let thread = std::thread::Builder::new().name("taskrun-heap".to_owned()).spawn(trim);
    if let Err(error) = thread {
        tracing::warn!(%error, "freed memory stays with the process for now");
    }
}

#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the standard library has no such call")
)]
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator takes its own locks for it.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Bytes of memory that this process has resident.
    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
        let pages = pages.expect("a number");
        pages * rustix::param::page_size()
    }

    #[test]
    fn freed_blocks_between_those_in_use_are_given_back() {
        let mut blocks: Vec<Vec<u8>> = (0..256 * 16).map(|_| vec![1; MIB / 16]).collect();
        let full = resident_bytes();
        // One in a hundred stays, so that the heap cannot simply end earlier.
        let mut number = 0;
        blocks.retain(|_| {
            number += 1;
            number % 100 == 0
        });
        trim();
        let left = resident_bytes();
        assert!(left + 192 * MIB < full, "{full} {left}");
        assert_eq!(blocks.len(), 40);
    }
}
