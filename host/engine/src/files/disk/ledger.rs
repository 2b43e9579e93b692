//! The accounts of workspaces: what each of them holds.
//!
//! One workspace may lie in another. What a guest adds in one of them may then be in both, so it
//! counts in each, and what it takes away counts in another one only where that is certain. An
//! account may thus say that there is more than there is, until it is counted again. It says less
//! at most by what others than guests put there since the last count.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};

use rustix::fs::{AtFlags, statat};
use tokio::time::Instant;

use super::Disk;
use crate::files::place::id_of;
use crate::files::protected::Id;
use crate::files::{DiskUse, Workspace};

/// The account of one workspace.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The path of the folder, without links.
    path: PathBuf,
    /// The folder: another one at the same path is another workspace. One that is made anew may get
    /// the number of one that is gone; then it is counted again when it seems full.
    id: Option<Id>,
    account: Mutex<Account>,
    /// Shared by what relies on the length or the names of a file while it adds to it, and held
    /// alone by what takes away.
    steady: RwLock<()>,
    /// The ledgers of the workspaces that it lies in or that lie in it.
    others: Mutex<Vec<Weak<Self>>>,
}

#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) used: DiskUse,
    /// Part of `used` that was granted and may not be on the disk yet.
    granted: DiskUse,
    /// Part of `used` that calls in another workspace added, which may lie outside of this one.
    unplaced: DiskUse,
    /// The folders that `used` is about.
    pub(super) counted: Vec<String>,
    /// The time from which on they may be counted again where they seem full.
    again_at: Option<Instant>,
    /// The number of times that they were counted.
    counts: u64,
    /// The use that the last count found.
    found: DiskUse,
    /// The part of what was removed that was not taken from `used`, as it may never have been counted.
    withheld: DiskUse,
    /// True if they are to be counted before anything is added, once the last count is as long ago as
    /// it took.
    must_be_counted: bool,
    /// The time until which that waits.
    rests_until: Option<Instant>,
}

impl Account {
    pub(super) fn add(&mut self, added: DiskUse) {
        self.used.add(added);
        self.granted.add(added);
    }

    /// Ends a grant, of which all is there, or nothing.
    pub(super) fn settle(&mut self, added: DiskUse, is_kept: bool) {
        self.granted.subtract(added);
        if !is_kept {
            self.remove(added);
        }
    }

    /// Takes away what was added since the last count, and no more: the rest may be what others put
    /// there meanwhile, which was never counted.
    pub(super) fn remove(&mut self, removed: DiskUse) {
        let mut left = self.used;
        left.subtract(removed);
        self.used = left.at_least(self.found);
        let mut withheld = self.used;
        withheld.subtract(left);
        self.withheld.add(withheld);
    }

    /// The use of which it is certain that it is in this workspace, and is there still.
    pub(super) fn certain(&self) -> DiskUse {
        let mut certain = self.used;
        certain.subtract(self.unplaced);
        certain.subtract(self.withheld);
        certain
    }

    /// The use by which a growth is judged: what is certain where a count that is needed has to wait,
    /// as else a guest would be refused for what others did.
    pub(super) fn judged(&self) -> DiskUse {
        if self.must_be_counted { self.certain() } else { self.used }
    }

    /// Lets no count be required before a time, so that guests that bring them about keep neither the
    /// disk nor each other busy.
    pub(super) fn rest_until(&mut self, time: Instant) {
        self.rests_until = Some(time);
    }

    /// Says that it is to be counted before anything is added.
    pub(super) fn require_count(&mut self) {
        self.must_be_counted = true;
    }

    /// True if it is to be counted.
    pub(super) fn is_due(&self, seems_full: bool, now: Instant) -> bool {
        let is_past = |time: Option<Instant>| time.is_none_or(|time| now >= time);
        (self.must_be_counted && is_past(self.rests_until))
            || (seems_full && is_past(self.again_at))
    }

    pub(super) fn set(&mut self, found: DiskUse, again_at: Instant) {
        // What was granted may be found already; it is gone from here when it is settled.
        self.used = found;
        self.used.add(self.granted);
        (self.found, self.again_at) = (found, Some(again_at));
        (self.unplaced, self.withheld) = (DiskUse::default(), DiskUse::default());
        (self.must_be_counted, self.rests_until) = (false, None);
        self.counts += 1;
    }
}

/// The part of a call's folders that an account is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    Nothing,
    /// Something in them may be in what is counted.
    Unknown,
    All,
}

impl Ledger {
    pub(super) fn open(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if one of the two workspaces lies in the other.
    fn overlaps(&self, other: &Self) -> bool {
        let (one, other) = (&self.path, &other.path);
        one != other && (one.starts_with(other) || other.starts_with(one))
    }

    fn others(&self) -> MutexGuard<'_, Vec<Weak<Self>>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_other(&self, other: &Arc<Self>) {
        let mut others = self.others();
        others.retain(|one| one.strong_count() > 0);
        others.push(Arc::downgrade(other));
    }

    /// The part of these folders that is counted here.
    fn share(&self, account: &Account, folders: &[PathBuf]) -> Share {
        // Until it is counted only what is not there yet matters.
        if account.counted.is_empty() {
            return Share::Unknown;
        }
        let counted: Vec<PathBuf> =
            account.counted.iter().map(|folder| self.path.join(folder)).collect();
        let is_in = |one: &PathBuf| counted.iter().any(|folder| one.starts_with(folder));
        let has_some = |one: &PathBuf| counted.iter().any(|folder| folder.starts_with(one));
        if folders.iter().all(is_in) {
            Share::All
        } else if folders.iter().any(|one| is_in(one) || has_some(one)) {
            Share::Unknown
        } else {
            Share::Nothing
        }
    }

    /// Tells if an open folder is in this workspace, where that can be known.
    fn holds(&self, folder: BorrowedFd<'_>) -> Option<bool> {
        let id = self.id?;
        let (mut up, mut below) = (".".to_owned(), None);
        loop {
            let here = id_of(&statat(folder, up.as_str(), AtFlags::empty()).ok()?);
            if here == id {
                return Some(true);
            }
            // The root of the file system is in itself.
            if below == Some(here) {
                return Some(false);
            }
            below = Some(here);
            up.push_str("/..");
        }
    }
}

/// The ledger of a call's workspace.
#[derive(Debug)]
pub(super) struct OwnLedger {
    ledger: Arc<Ledger>,
    /// The folders in which the call may write.
    folders: Vec<PathBuf>,
}

impl OwnLedger {
    /// That of an open workspace, for a call that may write in these folders of it.
    pub(super) fn of(disk: &Disk, workspace: &Workspace, folders: &[String]) -> Self {
        let (path, id) = workspace.identity();
        let folders = folders.iter().map(|folder| path.join(folder)).collect();
        let mut all = disk.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        // A folder that is gone from there counts for as long as calls have it open.
        all.retain(|one| one.path != path || one.id == id || Arc::strong_count(one) > 1);
        let found = all.iter().find(|one| one.path == path && one.id == id).cloned();
        let ledger = found.unwrap_or_else(|| {
            let (account, steady, others) = (Mutex::default(), RwLock::default(), Mutex::default());
            let made = Arc::new(Ledger { path, id, account, steady, others });
            for other in all.iter().filter(|other| other.overlaps(&made)) {
                other.add_other(&made);
                made.add_other(other);
            }
            all.push(Arc::clone(&made));
            made
        });
        Self { ledger, folders }
    }

    pub(super) fn open(&self) -> MutexGuard<'_, Account> {
        self.ledger.open()
    }

    pub(super) fn steady(&self) -> RwLockReadGuard<'_, ()> {
        self.ledger.steady.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// It with the others as they are at this moment: calls begin to write in further workspaces
    /// while this one goes on.
    pub(super) fn with_others(&self) -> Ledgers<'_> {
        let others = self.ledger.others().iter().filter_map(Weak::upgrade).collect();
        Ledgers { own: self, others }
    }
}

/// The ledger of a call's workspace, and those of the workspaces that it lies in or that lie in it.
#[derive(Debug)]
pub(crate) struct Ledgers<'w> {
    own: &'w OwnLedger,
    others: Vec<Arc<Ledger>>,
}

impl Ledgers<'_> {
    /// Adds to the others in which it may be, which are given.
    pub(super) fn add_to_others(&self, added: DiskUse) -> Vec<SharedGrant> {
        let add = |ledger: &Arc<Ledger>| {
            let mut account = ledger.open();
            let share = ledger.share(&account, &self.own.folders);
            if share == Share::Nothing {
                return None;
            }
            account.add(added);
            Some(SharedGrant { ledger: Arc::clone(ledger), is_certain: share == Share::All })
        };
        self.others.iter().filter_map(add).collect()
    }

    /// Says that something came from one folder into another, or has a second name there. Its
    /// size is not known: an account that it is new to is counted before it grows.
    pub(crate) fn note_move(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
        for ledger in self.others.iter().chain([&self.own.ledger]) {
            let (share, is_of_all) = {
                let account = ledger.open();
                let share = ledger.share(&account, &self.own.folders);
                (share, account.counted.iter().any(String::is_empty))
            };
            // One that is about parts of its workspace may have counted neither or both places.
            let is_new = share == Share::Unknown
                && ledger.holds(to) != Some(false)
                && !(is_of_all && ledger.holds(from) == Some(true));
            if is_new {
                ledger.open().require_count();
            }
        }
    }

    /// For operations that take away: until this is dropped, no other guest does, nor adds as much
    /// as a length or a count says that is about to change, in this workspace or in one that shares
    /// a folder with it. All are held in the one order in which they are ever held.
    pub(crate) fn alone(&self) -> ExclusiveAccess<'_> {
        let mut all: Vec<&Ledger> =
            self.others.iter().chain([&self.own.ledger]).map(|ledger| &**ledger).collect();
        all.sort_by(|one, other| (&one.path, one.id).cmp(&(&other.path, other.id)));
        let all = all.into_iter();
        let held = all.map(|one| one.steady.write().unwrap_or_else(PoisonError::into_inner));
        ExclusiveAccess { ledgers: self, _alone: held.collect() }
    }
}

/// The exclusive right to take something away from a workspace.
#[derive(Debug)]
pub(crate) struct ExclusiveAccess<'l> {
    ledgers: &'l Ledgers<'l>,
    _alone: Vec<RwLockWriteGuard<'l, ()>>,
}

impl ExclusiveAccess<'_> {
    /// Takes away, and takes from the accounts what the work says that it took. The workspace is
    /// not counted in between: what is not found any more would be given back a second time.
    ///
    /// # Errors
    /// Those of the work. Then nothing is given back.
    pub(crate) fn take_away<E>(&self, work: impl FnOnce() -> Result<DiskUse, E>) -> Result<(), E> {
        let Ledgers { own, others } = self.ledgers;
        let counts: Vec<u64> = others.iter().map(|other| other.open().counts).collect();
        let removed = {
            let mut account = own.open();
            let removed = work()?;
            if own.ledger.share(&account, &own.folders) == Share::All {
                account.remove(removed);
            }
            removed
        };
        for (other, counts) in others.iter().zip(counts) {
            let mut account = other.open();
            // One that was counted meanwhile may not have found it any more.
            if account.counts == counts && other.share(&account, &own.folders) == Share::All {
                account.remove(removed);
            }
        }
        Ok(())
    }
}

/// A grant in the account of another workspace than the call's own.
#[derive(Debug)]
pub(super) struct SharedGrant {
    ledger: Arc<Ledger>,
    /// False if it may lie outside of that workspace.
    is_certain: bool,
}

impl SharedGrant {
    /// Ends it: all is there, or nothing.
    pub(super) fn settle(&self, added: DiskUse, is_kept: bool) {
        let mut account = self.ledger.open();
        account.settle(added, is_kept);
        if is_kept && !self.is_certain {
            account.unplaced.add(added);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_account_says_no_less_than_was_found_until_it_is_counted_again() {
        let (mut account, now) = (Account::default(), Instant::now());
        let (found, added) = (DiskUse { bytes: 10, files: 2 }, DiskUse { bytes: 4, files: 1 });
        account.set(found, now + Duration::from_secs(1));
        account.add(added);
        account.settle(added, true);
        account.remove(added);
        assert_eq!(account.used, found, "all of it was added before");
        for removed in [DiskUse { bytes: 1, files: 0 }, DiskUse { bytes: 20, files: 9 }] {
            account.remove(removed);
            assert_eq!(account.used, found, "that may never have been counted");
        }
        assert!(!account.is_due(false, now), "which is no reason to count");
        assert!(!account.is_due(true, now), "nor is that it seems full, within the pause");
        assert!(account.is_due(true, now + Duration::from_secs(1)), "but after it");
        let less = DiskUse { bytes: 9, files: 1 };
        account.set(less, now);
        assert_eq!(account.used, less);
    }

    #[test]
    fn an_account_that_must_be_counted_is_so_within_the_pause_once() {
        let (mut account, now) = (Account::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        account.set(DiskUse::default(), later);
        account.require_count();
        assert!(account.is_due(false, now));
        account.set(DiskUse::default(), later);
        assert!(!account.is_due(false, now));
    }

    #[test]
    fn a_count_that_is_required_waits_as_long_as_the_last_one_took_and_what_is_certain_counts() {
        let (mut account, now) = (Account::default(), Instant::now());
        let (found, removed) = (DiskUse { bytes: 10, files: 2 }, DiskUse { bytes: 4, files: 1 });
        let soon = now + Duration::from_secs(1);
        account.set(found, now + Duration::from_secs(20));
        account.rest_until(soon);
        account.remove(removed);
        assert_eq!(account.judged(), found);
        account.require_count();
        assert!(!account.is_due(true, now));
        assert_eq!(account.judged(), DiskUse { bytes: 6, files: 1 });
        assert!(account.is_due(false, soon));
    }
}
