//! Bytes that are kept beside records, once for each tenant that has them.

use std::collections::HashMap;
use std::sync::Arc;

use taskrun_journal::artifact::Artifact;

#[derive(Clone, Default)]
pub(super) struct Artifacts {
    /// By tenant and name.
    kept: HashMap<(String, String), ArtifactEntry>,
}

#[derive(Clone)]
struct ArtifactEntry {
    bytes: Arc<[u8]>,
    /// Runs that refer to them.
    runs: u64,
}

impl Artifacts {
    /// One run more refers to it. Each run is to say so once.
    pub(super) fn keep(&mut self, tenant: &str, artifact: &Artifact) {
        let key = (tenant.to_owned(), artifact.reference().hash.clone());
        let kept = self.kept.entry(key);
        kept.or_insert_with(|| ArtifactEntry { bytes: Arc::clone(artifact.bytes()), runs: 0 })
            .runs += 1;
    }

    pub(super) fn get(&self, tenant: &str, hash: &str) -> Option<Arc<[u8]>> {
        let kept = self.kept.get(&(tenant.to_owned(), hash.to_owned()));
        kept.map(|kept| Arc::clone(&kept.bytes))
    }

    /// One run less refers to it.
    pub(super) fn release(&mut self, tenant: &str, hash: &str) {
        let key = (tenant.to_owned(), hash.to_owned());
        if let Some(kept) = self.kept.get_mut(&key) {
            kept.runs -= 1;
            if kept.runs == 0 {
                self.kept.remove(&key);
            }
        }
    }
}
