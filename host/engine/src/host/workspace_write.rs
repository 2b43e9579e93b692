//! `workspace-write`: creating, changing and removing files that rules allow.

use std::sync::Arc;

use taskrun::policy::Capability;

use crate::bindings::interfaces::workspace_write::{FileError, Host, WriteMode};
use crate::files::{self, RelativePath};
use crate::state::{CallState, record_denial};

const WRITE: Capability = Capability::WorkspaceWrite;

impl Host for CallState {
    async fn write(
        &mut self,
        path: String,
        contents: Vec<u8>,
        mode: WriteMode,
    ) -> wasmtime::Result<Result<(), FileError>> {
        self.enter_capability("workspace-write")?;
        let workspace = match self.decide_path(WRITE, &path) {
            Ok(workspace) => workspace,
            Err(error) => return Ok(Err(error)),
        };
        let subject = path.clone();
        let written = files::blocking(self.guest.engine.blocking(), move |abandoned| {
            workspace.write(RelativePath::new(&path)?, &contents, mode, abandoned)
        });
        let written = written.await;
        Ok(self.note_own_file(WRITE, &subject, written))
    }

    async fn create_directory(&mut self, path: String) -> wasmtime::Result<Result<(), FileError>> {
        self.enter_capability("workspace-write")?;
        let workspace = match self.decide_path(WRITE, &path) {
            Ok(workspace) => workspace,
            Err(error) => return Ok(Err(error)),
        };
        let (guest, scope) = (Arc::clone(&self.guest), Arc::clone(&self.scope));
        let subject = path.clone();
        let made = files::blocking(self.guest.engine.blocking(), move |abandoned| {
            let may_make = |prefix: &str| {
                let decided = scope.rules(&guest.grants).decide_path(WRITE, prefix);
                decided.map_err(|denied| {
                    record_denial(&scope, WRITE, prefix, denied.rule);
                    FileError::Denied(denied.for_guest)
                })
            };
            workspace.create_directory(RelativePath::new(&path)?, &may_make, abandoned)
        });
        let made = made.await;
        Ok(self.note_own_file(WRITE, &subject, made))
    }

    async fn remove(&mut self, path: String) -> wasmtime::Result<Result<(), FileError>> {
        self.enter_capability("workspace-write")?;
        let workspace = match self.decide_path(WRITE, &path) {
            Ok(workspace) => workspace,
            Err(error) => return Ok(Err(error)),
        };
        let subject = path.clone();
        let removed = files::blocking(self.guest.engine.blocking(), move |abandoned| {
            workspace.remove(RelativePath::new(&path)?, abandoned)
        });
        let removed = removed.await;
        Ok(self.note_own_file(WRITE, &subject, removed))
    }
}
