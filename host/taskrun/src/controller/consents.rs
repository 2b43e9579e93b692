//! Consents to tool calls that hold in more than one run: given, listed, revoked and removed.
//!
//! They are given at the door of the controller alone. The components of runs reach no part of it
//! that gives one.

use std::time::Duration;

use taskrun_journal::consent::{
    CONSENT_TIME_MAX, CONSENTS_MAX, ConsentOutcome, ConsentRecord, ConsentSubject, LastingConsent,
    Revocation, in_force, session_of,
};
use taskrun_journal::question::{Answer, AwaitItem, CONFIRM, Item};
use taskrun_journal::run::Run;
use taskrun_journal::time::Timestamp;

use super::Client;
use crate::error::ControllerError;

/// Most consents on a page.
pub const CONSENTS_PAGE_MAX: usize = 200;

/// The runs in which a consent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsentExtent {
    /// Those of the session of the run that asked.
    Session,
    /// All of its agent and its owner.
    Always,
}

/// An answer to a question for consent that holds beyond its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsentRequest {
    /// True if calls of the function may begin, and false if they are refused.
    pub approved: bool,
    /// The runs in which it holds.
    pub extent: ConsentExtent,
    /// The time after which it is over by itself, at most [`CONSENT_TIME_MAX`]; `None` if never.
    pub expires: Option<Duration>,
}

/// The effect of such an answer.
#[derive(Debug)]
pub struct ConsentAnswer {
    /// The run, which has the answer and goes on with it.
    pub run: Run,
    /// The consent as it is kept for other runs, or why it is not: then they ask again. After
    /// [`StoreError::Unknown`](taskrun_journal::store::StoreError::Unknown) it may be kept all the
    /// same, which [`Client::consents`] shows.
    pub kept: Result<ConsentRecord, ControllerError>,
}

impl Client {
    /// Answers a question for consent to a tool call, for further runs too. The run is given the
    /// answer first, as one for all its calls of the function; a process that dies before the
    /// consent is kept leaves other runs to ask.
    ///
    /// An approval holds for the code that was to be called and for no other; a refusal for the
    /// function, whatever its code. Both hold for the agent of the run in its policy file, its owner
    /// and its application.
    ///
    /// # Errors
    /// Those of [`Client::answer_shown`]; [`ControllerError::Invalid`] if the question is none for
    /// consent to a call, the run belongs to no session or the time is none;
    /// [`ControllerError::Forbidden`] if the caller sees only a part of the runs in which it would
    /// hold. The run has no answer then.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the run with the answer, and no consent kept for others, or one
    /// that nobody was told of.
    pub async fn consent(
        &self,
        id: &str,
        shown: &Item,
        request: ConsentRequest,
    ) -> Result<ConsentAnswer, ControllerError> {
        let run = self.get(id).await?;
        let consent = self.lasting(&run, shown, request)?;
        let answer = Answer::ConfirmedForRun(request.approved);
        let run = self.answer_shown(id, shown, answer).await?;
        Ok(ConsentAnswer { run, kept: self.keep_consent(consent).await })
    }

    /// The consents that the caller sees, those that are over included, after a number, in the
    /// order of their numbers; at most `limit` and [`CONSENTS_PAGE_MAX`]. A caller who sees one
    /// session sees those that are bound to it.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn consents(
        &self,
        after: u64,
        limit: usize,
    ) -> Result<Vec<ConsentRecord>, ControllerError> {
        let limit = limit.clamp(1, CONSENTS_PAGE_MAX);
        Ok(self.controller.0.parts.consents.consents(self.scope(), after, limit).await?)
    }

    /// The consent that decides about these calls in a session, or in no session, where their code
    /// has this digest; `None` if a rule that asks has a person asked, or the caller does not see
    /// all such runs.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn consent_about(
        &self,
        subject: &ConsentSubject,
        session: Option<&str>,
        digest: &str,
    ) -> Result<Option<ConsentRecord>, ControllerError> {
        let parts = &self.controller.0.parts;
        if !subject.is_within(self.scope(), session) {
            return Ok(None);
        }
        let records = parts.consents.consents_about(subject, session).await?;
        Ok(in_force(&records, digest, parts.clock.now()).cloned())
    }

    /// Revokes a consent that the caller sees: calls that have not begun ask again, but those of
    /// the run whose question it answered. One that was revoked stays as it is. `None` if the caller
    /// sees none of that number.
    ///
    /// # Errors
    /// [`ControllerError::Invalid`] for a caller without a name, [`ControllerError::Storage`].
    pub async fn revoke_consent(
        &self,
        number: u64,
    ) -> Result<Option<ConsentRecord>, ControllerError> {
        let parts = &self.controller.0.parts;
        let by = self.principal.name.clone();
        if by.trim().is_empty() {
            return Err(invalid("by", "a revocation has somebody who made it".to_owned()));
        }
        let revocation = Revocation { at: parts.clock.now(), by };
        Ok(parts.consents.revoke_consent(self.scope(), number, revocation).await?)
    }

    /// Removes consents that the caller sees and that were over before a time, and says how many.
    /// `dry_run` removes nothing.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn remove_consents(
        &self,
        before: Timestamp,
        dry_run: bool,
    ) -> Result<u64, ControllerError> {
        let consents = &self.controller.0.parts.consents;
        Ok(consents.remove_consents(self.scope(), Some(before), dry_run).await?)
    }

    /// The consent that this answer to a question of a run is.
    fn lasting(
        &self,
        run: &Run,
        shown: &Item,
        request: ConsentRequest,
    ) -> Result<LastingConsent, ControllerError> {
        let AwaitItem::Confirmation {
            id,
            tool_name,
            digest: Some(digest),
            policy: Some(policy),
            ..
        } = &shown.what
        else {
            let reason = "this can be answered for its run at most".to_owned();
            return Err(invalid("item", reason));
        };
        if !id.starts_with(CONFIRM) {
            return Err(invalid("item", "this can be confirmed once, and no more".to_owned()));
        }
        if request.expires.is_some_and(|time| time.is_zero() || time > CONSENT_TIME_MAX) {
            let days = CONSENT_TIME_MAX.as_secs() / (24 * 60 * 60);
            return Err(invalid("expires", format!("a consent is given for at most {days} days")));
        }
        let (spec, scope) = (&*run.spec, self.scope());
        let session = match request.extent {
            ConsentExtent::Always => None,
            ConsentExtent::Session => Some(session_of(spec).ok_or_else(|| {
                invalid("session", format!("run {} belongs to no session", spec.id))
            })?),
        };
        let at = self.controller.0.parts.clock.now();
        let consent = LastingConsent {
            subject: ConsentSubject::of(spec, policy, tool_name),
            session: session.map(str::to_owned),
            approved: request.approved,
            digest: digest.clone(),
            by: self.principal.name.clone(),
            at,
            until: request.expires.map(|time| at.plus(time)),
        };
        match consent.is_within(scope) {
            true => Ok(consent),
            false => {
                let reason =
                    "a consent for more runs than the caller sees is given by somebody who \
                              sees them"
                        .to_owned();
                Err(ControllerError::Forbidden { reason })
            }
        }
    }

    async fn keep_consent(
        &self,
        consent: LastingConsent,
    ) -> Result<ConsentRecord, ControllerError> {
        match self.controller.0.parts.consents.keep_consent(consent).await? {
            ConsentOutcome::Kept(record) => Ok(*record),
            ConsentOutcome::Full => {
                Err(ControllerError::Limit { kind: "consents", cap: CONSENTS_MAX as u64 })
            }
        }
    }
}

fn invalid(field: &'static str, reason: String) -> ControllerError {
    ControllerError::Invalid { field, reason }
}
