//! `workspace-write`: creating, changing and removing files that rules allow.

use std::sync::Arc;

use serde::Serialize;
use taskrun::scope::{CallScope, OutsideRequest};
use taskrun_policy::{Capability, Use};

use crate::bindings::interfaces::workspace_write::{FileError, Host, WriteMode};
use crate::failure::Violation;
use crate::files::disk::Writes;
use crate::files::{self, RelativePath, Workspace};
use crate::outside::{Changed, ask_outside};
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

/// Changes something, or takes it as changed where the step has done so before.
async fn change(
    scope: &CallScope,
    asked: impl Serialize + Send + Sync,
    live: impl Future<Output = files::Result<()>> + Send,
) -> Result<files::Result<()>, Violation> {
    let request = OutsideRequest { what: "changes a file", asked, changes: true };
    let Changed(changed) = ask_outside(scope, request, async { Changed(live.await) }).await?;
    Ok(changed)
}

fn name_of(mode: WriteMode) -> &'static str {
    match mode {
        WriteMode::CreateNew => "create-new",
        WriteMode::Replace => "replace",
        WriteMode::Append => "append",
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
        let subject = path.clone();
        let is_recorded = self.scope.is_journalled();
        if is_recorded {
            self.before_work(contents.len()).await;
        }
        let digest = is_recorded.then(|| blake3::hash(&contents).to_hex().to_string());
        let asked = ("write", path.clone(), digest, name_of(mode));
        let allowed = self.path_rule(WRITE, &path);
        let written = files::blocking(self.file_threads(), allowed, move |abandoned| {
            workspace.write(RelativePath::new(&path)?, &contents, mode, &writes, abandoned)
        });
        let written = change(&self.scope, asked, written).await?;
        Ok(self.note_refusal(WRITE, &subject, written))
    }

    async fn create_directory(&mut self, path: String) -> wasmtime::Result<Result<(), FileError>> {
        self.enter_capability("workspace-write")?;
        let (workspace, writes) = match self.decide_write(&path) {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        let scope = Arc::clone(&self.scope);
        let subject = path.clone();
        let asked = ("create-directory", path.clone());
        let allowed = self.path_rule(WRITE, &path);
        let made = files::blocking(self.file_threads(), allowed, move |abandoned| {
            let may_make = |prefix: &str| {
                let allowed = scope.allow(&Use::Path(WRITE, prefix));
                allowed.map_err(|denied| FileError::Denied(denied).into())
            };
            workspace.create_directory(RelativePath::new(&path)?, &may_make, &writes, abandoned)
        });
        let made = change(&self.scope, asked, made).await?;
        Ok(self.note_refusal(WRITE, &subject, made))
    }

    async fn remove(&mut self, path: String) -> wasmtime::Result<Result<(), FileError>> {
        self.enter_capability("workspace-write")?;
        let (workspace, writes) = match self.decide_write(&path) {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        let subject = path.clone();
        let asked = ("remove", path.clone());
        let allowed = self.path_rule(WRITE, &path);
        let removed = files::blocking(self.file_threads(), allowed, move |abandoned| {
            workspace.remove(RelativePath::new(&path)?, &writes, abandoned)
        });
        let removed = change(&self.scope, asked, removed).await?;
        Ok(self.note_refusal(WRITE, &subject, removed))
    }
}
