//! Digests of bytes and of files, by all processors where there is much to hash.

use std::io::{self, Read};

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

    /// Adds all that a reader gives to what is hashed, and has `keep` see it, piece by piece. A piece
    /// is kept and the next one read while it is hashed, if there are threads.
    ///
    /// # Errors
    /// Those of the reader and of `keep`.
    pub(crate) fn update_from(
        &self,
        hasher: &mut blake3::Hasher,
        reader: &mut (impl Read + Send),
        mut keep: impl FnMut(&[u8]) -> io::Result<()> + Send,
    ) -> io::Result<()> {
        let (mut piece, mut next) = (Vec::new(), Vec::new());
        read_piece(reader, &mut piece)?;
        while !piece.is_empty() {
            let mut go_on = || {
                keep(&piece)?;
                read_piece(reader, &mut next)
            };
            match &self.0 {
                Some(pool) => {
                    let hash = || {
                        hasher.update_rayon(&piece);
                    };
                    pool.join(hash, go_on).1?;
                }
                None => {
                    hasher.update(&piece);
                    go_on()?;
                }
            }
            std::mem::swap(&mut piece, &mut next);
        }
        Ok(())
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

/// The digest of all that a reader gives, which is about so many bytes.
///
/// # Errors
/// The reader's.
pub(crate) fn of_reader(mut reader: impl Read + Send, bytes: u64) -> io::Result<blake3::Hash> {
    let (mut hasher, threads) = (blake3::Hasher::new(), HashThreads::for_bytes(bytes));
    threads.update_from(&mut hasher, &mut reader, |_| Ok(()))?;
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
