//! Images in conversations, each by the name of its bytes: these are artifacts, and no journal holds
//! them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::artifact::Artifact;
use crate::text::cut;

/// Most bytes of an image: the least of what providers take of one.
pub const MEDIA_BYTES_MAX: usize = 5 << 20;
/// Most bytes of all images of a question, or of a request for a run: in Base64 28 MB, where the
/// providers take 32 MB of a request, 50 MB or 100 MB.
pub const MEDIA_TOTAL_BYTES_MAX: usize = 20 << 20;
/// Most images of a tool's result, or of a request for a run.
pub const MEDIA_MAX: usize = 16;
/// Bytes that are shown of a name which no image has: those of a name that one could have.
const HASH_BYTES: usize = 64;
/// Bytes for which an image counts in a conversation: at two for a token what a large one costs.
pub const MEDIA_WEIGHT: usize = 3_200;

/// An image, by the name of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Media {
    /// Its type, such as `image/png`, by what its bytes say.
    pub media_type: String,
    /// The BLAKE3 digest of its bytes: 64 hexadecimal digits in lower case.
    pub hash: String,
    /// Its size in bytes.
    pub size: u64,
}

/// Why some bytes are no image that can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// Their first bytes are those of nothing that models see.
    #[error("it is neither PNG, JPEG, GIF nor WebP")]
    Type,
    /// There are too many.
    #[error("it has more than {MEDIA_BYTES_MAX} bytes")]
    Size,
}

impl Media {
    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::try_from(self.size).unwrap_or(usize::MAX)
    }

    /// Its name, where there may be no image of it: a guest writes any text there.
    #[must_use]
    pub fn shown_hash(&self) -> &str {
        cut(&self.hash, HASH_BYTES)
    }

    /// The type of some bytes, if they are an image that can be shown.
    ///
    /// # Errors
    /// [`MediaError`].
    pub fn check(bytes: &[u8]) -> Result<&'static str, MediaError> {
        if bytes.len() > MEDIA_BYTES_MAX {
            return Err(MediaError::Size);
        }
        media_type(bytes).ok_or(MediaError::Type)
    }

    /// Names an image, and gives its bytes as what is kept of it.
    ///
    /// # Errors
    /// [`MediaError`].
    pub fn of(bytes: impl Into<Arc<[u8]>>) -> Result<(Self, Artifact), MediaError> {
        let artifact = Artifact::new(bytes);
        let media_type = Self::check(artifact.bytes())?.to_owned();
        let reference = artifact.reference();
        let (hash, size) = (reference.hash.clone(), reference.size);
        Ok((Self { media_type, hash, size }, artifact))
    }
}

/// The type of an image, by its first bytes; `None` if it is of none that models see.
#[must_use]
pub fn media_type(bytes: &[u8]) -> Option<&'static str> {
    let begins = |magic: &[u8]| bytes.starts_with(magic);
    if begins(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if begins(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if begins(b"GIF87a") || begins(b"GIF89a") {
        Some("image/gif")
    } else if begins(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Some("image/webp")
    } else {
        None
    }
}

/// The bytes of the images of a question, by their names. Those that are missing are left out of what
/// a model is shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MediaBytes(BTreeMap<String, Arc<[u8]>>);

impl MediaBytes {
    /// Adds those of one.
    pub fn add(&mut self, hash: &str, bytes: Arc<[u8]>) {
        self.0.insert(hash.to_owned(), bytes);
    }

    /// Those of one.
    #[must_use]
    pub fn get(&self, hash: &str) -> Option<&Arc<[u8]>> {
        self.0.get(hash)
    }
}

impl fmt::Debug for MediaBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_is_what_the_bytes_say() {
        let table: [(&[u8], Option<&str>); 7] = [
            (b"\x89PNG\r\n\x1a\n\0\0", Some("image/png")),
            (b"\xff\xd8\xff\xe0", Some("image/jpeg")),
            (b"GIF89a", Some("image/gif")),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some("image/webp")),
            (b"RIFF\x10\0\0\0WAVE", None),
            (b"<svg/>", None),
            (b"", None),
        ];
        for (bytes, expected) in table {
            assert_eq!(media_type(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn an_image_is_bounded() {
        let mut bytes = b"GIF89a".to_vec();
        bytes.resize(MEDIA_BYTES_MAX, 0);
        let (media, artifact) = Media::of(bytes.clone()).expect("an image");
        assert_eq!((media.size, &media.hash), (5 << 20, &artifact.reference().hash));
        bytes.push(0);
        assert_eq!(Media::of(bytes).expect_err("too large"), MediaError::Size);
        assert_eq!(Media::of(*b"text").expect_err("no image"), MediaError::Type);
    }
}
