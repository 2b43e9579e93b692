//! Artifacts: values too large for a record, kept beside it under the digest of their bytes.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Most bytes of one artifact. A run whose answer is longer has none; the answer is in its
/// transcript. Far above what one message of a guest may have, and small enough to be held in
/// memory once for each run that ends at the same time.
pub const ARTIFACT_BYTES_MAX: usize = 16 << 20;

/// Refers to an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArtifactRef {
    /// The BLAKE3 digest of its bytes: 64 hexadecimal digits in lower case.
    pub hash: String,
    /// Its size in bytes.
    pub size: u64,
}

/// Bytes that are kept with a run and named by what they are: equal bytes are kept once for a
/// tenant, as long as a run refers to them.
#[derive(Clone, PartialEq, Eq)]
pub struct Artifact {
    reference: ArtifactRef,
    bytes: Arc<[u8]>,
}

impl Artifact {
    /// Names these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        let hash = digest(&bytes);
        Self { reference: ArtifactRef { hash, size: bytes.len() as u64 }, bytes }
    }

    /// The reference to it.
    #[must_use]
    pub fn reference(&self) -> &ArtifactRef {
        &self.reference
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

impl fmt::Debug for Artifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reference.fmt(f)
    }
}

/// The name of some bytes, as in [`ArtifactRef::hash`].
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}
