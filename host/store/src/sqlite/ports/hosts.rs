//! The port of hosts.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use taskrun_journal::ids::{HostId, RunId};
use taskrun_journal::run::Run;
use taskrun_journal::store::{Host, Hosts, PresentHost, Stay, StoreError};
use taskrun_journal::time::Timestamp;

use super::SMALL;
use crate::sqlite::heartbeat::machine_ms;
use crate::sqlite::hosts::{self, DeadHosts};
use crate::sqlite::store::SqliteStore;

#[async_trait]
impl Hosts for SqliteStore {
    async fn register(&self, host: Host) -> Result<(), StoreError> {
        self.is_open()?;
        // Before anybody takes this process for a host.
        self.heart.begin()?;
        let (locks, id) = (Arc::clone(&self.locks), host.id.clone());
        let taken = tokio::task::spawn_blocking(move || locks.take(&id)).await;
        let is_new = taken.unwrap_or(Err(StoreError::Closed))?;
        let (heart, id, lease) = (Arc::clone(&self.heart), host.id.clone(), host.lease);
        let sent_ms = machine_ms();
        let beat = move |(): &()| heart.add(id, lease, sent_ms);
        let id = host.id.clone();
        let enter = move |db: &Connection| hosts::enter(db, &host, sent_ms);
        let entered = self.writer.submit(SMALL, enter, beat).await;
        match &entered {
            Ok(()) => self.scrub.begin(),
            // Of a host that lives all the same, or may stand in the store, the lock says so.
            Err(StoreError::Unknown { .. }) => {}
            Err(_) if is_new => self.locks.remove(&id),
            Err(_) => {}
        }
        entered
    }

    async fn is_needed(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError> {
        let host = host.clone();
        self.readers.read(move |db| hosts::is_needed(db, &host, &stay)).await
    }

    async fn retire(&self, host: &HostId, stay: Stay) -> Result<bool, StoreError> {
        let (heart, locks) = (Arc::clone(&self.heart), Arc::clone(&self.locks));
        let (id, leaving) = (host.clone(), host.clone());
        let leave = move |out: &bool| {
            if *out {
                heart.remove(&leaving);
                locks.remove(&leaving);
            }
        };
        self.writer.submit(SMALL, move |db| hosts::retire(db, &id, &stay), leave).await
    }

    async fn hosts(&self) -> Result<Vec<Host>, StoreError> {
        let locks = Arc::clone(&self.locks);
        self.readers.read(move |db| hosts::living(db, &locks)).await
    }

    async fn present_hosts(&self) -> Result<Vec<PresentHost>, StoreError> {
        let locks = Arc::clone(&self.locks);
        self.readers.read(move |db| hosts::present(db, &locks)).await
    }

    async fn orphans(&self, limit: usize) -> Result<Vec<Run>, StoreError> {
        let (locks, detector) = (Arc::clone(&self.locks), Arc::clone(&self.detector));
        let left = move |db: &Connection| hosts::orphans(db, &locks, &detector, limit);
        let DeadHosts { runs, dead, doubtful } = self.readers.read(left).await?;
        if !doubtful.is_empty() {
            let detector = Arc::clone(&self.detector);
            let wrote = move |(): &()| detector.wrote(machine_ms());
            let touch = move |db: &Connection| hosts::touch(db, &doubtful);
            if let Err(error) = self.writer.submit(SMALL, touch, wrote).await {
                tracing::debug!(%error, "nobody is taken for dead by who cannot write");
            }
        }
        if !dead.is_empty() {
            let locks = Arc::clone(&self.locks);
            let tidy = move |gone: &Vec<HostId>| gone.iter().for_each(|host| locks.remove(host));
            self.writer.submit(SMALL, move |db| hosts::sweep(db, &dead), tidy).await?;
        }
        Ok(runs)
    }

    async fn heard(&self, host: &HostId) -> Result<Option<Timestamp>, StoreError> {
        let host = host.clone();
        self.readers.read(move |db| hosts::heard(db, &host)).await
    }

    async fn held(
        &self,
        host: &HostId,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        let (host, after) = (host.clone(), after.cloned());
        self.readers.read(move |db| hosts::held(db, &host, after.as_ref(), limit)).await
    }

    fn silence(&self, host: &HostId) -> Option<Duration> {
        self.heart.silence(host)
    }

    fn abandon(&self, host: &HostId) {
        self.heart.remove(host);
        self.locks.remove(host);
    }
}
