//! Lasting consents.

use std::collections::BTreeMap;

use async_trait::async_trait;
use taskrun_journal::consent::{
    BY_HOST, CONSENTS_MAX, ConsentOutcome, ConsentRecord, ConsentSubject, Consents, LastingConsent,
    Revocation,
};
use taskrun_journal::list::Scope;
use taskrun_journal::store::StoreError;
use taskrun_journal::time::Timestamp;

use super::MemoryStore;

/// All lasting consents.
#[derive(Clone, Default)]
pub(super) struct ConsentTable {
    /// The last number that was given.
    last: u64,
    records: BTreeMap<u64, ConsentRecord>,
    /// The numbers of those that nobody revoked, by what they are about.
    open: BTreeMap<ConsentSubject, BTreeMap<Option<String>, u64>>,
}

impl ConsentTable {
    fn keep(&mut self, consent: LastingConsent) -> ConsentOutcome {
        let is_of_owner = |record: &&ConsentRecord| {
            let (known, new) = (&record.consent.subject, &consent.subject);
            known.tenant == new.tenant && known.owner_user_id == new.owner_user_id
        };
        let is_full = self.records.values().filter(is_of_owner).count() >= CONSENTS_MAX;
        let open = self.open.get(&consent.subject);
        let replaces = open.and_then(|open| open.get(&consent.session).copied());
        match replaces {
            None if is_full => return ConsentOutcome::Full,
            // Who has no room for another word can still take one back.
            Some(before) if is_full => {
                self.records.remove(&before);
            }
            Some(before) => {
                let revocation = Revocation { at: consent.at, by: consent.by.clone() };
                if let Some(before) = self.records.get_mut(&before) {
                    before.revocation = Some(revocation);
                }
            }
            None => {}
        }
        self.last += 1;
        let number = self.last;
        let open = self.open.entry(consent.subject.clone()).or_default();
        open.insert(consent.session.clone(), number);
        let record = ConsentRecord { number, consent, replaces, revocation: None };
        self.records.insert(number, record.clone());
        ConsentOutcome::Kept(Box::new(record))
    }

    fn about(&self, subject: &ConsentSubject, session: Option<&str>) -> Vec<ConsentRecord> {
        let Some(open) = self.open.get(subject) else { return Vec::new() };
        let session = session.map(|session| Some(session.to_owned()));
        let keys = std::iter::once(None).chain(session);
        let numbers = keys.filter_map(|key| open.get(&key));
        numbers.filter_map(|number| self.records.get(number)).cloned().collect()
    }

    fn list(&self, scope: &Scope, after: u64, limit: usize) -> Vec<ConsentRecord> {
        let later = self.records.range(after.saturating_add(1)..).map(|(_, record)| record);
        let seen = later.filter(|record| record.consent.is_within(scope));
        seen.take(limit).cloned().collect()
    }

    fn revoke(
        &mut self,
        scope: &Scope,
        number: u64,
        revocation: Revocation,
    ) -> Option<ConsentRecord> {
        let record = self.records.get_mut(&number);
        let record = record.filter(|record| record.consent.is_within(scope))?;
        if record.revocation.is_none() {
            record.revocation = Some(revocation);
            let revoked = record.clone();
            self.close(&revoked);
            return Some(revoked);
        }
        Some(record.clone())
    }

    fn remove(&mut self, scope: &Scope, over_before: Option<Timestamp>, dry_run: bool) -> u64 {
        let is_over = |record: &ConsentRecord| {
            over_before.is_none_or(|time| record.over_at().is_some_and(|over| over < time))
        };
        let is_meant = |record: &&ConsentRecord| record.consent.is_within(scope) && is_over(record);
        let meant: Vec<ConsentRecord> = self.records.values().filter(is_meant).cloned().collect();
        if !dry_run {
            for record in &meant {
                self.records.remove(&record.number);
                self.close(record);
            }
        }
        meant.len() as u64
    }

    /// Revokes what is bound to a session that ended.
    pub(super) fn end_session(&mut self, ended: &Scope, at: Timestamp) {
        let is_meant = |record: &&ConsentRecord| {
            record.revocation.is_none() && record.consent.is_within(ended)
        };
        let open: Vec<u64> =
            self.records.values().filter(is_meant).map(|record| record.number).collect();
        for number in open {
            self.revoke(ended, number, Revocation { at, by: BY_HOST.to_owned() });
        }
    }

    /// Takes a consent out of those that nobody revoked.
    fn close(&mut self, record: &ConsentRecord) {
        let LastingConsent { subject, session, .. } = &record.consent;
        let Some(open) = self.open.get_mut(subject) else { return };
        if open.get(session) == Some(&record.number) {
            open.remove(session);
        }
        if open.is_empty() {
            self.open.remove(subject);
        }
    }
}

#[async_trait]
impl Consents for MemoryStore {
    async fn keep_consent(&self, consent: LastingConsent) -> Result<ConsentOutcome, StoreError> {
        Ok(self.lock().consents.keep(consent))
    }

    async fn consents_about(
        &self,
        subject: &ConsentSubject,
        session: Option<&str>,
    ) -> Result<Vec<ConsentRecord>, StoreError> {
        Ok(self.lock().consents.about(subject, session))
    }

    async fn consents(
        &self,
        scope: &Scope,
        after: u64,
        limit: usize,
    ) -> Result<Vec<ConsentRecord>, StoreError> {
        Ok(self.lock().consents.list(scope, after, limit))
    }

    async fn revoke_consent(
        &self,
        scope: &Scope,
        number: u64,
        revocation: Revocation,
    ) -> Result<Option<ConsentRecord>, StoreError> {
        Ok(self.lock().consents.revoke(scope, number, revocation))
    }

    async fn remove_consents(
        &self,
        scope: &Scope,
        over_before: Option<Timestamp>,
        dry_run: bool,
    ) -> Result<u64, StoreError> {
        Ok(self.lock().consents.remove(scope, over_before, dry_run))
    }
}
