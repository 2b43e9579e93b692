//! Terminals of sessions, as subscribers: what they are told waits until one is open.

use std::collections::BTreeSet;

use taskrun_journal::dispatch::{AttemptOutcome, TAKEN_FOR};
use taskrun_journal::list::PAGE_MAX;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::DispatchClaim;
use taskrun_policy::TERMINAL;

use super::{Client, Controller};
use crate::error::ControllerError;
use crate::ports::transport::News;
use crate::spawn::digest_of_parts;

/// Hexadecimal digits by which a terminal is told from others, 128 bits: the names of sessions are
/// chosen by those who ask.
const TERMINAL_DIGITS: usize = 32;

impl Client {
    /// News for the terminal of a session of an owner: what runs of it have for [`TERMINAL`] among
    /// their subscribers and channels, at most [`PAGE_MAX`], in the order in which it was made. It is
    /// there again, for this terminal or another one, until [`Self::was_shown`] says that it was shown.
    ///
    /// # Errors
    /// [`ControllerError::Storage`]; [`ControllerError::Forbidden`] outside the scope.
    pub async fn news_for_terminal(
        &self,
        owner_user_id: &str,
        session: &str,
    ) -> Result<Vec<TerminalNews>, ControllerError> {
        let scope = self.scope();
        let is_own =
            |own: &Option<String>, given: &str| own.as_deref().is_none_or(|own| own == given);
        if !is_own(&scope.owner_user_id, owner_user_id)
            || !is_own(&scope.parent_session_id, session)
        {
            let reason = "terminals may be opened for the caller's own sessions only".to_owned();
            return Err(ControllerError::Forbidden { reason });
        }
        let parts = &self.controller.0.parts;
        let now = parts.clock.now();
        let subscriber = terminal_of(&scope.tenant, owner_user_id, session);
        let names = BTreeSet::from([subscriber.clone()]);
        let next = parts.dispatches.next_dispatch(&names, now).await?;
        if next.is_none_or(|due| due > now) {
            return Ok(Vec::new());
        }
        let claim = DispatchClaim {
            host: self.controller.0.host.clone(),
            subscriber,
            now,
            until: now.plus(TAKEN_FOR),
            limit: PAGE_MAX,
        };
        let mut news = Vec::new();
        for dispatch in parts.dispatches.take_dispatches(claim).await? {
            // Otherwise its run was removed just now, and the dispatch with it.
            if let Some(one) = self.controller.news(&dispatch).await? {
                news.push(TerminalNews { number: dispatch.number, news: one });
            }
        }
        Ok(news)
    }

    /// Keeps that news was shown: no terminal is told of it again.
    ///
    /// # Errors
    /// [`ControllerError::Storage`].
    pub async fn was_shown(&self, shown: &TerminalNews) -> Result<(), ControllerError> {
        let (parts, host) = (&self.controller.0.parts, &self.controller.0.host);
        let outcome = AttemptOutcome::Delivered;
        parts.dispatches.settle_dispatch(shown.number, host, outcome).await?;
        Ok(())
    }
}

/// News for a terminal.
#[derive(Clone, Debug)]
pub struct TerminalNews {
    number: u64,
    /// The news.
    pub news: News,
}

impl Controller {
    /// Names the terminal of a run's session where its subscribers name [`TERMINAL`]. A run without a
    /// session has none.
    pub(super) fn name_terminal(spec: &mut RunSpec) {
        let session = spec.root_session_id.as_ref().unwrap_or(&spec.parent_session_id);
        if session.is_empty() {
            spec.subscriptions.retain(|one| one.subscriber != TERMINAL);
            return;
        }
        let name = terminal_of(&spec.tenant, &spec.owner_user_id, session);
        for one in spec.subscriptions.iter_mut().filter(|one| one.subscriber == TERMINAL) {
            one.subscriber.clone_from(&name);
        }
    }
}

/// The subscriber that is the terminal of a session.
fn terminal_of(tenant: &str, owner: &str, session: &str) -> String {
    let digest = digest_of_parts(&[TERMINAL, tenant, owner, session]);
    format!("{TERMINAL}/{}", &digest[..TERMINAL_DIGITS])
}
