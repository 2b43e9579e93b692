//! The findings about components, kept beside their native code.

use serde::{Deserialize, Serialize};
use taskrun_policy::MEMORY_BYTES_MAX;

use super::{ImportClass, Inspection};
use crate::bindings::HOST_VERSION;
use crate::cache::{Cache, Entry};

/// Most bytes that are kept.
const BYTES_MAX: usize = 8 << 20;
/// The code that finds them: other code may find something else, or refuse the component.
const FINDERS: [&str; 7] = [
    include_str!("../load.rs"),
    include_str!("../shape.rs"),
    include_str!("../shape/types.rs"),
    include_str!("../inspect.rs"),
    include_str!("outline.rs"),
    include_str!("memories.rs"),
    include_str!("../config.rs"),
];

#[derive(Serialize, Deserialize)]
struct KeptInspection {
    size: u64,
    /// Names, functions, and whether there are only types.
    imports: Vec<(String, Vec<String>, bool)>,
    exports: Vec<(String, Vec<String>)>,
    memory_bytes: u64,
    refused: Option<String>,
}

/// The entry of the findings about a component.
pub(crate) fn entry(digest: &blake3::Hash) -> Entry {
    let mut finders = blake3::Hasher::new();
    for source in FINDERS {
        finders.update(source.as_bytes());
    }
    finders.update(HOST_VERSION.as_bytes());
    finders.update(&MEMORY_BYTES_MAX.to_le_bytes());
    Entry { component: *digest, compatibility: finders.finalize() }
}

/// The findings about a component that was looked at before, by whichever process.
pub(crate) fn find(cache: &Cache, digest: &blake3::Hash) -> Option<Inspection> {
    let kept = cache.inspection(entry(digest))?;
    let KeptInspection { size, imports, exports, memory_bytes, refused } =
        serde_json::from_slice(kept.code()).ok()?;
    let known = Inspection::known(digest, size, imports.into_iter(), exports.into_iter());
    Some(Inspection { memory_bytes, refused, ..known })
}

/// Keeps the findings about a component. A failure is logged and changes nothing.
pub(crate) fn keep(cache: &Cache, digest: &blake3::Hash, inspection: &Inspection) {
    let imports = inspection.imports.iter().map(|import| {
        let only_types = import.class == ImportClass::Types;
        (import.interface.clone(), import.functions.clone(), only_types)
    });
    let exports = inspection.exports.iter();
    let kept = KeptInspection {
        size: inspection.size,
        imports: imports.collect(),
        exports: exports.map(|one| (one.interface.clone(), one.functions.clone())).collect(),
        memory_bytes: inspection.memory_bytes,
        refused: inspection.refused.clone(),
    };
    match serde_json::to_vec(&kept) {
        Ok(bytes) if bytes.len() > BYTES_MAX => {}
        Ok(bytes) => cache.put_inspection(entry(digest), &bytes),
        Err(error) => tracing::warn!(%error, "what was found out about a component cannot be kept"),
    }
}
