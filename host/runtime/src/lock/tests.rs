//! Background locks, in simulated time.

use std::collections::BTreeSet;

use async_trait::async_trait;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_journal::store::{Host, LEASE, Stay, StoreError};
use taskrun_journal::time::Timestamp;
use taskrun_store::MemoryStore;

use super::*;

/// The policy of these hosts.
const POLICY: &str = "/project/taskrun.toml";

/// A list of hosts that stays as it is.
struct Listed(Vec<PresentHost>);

#[async_trait]
impl Hosts for Listed {
    async fn register(&self, _host: Host) -> Result<(), StoreError> {
        Ok(())
    }

    async fn retire(&self, _host: &HostId, _stay: Stay) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn is_needed(&self, _host: &HostId, _stay: Stay) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn hosts(&self) -> Result<Vec<Host>, StoreError> {
        Ok(Vec::new())
    }

    async fn present_hosts(&self) -> Result<Vec<PresentHost>, StoreError> {
        Ok(self.0.clone())
    }

    async fn orphans(&self, _limit: usize) -> Result<Vec<Run>, StoreError> {
        Ok(Vec::new())
    }

    async fn heard(&self, _host: &HostId) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    async fn held(
        &self,
        _host: &HostId,
        _after: Option<&RunId>,
        _limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        Ok(Vec::new())
    }

    fn silence(&self, _host: &HostId) -> Option<Duration> {
        None
    }

    fn abandon(&self, _host: &HostId) {}
}

/// A host of the policy; one that stands still has been silent for so long.
fn listed(id: &str, silence: Option<Duration>) -> PresentHost {
    let host = Host {
        id: HostId::new(id),
        pid: 1,
        policy: POLICY.to_owned(),
        agents: Arc::new(BTreeSet::new()),
        subscribers: Arc::new(BTreeSet::new()),
        started_at: Timestamp(1),
        slots: 1,
        lease: LEASE,
    };
    PresentHost { host, silence }
}

/// The lock as another process holds it.
async fn held(dir: &Path, policy: &Path) -> BackgroundLock {
    let lock = BackgroundLock::take(dir, policy, &MemoryStore::new()).await;
    lock.expect("nobody has it")
}

/// Sets the time of a lock file. Two signs in real time may have the same one.
fn date(file: &File, second: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    file.set_modified(time).expect("set");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_begins_is_waited_for_as_long_as_it_gives_signs() {
    let dir = tempfile::tempdir().expect("a folder");
    let policy = Path::new("/project/taskrun.toml");
    let holder = held(dir.path(), policy).await;
    let slow_start = tokio::spawn(async move {
        for second in 0..60 {
            date(&holder.file, second);
            tokio::time::sleep(SIGN_EVERY).await;
        }
        drop(holder);
    });
    let taken = BackgroundLock::take(dir.path(), policy, &MemoryStore::new()).await;
    taken.map(drop).expect("it is free when the other one ends");
    assert!(slow_start.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_gives_no_sign_any_more_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().expect("a folder");
    let policy = Path::new("/project/taskrun.toml");
    let holder = held(dir.path(), policy).await;
    let handle = holder.file.try_clone().expect("a handle");
    let stopped_start = tokio::spawn(async move {
        for second in 0..20 {
            date(&handle, second);
            tokio::time::sleep(SIGN_EVERY).await;
        }
    });
    let refused = BackgroundLock::take(dir.path(), policy, &MemoryStore::new()).await;
    assert!(matches!(refused.map(drop), Err(OpenError::Standstill { .. })));
    assert!(stopped_start.is_finished(), "it was waited for until then");
    drop(holder);
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_are_given_again_and_again_until_they_are_dropped() {
    let dir = tempfile::tempdir().expect("a folder");
    let taken = held(dir.path(), Path::new("/project/taskrun.toml")).await;
    let file = taken.file.try_clone().expect("a handle");
    let lock = HeldLock::new(taken);
    let time = || file.metadata().and_then(|about| about.modified()).expect("a time");
    let signs = lock.signs();
    for _ in 0..3 {
        date(&file, 0);
        tokio::time::sleep(SIGN_EVERY * 2).await;
        assert!(time() > SystemTime::UNIX_EPOCH, "a sign was given");
    }
    drop(signs);
    date(&file, 0);
    tokio::time::sleep(SIGN_EVERY * 5).await;
    assert_eq!(time(), SystemTime::UNIX_EPOCH);
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_host_that_stands_still_is_passed_over() {
    let dir = tempfile::tempdir().expect("a folder");
    let policy = Path::new(POLICY);
    let stopped = held(dir.path(), policy).await;
    stopped.name(&HostId::new("stopped"));
    let hosts = Listed(vec![listed("stopped", Some(LEASE))]);
    let taken = BackgroundLock::take(dir.path(), policy, &hosts).await;
    assert_ne!(taken.expect("it is another one").path, stopped.path);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_begins_is_not_passed_over_where_one_without_a_lock_stands_still() {
    let dir = tempfile::tempdir().expect("a folder");
    let policy = Path::new(POLICY);
    let holder = held(dir.path(), policy).await;
    let path = holder.path.clone();
    let begins = tokio::spawn(async move {
        tokio::time::sleep(SILENT_FOR * 2).await;
        drop(holder);
    });
    let hosts = Listed(vec![listed("in front", Some(LEASE))]);
    let taken = BackgroundLock::take(dir.path(), policy, &hosts).await;
    assert_eq!(taken.expect("it is free when the other one ends").path, path);
    assert!(begins.is_finished());
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_host_that_is_killed_as_it_stands_still_is_for_nobody_beside_the_next() {
    let dir = tempfile::tempdir().expect("a folder");
    let policy = Path::new(POLICY);
    let stopped = held(dir.path(), policy).await;
    let path = stopped.path.clone();
    stopped.name(&HostId::new("stopped"));
    let hosts = Listed(vec![listed("stopped", Some(LEASE))]);
    let next = BackgroundLock::take(dir.path(), policy, &hosts).await.expect("the second lock");
    next.name(&HostId::new("next"));
    drop(stopped);
    let hosts = Listed(vec![listed("next", None)]);
    let refused = BackgroundLock::take(dir.path(), policy, &hosts).await;
    assert!(matches!(refused.map(drop), Err(OpenError::Executed)));
    // Nobody has it then, and what the next one leaves behind keeps nobody waiting.
    let left = next.path.clone();
    drop(next);
    std::fs::write(&left, "next").expect("written");
    assert_eq!(held(dir.path(), policy).await.path, path);
    assert!(!left.exists());
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_removed_file_is_not_taken_for_that_of_the_next_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let policy = Path::new(POLICY);
    let before = held(dir.path(), policy).await;
    let path = before.path.clone();
    let mut waiter = LockFile::open(path.clone()).expect("it opens");
    assert!(!waiter.try_take().expect("asked"), "another one has it");
    drop(before);
    let next = held(dir.path(), policy).await;
    for _ in 0..2 {
        assert!(!waiter.try_take().expect("asked"), "the next one has a file of its own");
    }
    drop(next);
    assert!(!waiter.try_take().expect("asked"), "that file is gone as well");
    assert!(waiter.try_take().expect("asked"), "it has made one itself");
    let mut other = LockFile::open(path).expect("it opens");
    assert!(!other.try_take().expect("asked"), "which is the one of the name");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_somebody_made_in_place_of_a_lock_is_left_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let own = held(dir.path(), Path::new(POLICY)).await;
    let path = own.path.clone();
    std::fs::remove_file(&path).expect("removed");
    let mut other = LockFile::open(path.clone()).expect("it opens");
    assert!(other.try_take().expect("asked"), "nobody has that one");
    drop(own);
    assert!(path.exists());
}
