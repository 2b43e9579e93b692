//! The keyed hash that a kept file carries.

use crate::digest::HashThreads;

/// Bytes of a file that are hashed at once: as many as a processor's own cache holds with their copy.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// The keyed hash of a file: over the facts that it must fit, its length, and the hashes of its pieces,
/// so that several threads can each read, hash and copy a piece of their own.
pub(super) struct Mac {
    facts: blake3::Hasher,
    /// Pieces have a key of their own, so that none of them can pass for the facts of a file.
    piece_key: [u8; blake3::KEY_LEN],
}

impl Mac {
    /// The hash of a file that must fit these facts, which have a fixed length together.
    pub(super) fn new<'a>(
        key: &[u8; blake3::KEY_LEN],
        facts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(key);
        for fact in facts {
            hasher.update(fact);
        }
        let piece_key = *blake3::keyed_hash(key, b"piece").as_bytes();
        Self { facts: hasher, piece_key }
    }

    /// The hash of a file that holds these bytes.
    pub(super) fn of(&self, bytes: &[u8]) -> blake3::Hash {
        let threads = HashThreads::for_bytes(bytes.len() as u64);
        let pieces: Vec<&[u8]> = bytes.chunks(PIECE_BYTES).collect();
        let hashes = threads.map(pieces.len(), |_, n| self.piece(pieces[n]));
        self.of_pieces(bytes.len() as u64, hashes)
    }

    /// The hash of one piece, all of which but the last have [`PIECE_BYTES`].
    pub(super) fn piece(&self, bytes: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.piece_key, bytes)
    }

    /// The hash of a file of so many bytes, whose pieces have these hashes.
    pub(super) fn of_pieces(
        &self,
        len: u64,
        pieces: impl IntoIterator<Item = blake3::Hash>,
    ) -> blake3::Hash {
        let mut hasher = self.facts.clone();
        hasher.update(&len.to_le_bytes());
        for piece in pieces {
            hasher.update(piece.as_bytes());
        }
        hasher.finalize()
    }
}
