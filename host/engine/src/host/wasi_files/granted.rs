//! The folders that rules grant to a call, as WASI's preopens.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use taskrun_journal::stop::StopCause;
use taskrun_policy::Capability;
use wasmtime_wasi::filesystem::{Descriptor, Dir};
use wasmtime_wasi::{FsPerms, OpenMode};

use super::Fd;
use super::grant_check::{GrantCheck, lost};
use crate::failure::Violation;
use crate::files::OWN_FILES;
use crate::guest::Mode;
use crate::handles::{HANDLES_MAX, Handles, NoHandle};
use crate::state::CallState;
use crate::wasi::{GrantedFolder, OpenWay};

impl CallState {
    /// Opens the folders that the rules grant to this call. One that is not there is left out, and
    /// so is one in which the host has put a file of its own since the component was loaded.
    ///
    /// # Cancel safety
    /// Dropping the future closes those that are open.
    async fn grant_folders(&mut self) -> Result<Vec<GrantedFolder>, Violation> {
        let mut granted = Vec::new();
        let guest = Arc::clone(&self.guest);
        let (Mode::Call, Some(workspace)) = (self.mode, self.workspace.clone()) else {
            return Ok(granted);
        };
        let (handles, share) = (guest.engine.handles(), Arc::clone(&self.files.share));
        let preopens = self.rules().preopens(&guest.preopens).into_owned();
        // One more than there may be is found when all others are open: of these some are left out.
        let wanted = u32::try_from(preopens.len()).unwrap_or(u32::MAX).min(HANDLES_MAX);
        let scope = Arc::clone(&self.scope);
        let taken = handles.wait(&scope.context().root_run_id, &share, wanted).await;
        let mut taken = taken.map_err(|none| too_many(none, handles))?;
        for preopen in preopens {
            let subject = &preopen.dir;
            if let Some(file) = workspace.exposed_in(subject) {
                tracing::warn!(dir = %subject, file = %file.display(), "a granted folder holds a file of the host");
                self.record_refusal(Capability::WorkspaceRead, subject, OWN_FILES.to_owned());
                continue;
            }
            let handle = taken.pop().ok_or_else(|| too_many(NoHandle::Share, handles))?;
            let folder = match workspace.open_folder(subject) {
                Ok(folder) => folder.into_std_file(),
                Err(error) => {
                    tracing::warn!(dir = %subject, %error, "a folder of the workspace cannot be opened");
                    taken.push(handle);
                    continue;
                }
            };
            let (perms, mode) = match preopen.writable {
                true => (FsPerms::ReadWrite, OpenMode::READ | OpenMode::WRITE),
                false => (FsPerms::ReadOnly, OpenMode::READ),
            };
            let dir = Dir::new(folder, perms, mode, false);
            let name = format!("/{subject}");
            granted.push(GrantedFolder { dir, name, preopen, _handle: handle });
        }
        Ok(granted)
    }

    /// The folders that are granted to the call, with their names for the guest.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the guest without any.
    pub(in crate::host) async fn granted_folders(&mut self) -> wasmtime::Result<Vec<(Fd, String)>> {
        self.enter()?;
        if self.files.granted.is_none() {
            let granted = self.grant_folders().await?;
            self.files.preopens = granted.iter().map(|folder| folder.preopen.clone()).collect();
            self.files.granted = Some(granted);
            // It may have waited, and the rules may have become others meanwhile.
            self.review_rules()?;
        }
        let granted = self.files.granted.iter().flatten();
        let way = |granted: &GrantedFolder| OpenWay::of_granted(&granted.preopen.dir);
        let folders: Vec<_> = granted
            .map(|granted| (granted.dir.clone(), granted.name.clone(), way(granted)))
            .collect();
        let mut opened = Vec::new();
        for (dir, name, way) in folders {
            let fd = self.table.push(Descriptor::Dir(dir))?;
            self.files.ways.insert(fd.rep(), way);
            opened.push((fd, name));
        }
        Ok(opened)
    }

    /// The check that an operation passes once it has its thread.
    pub(in crate::host) fn grant_check(&self) -> GrantCheck {
        GrantCheck::new(&self.scope, self.rule_changes(), &self.files.preopens)
    }

    /// Ends the guest if it has a folder that the rules, which have changed, do not grant it any
    /// more: what it has opened there would stay open. The refusal is recorded with the rule.
    pub(crate) fn review_folders(&mut self) -> Result<(), Violation> {
        if self.files.preopens.is_empty() {
            return Ok(());
        }
        let rules = self.rules();
        let Some((capability, dir, denial)) = lost(&rules, &self.files.preopens) else {
            return Ok(());
        };
        self.files.is_revoked.store(true, Ordering::Release);
        self.record_denial(capability, &dir, &denial);
        Err(Violation::Stopped(StopCause::Denied))
    }
}

/// The reason that a call without its granted folders ends.
fn too_many(none: NoHandle, handles: &Handles) -> Violation {
    let (what, limit) = match none {
        NoHandle::Share => ("files and folders open", u64::from(HANDLES_MAX)),
        NoHandle::Pool => ("files and folders open of all calls", handles.all()),
    };
    Violation::Limit { what, limit }
}
