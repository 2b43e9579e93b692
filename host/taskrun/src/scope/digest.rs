//! Names of requests, by which the journal knows them.
//!
//! A name belongs to a format of the journal: a request of which another text is made, field by
//! field, has another digest. In the first format a name is the digest alone, in later ones the
//! number of the format stands before it; so a program finds what earlier ones recorded.

use serde::Serialize;
use taskrun_journal::format::JournalFormat;

/// Bytes that are hashed before others have their turn.
const PIECE_BYTES: usize = 64 << 10;
/// Characters of a name.
const CHARS: usize = 32;

/// The name in the journal of a request with this digest.
pub(super) fn name_in(format: JournalFormat, digest: &str) -> String {
    match format {
        JournalFormat::FIRST => digest.to_owned(),
        later => format!("{later}:{digest}"),
    }
}

/// Says whether a request with this digest has this name, in whichever format it was recorded. The
/// digests of all formats that this program knows are made in the same way.
pub(super) fn is_named(name: &str, digest: &str) -> bool {
    name.rsplit_once(':').map_or(name, |(_, bare)| bare) == digest
}

/// The digest of a request. A guest chooses how long that is.
pub(super) async fn digest(request: &impl Serialize) -> String {
    let text = serde_json::to_vec(request).expect("a request has text keys only");
    let mut hash = blake3::Hasher::new();
    let mut pieces = text.chunks(PIECE_BYTES).peekable();
    while let Some(piece) = pieces.next() {
        hash.update(piece);
        if pieces.peek().is_some() {
            tokio::task::yield_now().await;
        }
    }
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
