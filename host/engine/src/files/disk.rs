//! The growth of the disk by guests, held to three bounds: what one call may write, what a
//! workspace may hold, and how much of the disk stays free for the host.
//!
//! A workspace is counted when a guest of this process first writes there, by a walk through the
//! folders that rules let guests write in, and from then on by what each operation adds and
//! removes. Changes that people and other processes make meanwhile are seen when the workspace
//! seems full: then it is counted again, as often as [`PAUSE`] lets it. Where workspaces overlap,
//! one is counted again at once if a call in another one moved something into it, or if it seems
//! full only by what such a call added, here or elsewhere.

mod ledger;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLockReadGuard};

use taskrun_policy::{Limits, WorkspaceLimits};
use tokio::time::Instant;

use self::ledger::{Account, Ledger, Ledgers, OwnLedger, SharedGrant};
use crate::bindings::interfaces::workspace_read::FileError;
use crate::files::{DiskUse, Workspace};

/// The pause after a count of a workspace, as a multiple of the time that the count took: a guest
/// that is refused again and again does not keep the disk busy.
const PAUSE: u32 = 20;

/// Free entries of a file system that guests leave alone, where it has a fixed number of them.
const FREE_FILES_MIN: u64 = 1_000;

/// The growth of a workspace by one operation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Growth {
    /// Bytes that are written.
    pub(crate) written: u64,
    /// Bytes by which files get longer.
    pub(crate) longer: u64,
    /// Files, folders and links that are made.
    pub(crate) files: u64,
}

/// The bound that an operation would break. Guests are told this text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DiskFull {
    /// `write` of the call's limits.
    #[error("the call may write {0} bytes (limits: write)")]
    CallBytes(u64),
    /// `new_files` of the call's limits.
    #[error("the call may make {0} files and folders (limits: new_files)")]
    CallFiles(u64),
    /// `bytes` of the workspace's limits.
    #[error("the workspace may hold {0} bytes ([workspace] limits: bytes)")]
    WorkspaceBytes(u64),
    /// `files` of the workspace's limits.
    #[error("the workspace may hold {0} files and folders ([workspace] limits: files)")]
    WorkspaceFiles(u64),
    /// `reserve` of the workspace's limits.
    #[error("{0} bytes of the disk are kept free ([workspace] limits: reserve)")]
    Reserve(u64),
}

impl From<DiskFull> for FileError {
    fn from(full: DiskFull) -> Self {
        Self::Limit(full.to_string())
    }
}

/// The workspaces of a process, and the disks that the host needs.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    ledgers: Mutex<Vec<Arc<Ledger>>>,
    /// Folders of the host whose disk needs the reserve as well.
    keep_free: Vec<PathBuf>,
    /// Bytes that are being written at this moment, which no disk says are gone.
    under_way: AtomicU64,
    /// Held while a workspace is counted.
    counting: Mutex<()>,
}

/// The bounds on what the guests of one component add to their workspace.
#[derive(Debug)]
pub(crate) struct Bounds {
    disk: Arc<Disk>,
    folders: Vec<String>,
    limits: WorkspaceLimits,
    call_bytes: u64,
    call_files: u64,
}

/// The growth of a workspace by one call so far, and its bounds.
#[derive(Debug)]
pub(crate) struct Writes {
    bounds: Arc<Bounds>,
    workspace: Workspace,
    /// Found when the call first writes.
    ledger: OnceLock<OwnLedger>,
    bytes: AtomicU64,
    files: AtomicU64,
    refused: AtomicBool,
}

impl Disk {
    pub(crate) fn new(keep_free: Vec<PathBuf>) -> Self {
        Self { keep_free, ..Self::default() }
    }

    /// The bounds for a component that may write in these folders of its workspace.
    pub(crate) fn bounds(
        self: &Arc<Self>,
        folders: Vec<String>,
        workspace_limits: WorkspaceLimits,
        limits: &Limits,
    ) -> Bounds {
        Bounds {
            disk: Arc::clone(self),
            folders,
            limits: workspace_limits,
            call_bytes: limits.write_bytes,
            call_files: limits.new_files.into(),
        }
    }

    /// Counts one workspace at a time: each keeps as many folders open as it is deep.
    fn used(&self, workspace: &Workspace, folders: &[String], files_max: u32) -> DiskUse {
        let _turn = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        workspace.used(folders, files_max)
    }

    /// True if so much can be written where `place` is and `reserve` bytes stay free, there and
    /// where the host keeps its own. A file system that does not know its size has room.
    fn has_room(&self, place: impl AsFd, bytes: u64, reserve: u64) -> bool {
        let under_way = self.under_way.load(Ordering::Relaxed);
        let needed = reserve.saturating_add(under_way).saturating_add(bytes);
        let here = rustix::fs::fstatvfs(place).ok();
        let others = self.keep_free.iter().filter_map(|dir| rustix::fs::statvfs(dir).ok());
        here.into_iter().chain(others).all(|disk| {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            (disk.f_blocks == 0 || free >= needed)
                && (reserve == 0 || disk.f_files == 0 || disk.f_favail >= FREE_FILES_MIN)
        })
    }
}

impl Bounds {
    /// The bounds for one call, which has the workspace open.
    pub(crate) fn for_call(self: &Arc<Self>, workspace: &Workspace) -> Writes {
        Writes {
            bounds: Arc::clone(self),
            workspace: workspace.clone(),
            ledger: OnceLock::new(),
            bytes: AtomicU64::new(0),
            files: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        }
    }

    fn refusal(&self, used: DiskUse, growth: Growth) -> Option<DiskFull> {
        let WorkspaceLimits { bytes, files, .. } = self.limits;
        if growth.longer > 0 && used.bytes.saturating_add(growth.longer) > bytes {
            return Some(DiskFull::WorkspaceBytes(bytes));
        }
        let files = u64::from(files);
        (growth.files > 0 && used.files.saturating_add(growth.files) > files)
            .then_some(DiskFull::WorkspaceFiles(files))
    }
}

impl Writes {
    /// The use of the workspace, as accounted.
    #[cfg(test)]
    pub(crate) fn used(&self) -> DiskUse {
        self.own().open().used
    }

    /// Under the default bounds of a workspace and none of a call, for tests of what is written.
    #[cfg(test)]
    pub(crate) fn of(workspace: &Workspace) -> Self {
        let limits = Limits { write_bytes: u64::MAX, new_files: u32::MAX, ..Limits::default() };
        let reserve = WorkspaceLimits { reserve_bytes: 0, ..WorkspaceLimits::default() };
        Self::under(workspace, reserve, &limits)
    }

    /// Under the bounds of a workspace and of a call, for tests.
    #[cfg(test)]
    fn under(workspace: &Workspace, of_workspace: WorkspaceLimits, of_call: &Limits) -> Self {
        let (disk, root) = (Arc::new(Disk::default()), vec![String::new()]);
        Arc::new(disk.bounds(root, of_workspace, of_call)).for_call(workspace)
    }

    fn own(&self) -> &OwnLedger {
        let find = || OwnLedger::of(&self.bounds.disk, &self.workspace, &self.bounds.folders);
        self.ledger.get_or_init(find)
    }

    /// The accounts that an operation may change.
    pub(crate) fn ledgers(&self) -> Ledgers<'_> {
        self.own().with_others()
    }

    /// Counts what is not counted yet, and everything again if that is due.
    fn count(&self, account: &mut Account, seems_full: bool) {
        let Bounds { disk, folders, limits, .. } = &*self.bounds;
        let is_new = |folder: &&String| !account.counted.contains(folder);
        let new: Vec<String> = folders.iter().filter(is_new).cloned().collect();
        let began = Instant::now();
        if new.is_empty() && !account.is_due(seems_full, began) {
            return;
        }
        account.counted.extend(new);
        let found = disk.used(&self.workspace, &account.counted, limits.files);
        let (now, took) = (Instant::now(), began.elapsed());
        account.set(found, now + took.saturating_mul(PAUSE));
        account.rest_until(now + took);
    }

    /// Grants what an operation is about to add where `place` is, until the grant is dropped;
    /// [`Grant::keep`] says that it was added.
    ///
    /// # Errors
    /// The bound that it would break. Then nothing may be added, and nothing is counted.
    pub(crate) fn grant(&self, place: impl AsFd, growth: Growth) -> Result<Grant<'_>, DiskFull> {
        let Bounds { disk, limits, .. } = &*self.bounds;
        let charge = self.charge(growth)?;
        let reserve = limits.reserve_bytes;
        if !disk.has_room(place, growth.written, reserve) {
            return Err(DiskFull::Reserve(reserve));
        }
        let added = DiskUse { bytes: growth.longer, files: growth.files };
        let mut account = self.own().open();
        self.count(&mut account, false);
        if self.bounds.refusal(account.used, growth).is_some() {
            // Else what is written around a workspace, or was removed, would take its room while the
            // pause lasts.
            if self.bounds.refusal(account.certain(), growth).is_none() {
                account.require_count();
            }
            self.count(&mut account, true);
        }
        if let Some(full) = self.bounds.refusal(account.judged(), growth) {
            return Err(full);
        }
        account.add(added);
        drop(account);
        let others = self.ledgers().add_to_others(added);
        disk.under_way.fetch_add(growth.written, Ordering::Relaxed);
        Ok(Grant { charge, added, others, written: growth.written, kept: false })
    }

    /// Counts a growth against the bounds of the call.
    fn charge(&self, growth: Growth) -> Result<Charge<'_>, DiskFull> {
        let Bounds { call_bytes, call_files, .. } = &*self.bounds;
        let mut charge = Charge { writes: self, bytes: 0, files: 0 };
        let bytes = growth.written.max(growth.longer);
        spend(&self.bytes, bytes, *call_bytes).map_err(DiskFull::CallBytes)?;
        charge.bytes = bytes;
        spend(&self.files, growth.files, *call_files).map_err(DiskFull::CallFiles)?;
        charge.files = growth.files;
        Ok(charge)
    }

    /// True for the first refusal of the call, which alone is recorded.
    pub(crate) fn is_first_refusal(&self) -> bool {
        !self.refused.swap(true, Ordering::Relaxed)
    }

    /// For operations that add as much as the length or the names of a file say: until this is
    /// dropped, no guest of this process takes any of the workspace away.
    pub(crate) fn steady(&self) -> RwLockReadGuard<'_, ()> {
        self.own().steady()
    }
}

/// Counts against a bound of the call. What is refused is not counted.
fn spend(spent: &AtomicU64, amount: u64, limit: u64) -> Result<(), u64> {
    let fits = |spent: u64| spent.checked_add(amount).filter(|sum| *sum <= limit);
    match amount {
        0 => Ok(()),
        _ => spent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_or(Err(limit), |_| Ok(())),
    }
}

/// The part of a call's bounds that one operation takes. Dropped, the call has it again, unless it
/// was spent.
#[derive(Debug)]
struct Charge<'w> {
    writes: &'w Writes,
    bytes: u64,
    files: u64,
}

impl Charge<'_> {
    /// Says that the call has written it, and gets it back no more.
    fn spend(&mut self) {
        (self.bytes, self.files) = (0, 0);
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.writes.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.writes.files.fetch_sub(self.files, Ordering::Relaxed);
    }
}

/// Room for one operation. Dropped without [`Grant::keep`], the workspace has it again, and without
/// [`Grant::discard`], so has the call.
#[derive(Debug)]
#[must_use]
pub(crate) struct Grant<'w> {
    charge: Charge<'w>,
    added: DiskUse,
    /// The same in the other accounts that it counts in.
    others: Vec<SharedGrant>,
    written: u64,
    kept: bool,
}

impl Grant<'_> {
    /// Says that the growth that was granted is in the workspace.
    pub(crate) fn keep(mut self) {
        self.charge.spend();
        self.kept = true;
    }

    /// Says that something was written, of which nothing is left in the workspace: else a call
    /// that fails each time could write without end.
    pub(crate) fn discard(mut self) {
        self.charge.spend();
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        let writes = self.charge.writes;
        writes.bounds.disk.under_way.fetch_sub(self.written, Ordering::Relaxed);
        writes.own().open().settle(self.added, self.kept);
        for other in &self.others {
            other.settle(self.added, self.kept);
        }
    }
}

#[cfg(test)]
mod tests;
