//! Descriptions of components that were linked before, kept beside their native code.

use serde::{Deserialize, Serialize};
use taskrun::agents::schemas_are_usable;
use taskrun_journal::tool::ToolSpec;

use crate::cache::{Cache, Entry};
use crate::grants::Role;
use crate::inspect::{ImportClass, Inspection};

/// The description of a component that was linked in a role.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) size: u64,
    /// Imports, and whether each has only types.
    pub(crate) imports: Vec<(String, bool)>,
    pub(crate) exports: Vec<String>,
    /// Functions of a tool.
    pub(crate) specs: Vec<ToolSpec>,
    /// True if the schemas of all of them can be used together, as they were read once.
    #[serde(default)]
    pub(crate) is_usable: bool,
}

impl Description {
    pub(crate) fn of(inspection: &Inspection, specs: &[ToolSpec]) -> Self {
        let imports = inspection.imports.iter();
        let exports = inspection.exports.iter();
        Self {
            size: inspection.size,
            imports: imports
                .map(|import| (import.interface.clone(), import.class == ImportClass::Types))
                .collect(),
            exports: exports.map(|export| export.interface.clone()).collect(),
            specs: specs.to_vec(),
            is_usable: schemas_are_usable(specs),
        }
    }

    /// Everything but the functions of the component's interfaces, and its memory.
    pub(crate) fn inspection(&self, digest: &blake3::Hash) -> Inspection {
        let imports = self.imports.iter();
        let imports = imports.map(|(name, only_types)| (name.clone(), Vec::new(), *only_types));
        let exports = self.exports.iter().map(|name| (name.clone(), Vec::new()));
        Inspection::known(digest, self.size, imports, exports)
    }
}

/// Keeps what was found out about a component. A failure is logged and changes nothing.
pub(crate) fn keep(
    cache: &Cache,
    (digest, role): (blake3::Hash, Role),
    inspection: &Inspection,
    specs: &[ToolSpec],
) {
    let entry = entry(digest, role);
    if cache.description(entry).is_some() {
        return;
    }
    match serde_json::to_vec(&Description::of(inspection, specs)) {
        Ok(bytes) => cache.put_description(entry, &bytes),
        Err(error) => tracing::warn!(%error, "a component cannot be described"),
    }
}

/// The entry of a component in a role.
pub(crate) fn entry(component: blake3::Hash, role: Role) -> Entry {
    let role = match role {
        Role::Agent => "agent",
        Role::Tool => "tool",
        Role::Policy => "policy",
    };
    Entry { component, compatibility: blake3::hash(role.as_bytes()) }
}
