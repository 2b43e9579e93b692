//! Consents that last beyond the run in which they were given, and the port of their store.
//!
//! A person who is asked about a tool call answers for the call, for its run, for all runs of a
//! session, or for all runs. Answers of the last two kinds are kept here: they are decisions about
//! the calls of one function by one agent, for one owner. They lift a rule that asks and nothing
//! else.

use std::cmp::Reverse;
use std::time::Duration;

use async_trait::async_trait;

use crate::list::Scope;
use crate::spec::RunSpec;
use crate::store::StoreError;
use crate::time::Timestamp;

/// Most consents of one owner, with those that are over and not removed yet: a person gives them
/// one by one. Beyond that a new one can only come in the place of another, which is removed then.
pub const CONSENTS_MAX: usize = 10_000;
/// Longest time for which a consent is given: ten years.
pub const CONSENT_TIME_MAX: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);
/// The time for which a consent to all runs is given where nobody states one: 90 days. A person who
/// still wants it then says so again.
pub const CONSENT_TIME_DEFAULT: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// The author of the revocation of what ended with its session.
pub const BY_HOST: &str = "host";

/// The calls that a consent is about: those of one function by the runs of one agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsentSubject {
    /// Tenant of the runs.
    pub tenant: String,
    /// Their owner.
    pub owner_user_id: String,
    /// The application from which they are asked for, where that is stated.
    pub parent_app_name: Option<String>,
    /// The path of the policy file that they are of. An agent of the same name in another file may
    /// be anything.
    pub policy: String,
    /// Their agent.
    pub agent_name: String,
    /// The qualified name of the function.
    pub function: String,
}

/// A decision about calls to come, in more than one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastingConsent {
    /// The calls.
    pub subject: ConsentSubject,
    /// The session to whose runs it is bound; `None` for those of all.
    pub session: Option<String>,
    /// True if the calls may begin, and false if they are refused.
    pub approved: bool,
    /// Digest of the code that was to be called when it was given. The calls of other code are not
    /// approved by it.
    pub digest: String,
    /// The person who gave it.
    pub by: String,
    /// The time at which it was given.
    pub at: Timestamp,
    /// The time at which it is over by itself; `None` if never.
    pub until: Option<Timestamp>,
}

/// A consent as a store has it. It stays on record when it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsentRecord {
    /// Its number in the store, from 1.
    pub number: u64,
    /// The decision.
    pub consent: LastingConsent,
    /// The number of the one in whose place it came.
    pub replaces: Option<u64>,
    /// Its revocation, if it was revoked or another one came in its place.
    pub revocation: Option<Revocation>,
}

/// The end of a consent by a person, or with its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The time of it.
    pub at: Timestamp,
    /// The person, or [`BY_HOST`].
    pub by: String,
}

/// The answer of a store to a consent that is to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsentOutcome {
    /// It is kept.
    Kept(Box<ConsentRecord>),
    /// The owner has [`CONSENTS_MAX`] of them, and none that it would replace. Nothing has changed.
    Full,
}

impl ConsentSubject {
    /// The calls of a function by a run of this policy file.
    #[must_use]
    pub fn of(spec: &RunSpec, policy: &str, function: &str) -> Self {
        Self {
            tenant: spec.tenant.clone(),
            owner_user_id: spec.owner_user_id.clone(),
            parent_app_name: spec.parent_app_name.clone().filter(|app| !app.is_empty()),
            policy: policy.to_owned(),
            agent_name: spec.agent_name.clone(),
            function: function.to_owned(),
        }
    }

    /// True if a caller with this scope sees these calls of the runs of a session, or of those that
    /// belong to none.
    #[must_use]
    pub fn is_within(&self, scope: &Scope, session: Option<&str>) -> bool {
        let fits = |wanted: &Option<String>, has: Option<&str>| {
            wanted.is_none() || wanted.as_deref() == has
        };
        scope.tenant == self.tenant
            && fits(&scope.owner_user_id, Some(&self.owner_user_id))
            && fits(&scope.parent_session_id, session)
            && fits(&scope.parent_app_name, self.parent_app_name.as_deref())
    }
}

impl LastingConsent {
    /// True if a caller with this scope sees it. One who sees a single session sees what is bound
    /// to that.
    #[must_use]
    pub fn is_within(&self, scope: &Scope) -> bool {
        self.subject.is_within(scope, self.session.as_deref())
    }
}

impl ConsentRecord {
    /// The time at which it was over, or will be; `None` if nobody revoked it and it ends at no time.
    #[must_use]
    pub fn over_at(&self) -> Option<Timestamp> {
        let revoked = self.revocation.as_ref().map(|revocation| revocation.at);
        revoked.into_iter().chain(self.consent.until).min()
    }

    /// True if it holds at this time.
    #[must_use]
    pub fn holds(&self, now: Timestamp) -> bool {
        self.revocation.is_none() && self.consent.until.is_none_or(|until| now < until)
    }

    /// True if it decides about calls of this code. A refusal does whatever the code is.
    #[must_use]
    pub fn covers(&self, digest: &str) -> bool {
        !self.consent.approved || self.consent.digest == digest
    }
}

/// The one of some consents about the same calls that decides about calls of this code now: a
/// refusal before an approval, and what is bound to the session before what is not.
#[must_use]
pub fn in_force<'r>(
    records: &'r [ConsentRecord],
    digest: &str,
    now: Timestamp,
) -> Option<&'r ConsentRecord> {
    let holding = records.iter().filter(|record| record.holds(now) && record.covers(digest));
    holding.min_by_key(|record| {
        let consent = &record.consent;
        (consent.approved, consent.session.is_none(), Reverse(record.number))
    })
}

/// The session to whose runs a consent of this run would be bound: that of its tree. `None` for a
/// run that belongs to none.
#[must_use]
pub fn session_of(spec: &RunSpec) -> Option<&str> {
    let session = spec.root_session_id.as_ref().unwrap_or(&spec.parent_session_id);
    Some(session.as_str()).filter(|session| !session.is_empty())
}

/// Keeps lasting consents. What is acknowledged is on disk, as far as the store has one.
///
/// A store keeps what it is given and decides nothing but which of two comes in the place of the
/// other: [`in_force`] says which one counts.
#[async_trait]
pub trait Consents: Send + Sync {
    /// Keeps a consent. One about the same calls that is bound to the same session, and was not
    /// revoked, is revoked by it in the same write, or removed where the owner has no room for
    /// both.
    ///
    /// # Errors
    /// [`StoreError`]; it may then be kept only after [`StoreError::Unknown`].
    async fn keep_consent(&self, consent: LastingConsent) -> Result<ConsentOutcome, StoreError>;

    /// The consents about these calls that nobody has revoked: the one for all sessions, and the
    /// one that is bound to this session.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn consents_about(
        &self,
        subject: &ConsentSubject,
        session: Option<&str>,
    ) -> Result<Vec<ConsentRecord>, StoreError>;

    /// The consents that a caller sees ([`LastingConsent::is_within`]), those that are over
    /// included, after a number, in the order of their numbers, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn consents(
        &self,
        scope: &Scope,
        after: u64,
        limit: usize,
    ) -> Result<Vec<ConsentRecord>, StoreError>;

    /// Revokes a consent that a caller sees, unless it was revoked before; gives it as it is then.
    /// `None` if the caller sees none of that number.
    ///
    /// # Errors
    /// [`StoreError`]; it may then be revoked only after [`StoreError::Unknown`].
    async fn revoke_consent(
        &self,
        scope: &Scope,
        number: u64,
        revocation: Revocation,
    ) -> Result<Option<ConsentRecord>, StoreError>;

    /// Removes consents that a caller sees: those that were over before a time, or without one all;
    /// says how many. `dry_run` removes nothing.
    ///
    /// # Errors
    /// [`StoreError`]; they may then be removed only after [`StoreError::Unknown`].
    async fn remove_consents(
        &self,
        scope: &Scope,
        over_before: Option<Timestamp>,
        dry_run: bool,
    ) -> Result<u64, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, session: Option<&str>, approved: bool) -> ConsentRecord {
        let subject = ConsentSubject {
            tenant: "t".into(),
            owner_user_id: "o".into(),
            parent_app_name: None,
            policy: "/p".into(),
            agent_name: "a".into(),
            function: "t/f".into(),
        };
        let consent = LastingConsent {
            subject,
            session: session.map(str::to_owned),
            approved,
            digest: "one".into(),
            by: "p".into(),
            at: Timestamp(10),
            until: Some(Timestamp(100)),
        };
        ConsentRecord { number, consent, replaces: None, revocation: None }
    }

    fn revoked(record: ConsentRecord) -> ConsentRecord {
        let revocation = Some(Revocation { at: Timestamp(50), by: "q".into() });
        ConsentRecord { revocation, ..record }
    }

    #[test]
    fn c_033_a_refusal_counts_before_an_approval_and_the_session_before_all_of_them() {
        let number = |records: &[ConsentRecord], digest: &str, now| {
            in_force(records, digest, Timestamp(now)).map(|record| record.number)
        };
        let (yes, no) = (record(1, None, true), record(2, None, false));
        let (here, not_here) = (record(3, Some("s"), true), record(4, Some("s"), false));
        assert_eq!(number(&[], "one", 20), None);
        assert_eq!(number(&[yes.clone(), here.clone()], "one", 20), Some(3));
        assert_eq!(number(&[no.clone(), here.clone()], "one", 20), Some(2));
        assert_eq!(number(&[yes.clone(), not_here], "one", 20), Some(4));
        // An approval is for the code that was shown, and a refusal for the function.
        assert_eq!(number(&[yes.clone(), here], "two", 20), None);
        assert_eq!(number(&[no], "two", 20), Some(2));
        assert_eq!(number(std::slice::from_ref(&yes), "one", 99), Some(1));
        assert_eq!(number(std::slice::from_ref(&yes), "one", 100), None, "it is over");
        assert_eq!(number(&[revoked(yes)], "one", 60), None);
    }

    #[test]
    fn c_033_a_consent_is_over_by_its_revocation_or_its_time_whichever_comes_first() {
        let yes = record(1, None, true);
        assert_eq!(yes.over_at(), Some(Timestamp(100)));
        assert_eq!(revoked(yes.clone()).over_at(), Some(Timestamp(50)));
        let consent = LastingConsent { until: None, ..yes.consent.clone() };
        assert_eq!(ConsentRecord { consent, ..yes }.over_at(), None);
    }

    #[test]
    fn c_033_who_sees_one_session_sees_what_is_bound_to_it_and_nothing_else() {
        let (all, bound) = (record(1, None, true).consent, record(2, Some("s"), true).consent);
        let tenant = Scope::tenant("t");
        for (scope, sees_all, sees_bound) in [
            (tenant.clone(), true, true),
            (Scope::tenant("u"), false, false),
            (tenant.clone().owner("o"), true, true),
            (tenant.clone().owner("x"), false, false),
            (tenant.clone().session("s"), false, true),
            (tenant.clone().session("r"), false, false),
            (Scope { parent_app_name: Some("app".into()), ..tenant }, false, false),
        ] {
            let seen = (all.is_within(&scope), bound.is_within(&scope));
            assert_eq!(seen, (sees_all, sees_bound), "{scope:?}");
        }
    }
}
