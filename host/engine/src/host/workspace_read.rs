//! `workspace-read`: listing and reading files that rules allow.

use std::sync::Arc;

use taskrun::scope::{CallScope, OutsideRequest};
use taskrun_policy::{CallRules, Capability, Use};

use crate::bindings::interfaces::workspace_read::{Entry, EntryKind, FileError, Host, Listing};
use crate::files::{
    self, ListOptions, OWN_FILES, READ_BYTES_MAX, Refusal, RelativePath, Workspace,
};
use crate::outside::{FileRead, Listed, Stated, ask_outside};
use crate::state::CallState;

const READ: Capability = Capability::WorkspaceRead;
const LOOKS: &str = "looks at a folder";

impl CallState {
    /// The workspace, if a rule allows the path.
    pub(super) fn decide_path(
        &self,
        capability: Capability,
        path: &str,
    ) -> Result<Workspace, FileError> {
        RelativePath::new(path)?;
        allow_path(&self.scope, capability, path)?;
        self.workspace()
    }

    /// The decision about a path by the rules at the moment when it is asked for.
    pub(super) fn path_rule(
        &self,
        capability: Capability,
        path: &str,
    ) -> impl FnOnce() -> files::Result<()> + Send + use<> {
        let (scope, path) = (Arc::clone(&self.scope), path.to_owned());
        move || allow_path(&scope, capability, &path)
    }

    /// The workspace, if a rule allows the directory or something below it.
    fn decide_directory(&self, path: &str) -> Result<Workspace, FileError> {
        RelativePath::new(path)?;
        allow_directory(&self.scope, path)?;
        self.workspace()
    }

    /// The decision about a directory by the rules at the moment when it is asked for.
    fn directory_rule(&self, path: &str) -> impl FnOnce() -> files::Result<()> + Send + use<> {
        let (scope, path) = (Arc::clone(&self.scope), path.to_owned());
        move || allow_directory(&scope, &path)
    }

    /// Records that an operation met one of the host's own files, or for the first time in the
    /// call a bound, if it did.
    pub(super) fn note_refusal<T>(
        &mut self,
        capability: Capability,
        path: &str,
        result: Result<T, Refusal>,
    ) -> Result<T, FileError> {
        match &result {
            Err(Refusal::OwnFile) => {
                self.record_refusal(capability, path, OWN_FILES.to_owned());
            }
            Err(Refusal::Error(FileError::Limit(bound))) => {
                if self.writes().is_some_and(|writes| writes.is_first_refusal()) {
                    self.record_refusal(capability, path, bound.clone());
                }
            }
            Err(Refusal::Error(
                FileError::Denied(_)
                | FileError::NotFound
                | FileError::InvalidPath(_)
                | FileError::NotAFile
                | FileError::NotADirectory
                | FileError::AlreadyExists
                | FileError::Other(_),
            ))
            | Ok(_) => {}
        }
        result.map_err(FileError::from)
    }

    fn workspace(&self) -> Result<Workspace, FileError> {
        let none = || FileError::Other("there is no workspace".to_owned());
        self.workspace.clone().ok_or_else(none)
    }
}

fn allow_path(scope: &CallScope, capability: Capability, path: &str) -> files::Result<()> {
    let allowed = scope.allow(&Use::Path(capability, path));
    allowed.map_err(|denied| FileError::Denied(denied).into())
}

fn allow_directory(scope: &CallScope, path: &str) -> files::Result<()> {
    match scope.rules().may_contain(READ, path) {
        true => Ok(()),
        false => allow_path(scope, READ, path),
    }
}

/// Tells if a listing shows an entry.
fn shows(rules: &CallRules, path: &str, kind: EntryKind) -> bool {
    rules.allows(&Use::Path(READ, path))
        || (kind == EntryKind::Directory && rules.may_contain(READ, path))
}

impl Host for CallState {
    async fn list(
        &mut self,
        path: String,
        recursive: bool,
        limit: u32,
    ) -> wasmtime::Result<Result<Listing, FileError>> {
        self.enter_capability("workspace-read")?;
        let workspace = match self.decide_directory(&path) {
            Ok(workspace) => workspace,
            Err(error) => return Ok(Err(error)),
        };
        let scope = Arc::clone(&self.scope);
        let subject = path.clone();
        let wanted = ListOptions { recursive, limit, bytes: self.guest.limits.host_call_bytes };
        let request = OutsideRequest {
            what: LOOKS,
            asked: ("list", path.clone(), recursive, limit),
            changes: false,
        };
        let allowed = self.directory_rule(&path);
        let (engine, threads) = (&self.guest.engine, self.file_threads());
        let listing = async {
            let walk = match recursive {
                true => Arc::clone(engine.walks()).acquire_owned().await.ok(),
                false => None,
            };
            let buffer = engine.buffers().take(wanted.bytes_at_once()).await;
            let listing = files::blocking(threads, allowed, move |abandoned| {
                // Until the thread is back, and until the guest is given the listing.
                let (buffer, _walk) = (buffer, walk);
                let shows = |path: &str, kind| shows(&scope.rules(), path, kind);
                Ok((workspace.list(RelativePath::new(&path)?, wanted, &shows, abandoned)?, buffer))
            });
            Listed(listing.await.map(|(listing, _)| listing))
        };
        let Listed(mut listing) = ask_outside(&self.scope, request, listing).await?;
        if let Ok(listing) = &mut listing {
            // One that was kept is of other rules, perhaps.
            let rules = self.rules();
            listing.entries.retain(|entry| shows(&rules, &entry.path, entry.kind));
        }
        Ok(self.note_refusal(READ, &subject, listing))
    }

    async fn stat(&mut self, path: String) -> wasmtime::Result<Result<Entry, FileError>> {
        self.enter_capability("workspace-read")?;
        let workspace = match self.decide_directory(&path) {
            Ok(workspace) => workspace,
            Err(error) => return Ok(Err(error)),
        };
        let wanted = path.clone();
        let asked = ("stat", path.clone());
        let allowed = self.directory_rule(&path);
        let threads = self.file_threads();
        let entry = async {
            let entry = files::blocking(threads, allowed, move |_| {
                workspace.stat(RelativePath::new(&path)?)
            });
            Stated(entry.await)
        };
        let request = OutsideRequest { what: LOOKS, asked, changes: false };
        let Stated(entry) = ask_outside(&self.scope, request, entry).await?;
        // A rule may allow what is below a path; that something else stands there is then not
        // the guest's to know.
        let entry = self.note_refusal(READ, &wanted, entry).and_then(|entry| {
            match shows(&self.rules(), &wanted, entry.kind) {
                true => Ok(entry),
                false => self.decide_path(READ, &wanted).and(Ok(entry)),
            }
        });
        Ok(entry)
    }

    async fn read(
        &mut self,
        path: String,
        offset: u64,
        max_bytes: u32,
    ) -> wasmtime::Result<Result<Vec<u8>, FileError>> {
        self.enter_capability("workspace-read")?;
        let workspace = match self.decide_path(READ, &path) {
            Ok(workspace) => workspace,
            Err(error) => return Ok(Err(error)),
        };
        let subject = path.clone();
        let most = max_bytes.min(READ_BYTES_MAX);
        let asked = ("read", path.clone(), offset, most);
        let allowed = self.path_rule(READ, &path);
        let (engine, threads) = (&self.guest.engine, self.file_threads());
        let bytes = async {
            let buffer = engine.buffers().take(most.into()).await;
            let bytes = files::blocking(threads, allowed, move |_| {
                // Until the thread is back, and until the guest is given the bytes.
                let buffer = buffer;
                Ok((workspace.read(RelativePath::new(&path)?, offset, most)?, buffer))
            });
            FileRead(bytes.await.map(|(bytes, _)| bytes))
        };
        let request = OutsideRequest { what: "reads a file", asked, changes: false };
        let FileRead(bytes) = ask_outside(&self.scope, request, bytes).await?;
        Ok(self.note_refusal(READ, &subject, bytes))
    }
}
