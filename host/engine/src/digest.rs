//! Digests of bytes and of files, by all processors where there is much to hash.

use std::io::{self, Read};

use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// Bytes from which on several threads are quicker than one, with the time that these take to start.
const SHARED_FROM: u64 = 4 << 20;
/// Most threads.
const THREADS_MAX: usize = 8;
/// Bytes that are read at once.
const PIECE_BYTES: u64 = 2 << 20;

/// Threads that hash, for as long as something is being hashed; none for little, or where none can be
/// started.
pub(crate) struct HashThreads(Option<rayon::ThreadPool>);

impl HashThreads {
    /// Those for so many bytes.
    pub(crate) fn for_bytes(bytes: u64) -> Self {
        if bytes < SHARED_FROM {
            return Self(None);
        }
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(all.min(THREADS_MAX));
        Self(pool.thread_name(|_| "taskrun-hash".to_owned()).build().ok())
    }

    /// Adds bytes to what is hashed.
    pub(crate) fn update(&self, hasher: &mut blake3::Hasher, bytes: &[u8]) {
        match &self.0 {
            Some(pool) => {
                pool.install(|| hasher.update_rayon(bytes));
            }
            None => {
                hasher.update(bytes);
            }
        }
    }

    /// The results of `work` for the numbers below `count`, in their order, on any thread each. A buffer
    /// that a thread fills for one of them is given to it again for the next.
    pub(crate) fn map<T: Send>(
        &self,
        count: usize,
        work: impl Fn(&mut Vec<u8>, usize) -> T + Sync + Send,
    ) -> Vec<T> {
        match &self.0 {
            Some(pool) => {
                let of_all = (0..count).into_par_iter().map_init(Vec::new, work);
                pool.install(|| of_all.collect())
            }
            None => {
                let mut buffer = Vec::new();
                (0..count).map(|n| work(&mut buffer, n)).collect()
            }
        }
    }
}

/// Reads the next bytes in place of those that a piece has; none at the reader's end.
fn read_piece(reader: &mut impl Read, piece: &mut Vec<u8>) -> io::Result<()> {
    piece.clear();
    reader.by_ref().take(PIECE_BYTES).read_to_end(piece).map(drop)
}

/// The digest of some bytes.
pub(crate) fn of(bytes: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    HashThreads::for_bytes(bytes.len() as u64).update(&mut hasher, bytes);
    hasher.finalize()
}

/// The digest of all that a reader gives, which is about so many bytes. A piece is read while the one
/// before is hashed, if there are threads.
///
/// # Errors
/// The reader's.
pub(crate) fn of_reader(mut reader: impl Read + Send, bytes: u64) -> io::Result<blake3::Hash> {
    let (mut hasher, threads) = (blake3::Hasher::new(), HashThreads::for_bytes(bytes));
    let (mut piece, mut next) = (Vec::new(), Vec::new());
    read_piece(&mut reader, &mut piece)?;
    while !piece.is_empty() {
        match &threads.0 {
            Some(pool) => {
                let hash = || {
                    hasher.update_rayon(&piece);
                };
                pool.join(hash, || read_piece(&mut reader, &mut next)).1?;
            }
            None => {
                hasher.update(&piece);
                read_piece(&mut reader, &mut next)?;
            }
        }
        std::mem::swap(&mut piece, &mut next);
    }
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_digest_of_all_bytes_however_they_are_hashed() {
        for len in [0, 1, PIECE_BYTES, SHARED_FROM - 1, SHARED_FROM, 3 * PIECE_BYTES + 7] {
            let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let wanted = blake3::hash(&bytes);
            assert_eq!(of(&bytes), wanted, "{len}");
            assert_eq!(of_reader(&bytes[..], len).expect("memory"), wanted, "{len}");
        }
    }
}
