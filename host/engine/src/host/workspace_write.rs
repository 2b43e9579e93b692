//! `workspace-write`: creating, changing and removing files that rules allow.

use std::sync::Arc;

use taskrun_policy::{Capability, Use};

use crate::bindings::interfaces::workspace_write::{FileError, Host, WriteMode};
use crate::denial::allow;
use crate::files::disk::Writes;
use crate::files::{self, RelativePath, Workspace};
use crate::state::CallState;

const WRITE: Capability = Capability::WorkspaceWrite;

impl CallState {
    /// The workspace and what the call may add to it, if a rule allows the path.
    fn decide_write(&mut self, path: &str) -> Result<(Workspace, Arc<Writes>), FileError> {
        let workspace = self.decide_path(WRITE, path)?;
        let none = || FileError::Other("there is no workspace".to_owned());
        Ok((workspace, self.writes().ok_or_else(none)?))
    }
}

impl Host for CallState {
    async fn write(
        &mut self,
        path: String,
        contents: Vec<u8>,
        mode: WriteMode,
    ) -> wasmtime::Result<Result<(), FileError>> {
        self.enter_capability("workspace-write")?;
        let (workspace, writes) = match self.decide_write(&path) {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        self.reach_out("changes a file")?;
        let subject = path.clone();
        let allowed = self.path_rule(WRITE, &path);
        let written = files::blocking(self.guest.engine.blocking(), allowed, move |abandoned| {
            workspace.write(RelativePath::new(&path)?, &contents, mode, &writes, abandoned)
        });
        let written = written.await;
        Ok(self.note_refusal(WRITE, &subject, written))
    }

    async fn create_directory(&mut self, path: String) -> wasmtime::Result<Result<(), FileError>> {
        self.enter_capability("workspace-write")?;
        let (workspace, writes) = match self.decide_write(&path) {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        self.reach_out("changes a file")?;
        let scope = Arc::clone(&self.scope);
        let subject = path.clone();
        let allowed = self.path_rule(WRITE, &path);
        let made = files::blocking(self.guest.engine.blocking(), allowed, move |abandoned| {
            let may_make = |prefix: &str| {
                let allowed = allow(&scope, &Use::Path(WRITE, prefix));
                allowed.map_err(|denied| FileError::Denied(denied).into())
            };
            workspace.create_directory(RelativePath::new(&path)?, &may_make, &writes, abandoned)
        });
        let made = made.await;
        Ok(self.note_refusal(WRITE, &subject, made))
    }

    async fn remove(&mut self, path: String) -> wasmtime::Result<Result<(), FileError>> {
        self.enter_capability("workspace-write")?;
        let (workspace, writes) = match self.decide_write(&path) {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        self.reach_out("changes a file")?;
        let subject = path.clone();
        let allowed = self.path_rule(WRITE, &path);
        let removed = files::blocking(self.guest.engine.blocking(), allowed, move |abandoned| {
            workspace.remove(RelativePath::new(&path)?, &writes, abandoned)
        });
        let removed = removed.await;
        Ok(self.note_refusal(WRITE, &subject, removed))
    }
}
