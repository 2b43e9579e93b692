//! Components on their way from a file to the linker: examined, compiled, shared.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use wasmtime::component::Component;

use crate::file_identity::FileIdentity;
use crate::inspect::Inspection;

/// A compiled component, checked against no grants. Cheap to clone.
#[derive(Clone)]
pub struct LoadedComponent(pub(crate) Arc<LoadedComponentInner>);

pub(crate) struct LoadedComponentInner {
    pub(crate) component: Component,
    pub(crate) inspection: Inspection,
}

impl std::fmt::Debug for LoadedComponentInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LoadedComponentInner").field(&self.inspection.digest).finish()
    }
}

impl std::fmt::Debug for LoadedComponent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LoadedComponent").field(&self.0.inspection.digest).finish()
    }
}

impl LoadedComponent {
    /// The component's kind, imports and exports.
    #[must_use]
    pub fn inspect(&self) -> &Inspection {
        &self.0.inspection
    }

    /// `blake3:` and the hash of its bytes in hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.0.inspection.digest
    }

    pub(crate) fn component(&self) -> &Component {
        &self.0.component
    }
}

/// Components that are held elsewhere, so that agents which share a tool share its code.
#[derive(Debug, Default)]
pub(crate) struct SharedComponents(Mutex<HashMap<blake3::Hash, Weak<LoadedComponentInner>>>);

impl SharedComponents {
    fn lock(&self) -> MutexGuard<'_, HashMap<blake3::Hash, Weak<LoadedComponentInner>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, digest: &blake3::Hash) -> Option<LoadedComponent> {
        self.lock().get(digest).and_then(Weak::upgrade).map(LoadedComponent)
    }

    pub(crate) fn put(&self, digest: blake3::Hash, loaded: &LoadedComponent) {
        let mut recent = self.lock();
        recent.retain(|_, known| known.strong_count() > 0);
        recent.insert(digest, Arc::downgrade(&loaded.0));
    }
}

/// Components whose inspections are remembered: more than a policy names, each a few kilobytes.
const INSPECTIONS_MAX: usize = 1 << 10;

/// The findings about components, by their digests.
#[derive(Debug, Default)]
pub(crate) struct Inspections(Mutex<HashMap<blake3::Hash, Arc<Inspection>>>);

impl Inspections {
    fn lock(&self) -> MutexGuard<'_, HashMap<blake3::Hash, Arc<Inspection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, digest: &blake3::Hash) -> Option<Arc<Inspection>> {
        self.lock().get(digest).cloned()
    }

    pub(crate) fn put(&self, examined: &ExaminedComponent) {
        let mut known = self.lock();
        if known.len() >= INSPECTIONS_MAX {
            known.clear();
        }
        known.insert(examined.digest, Arc::clone(&examined.inspection));
    }
}

/// Files that this process has read, by their identities, with the digests of their bytes.
#[derive(Debug, Default)]
pub(crate) struct KnownFiles(Mutex<HashMap<FileIdentity, blake3::Hash>>);

impl KnownFiles {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileIdentity, blake3::Hash>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, file: FileIdentity) -> Option<blake3::Hash> {
        self.lock().get(&file).copied()
    }

    pub(crate) fn put(&self, file: FileIdentity, digest: blake3::Hash) {
        let mut known = self.lock();
        if known.len() >= INSPECTIONS_MAX {
            known.clear();
        }
        known.insert(file, digest);
    }
}

/// The bytes of a component, which only its compilation needs.
#[derive(Clone)]
pub(crate) enum ComponentBytes {
    /// The bytes themselves.
    Read(Arc<Vec<u8>>),
    /// A file that has them, unless it has changed.
    In(PathBuf),
}

/// A component that was read and looked at, and not compiled. Cheap to clone.
#[derive(Clone)]
pub struct ExaminedComponent {
    pub(crate) bytes: ComponentBytes,
    pub(crate) digest: blake3::Hash,
    pub(crate) inspection: Arc<Inspection>,
}

impl std::fmt::Debug for ExaminedComponent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ExaminedComponent").field(&self.inspection.digest).finish()
    }
}

impl ExaminedComponent {
    /// The component's kind, imports and exports.
    #[must_use]
    pub fn inspect(&self) -> &Inspection {
        &self.inspection
    }
}

/// Files and the digests that they must have where they are read.
#[derive(Debug, Default)]
pub(crate) struct Pins(Mutex<HashMap<PathBuf, blake3::Hash>>);

impl Pins {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, blake3::Hash>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
