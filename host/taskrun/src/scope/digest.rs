//! Names of requests, by which the journal knows them.
//!
//! A name belongs to a format of the journal: a request of which another text is made, field by
//! field, has another digest. In the first format a name is the digest alone, in later ones the
//! number of the format stands before it; so a program finds what earlier ones recorded.

use serde::Serialize;
use taskrun_journal::format::JournalFormat;

/// Bytes that are hashed before others have their turn.
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// Characters of a name.
const CHARS: usize = 32;

/// The name in the journal of a request with this digest.
pub(super) fn name_in(format: JournalFormat, digest: &str) -> String {
    match format {
        JournalFormat::FIRST => digest.to_owned(),
        later => format!("{later}:{digest}"),
    }
}

/// The first format of the journal in which digests are made as a program makes them. Where the text
/// of a request becomes another one, that program's own format stands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestsSince(pub JournalFormat);

impl Default for DigestsSince {
    fn default() -> Self {
        Self(JournalFormat::FIRST)
    }
}

/// The relation of a recorded name to the digest of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// It is the name of this request.
    Same,
    /// It is the name of another one.
    Other,
    /// It was made in another way: which request it names is not known.
    Unknown,
}

/// Compares a recorded name with the digest of a request, in whichever format it was recorded; `since`
/// that one digests are made as this one was.
pub(super) fn named(name: &str, digest: &str, since: DigestsSince) -> Named {
    let (format, bare) = name.rsplit_once(':').unwrap_or(("", name));
    // The first format has no number in it.
    let format = format.parse().map_or(JournalFormat::FIRST, JournalFormat);
    match (format.0 >= since.0.0, bare == digest) {
        (true, true) => Named::Same,
        (true, false) => Named::Other,
        (false, _) => Named::Unknown,
    }
}

/// The digest of a request. A guest chooses how long that is.
pub(super) fn digest<T: Serialize>(request: &T) -> impl Future<Output = String> + Send + use<T> {
    let text = serde_json::to_vec(request).expect("a request has text keys only");
    async move {
        let mut hash = blake3::Hasher::new();
        let mut pieces = text.chunks(PIECE_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            hash.update(piece);
            if pieces.peek().is_some() {
                tokio::task::yield_now().await;
            }
        }
        hex(&hash)
    }
}

/// The digest of what was hashed, as names have it.
pub(super) fn hex(hash: &blake3::Hasher) -> String {
    hash.finalize().to_hex()[..CHARS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_long_request_lets_others_have_their_turn_and_is_named_by_all_of_it() {
        let long = "x".repeat(3 * PIECE_BYTES);
        let mut named = Box::pin(digest(&long));
        for _ in 0..3 {
            assert!(futures::poll!(&mut named).is_pending());
        }
        let whole = blake3::hash(format!("{long:?}").as_bytes()).to_hex();
        assert_eq!(named.await, whole[..CHARS]);
        let mut short = Box::pin(digest(&"x"));
        assert!(futures::poll!(&mut short).is_ready());
    }
}
