//! Bytes of bodies that are counted for as long as anybody has them.

use bytes::Bytes;

/// Bytes of a body, with what they take of bounds until the last of them is gone. A guest may hand
/// an answer's body on, to a stream of its own say: then they outlive it.
struct HeldBytes<H> {
    bytes: Vec<u8>,
    _held: H,
}

impl<H> AsRef<[u8]> for HeldBytes<H> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes, which keep what they take of bounds.
pub(crate) fn holding<H: Send + 'static>(bytes: Vec<u8>, held: H) -> Bytes {
    Bytes::from_owner(HeldBytes { bytes, _held: held })
}
