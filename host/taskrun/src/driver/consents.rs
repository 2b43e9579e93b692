//! Lasting consents to tool calls, as the driver of a run looks them up.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use taskrun_journal::consent::{ConsentSubject, Consents, in_force, session_of};
use taskrun_journal::plan::ToolRequest;
use taskrun_journal::run::Run;

use super::parts::Parts;
use super::patience::Patience;
use super::queue::Queue;
use super::stop::Halt;
use crate::agents::AgentTool;
use crate::gate::consent::PriorConsent;

/// The lasting consents as the driver of a run sees them.
pub(crate) struct PatientConsents {
    pub(crate) inner: Arc<dyn Consents>,
    pub(crate) patience: Patience,
}

/// Looks for a lasting consent to each call that a rule asks about and of which nothing is on
/// record, or another one than that by which it was let through. No other call costs a look, and
/// each turn looks anew, so that a revocation reaches all calls that have not begun.
///
/// # Errors
/// [`Halt::Read`] while they cannot be read: whoever takes the run up reads them, and nobody is
/// asked about a call that is approved.
pub(super) async fn look_up(
    parts: &Parts,
    run: &Run,
    requests: &[ToolRequest],
    priors: &mut [PriorConsent],
) -> Result<(), Halt> {
    let Some(consents) = &parts.env.consents else { return Ok(()) };
    let mut known: BTreeMap<&str, Option<PriorConsent>> = BTreeMap::new();
    for (request, prior) in requests.iter().zip(priors) {
        let number = prior.lasting();
        if number.is_none() && !matches!(prior, PriorConsent::Nothing) {
            continue;
        }
        let Some(tool) = asked_about(parts, &request.name) else {
            *prior = PriorConsent::Nothing;
            continue;
        };
        let found = match known.entry(&request.name) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(new) => new.insert(lasting(parts, consents, run, tool).await?),
        };
        // That it was let through by this one is on record.
        if !number.is_some_and(|number| approves(found.as_ref(), number)) {
            *prior = found.clone().unwrap_or(PriorConsent::Nothing);
        }
    }
    Ok(())
}

/// Takes those calls out of a queue that are next to begin beside so many and whose lasting consent
/// holds no more: they stay open, and pass the gate anew before they begin. Each function is looked
/// up once, and calls that begin by no such consent cost no look.
pub(super) async fn hold_back((parts, run): (&Parts, &Run), queue: &mut Queue<'_>, running: usize) {
    let Some(consents) = &parts.env.consents else { return };
    let mut known: BTreeSet<String> = BTreeSet::new();
    while let Some(name) = queue.next_by_consent(running, &known) {
        let found = match asked_about(parts, &name) {
            // What cannot be read now is looked up where the run goes on.
            Some(tool) => lasting(parts, consents, run, tool).await.unwrap_or_default(),
            None => None,
        };
        queue.leave_open(&name, |number| !approves(found.as_ref(), number));
        known.insert(name);
    }
}

/// True if a consent that was found is the approval of this number.
fn approves(found: Option<&PriorConsent>, wanted: u64) -> bool {
    matches!(found, Some(PriorConsent::Lasting { number, approved: true, .. }) if *number == wanted)
}

/// The function of this name, if a rule asks about its calls.
fn asked_about<'a>(parts: &'a Parts, name: &str) -> Option<&'a AgentTool> {
    let tool = parts.code.tools.get(name).filter(|tool| !tool.is_own)?;
    parts.agent.ask.about(&tool.spec).map(|_| tool)
}

/// The lasting consent to a call of a function about which a rule asks.
async fn lasting(
    parts: &Parts,
    consents: &PatientConsents,
    run: &Run,
    tool: &AgentTool,
) -> Result<Option<PriorConsent>, Halt> {
    let subject = ConsentSubject::of(&run.spec, parts.policy(), &tool.spec.name);
    let session = session_of(&run.spec);
    let ask = || consents.inner.consents_about(&subject, session);
    let records = match consents.patience.ask_store(ask).await {
        Ok(records) => records,
        // They are there for the next host.
        Err(error) if error.is_passing() || consents.patience.live.is_given_back() => {
            return Err(Halt::Read(error));
        }
        // A person decides about what nobody can read.
        Err(error) => {
            let tool = &tool.spec.name;
            tracing::warn!(run = %run.id(), tool, %error, "consents cannot be read");
            return Ok(None);
        }
    };
    let found = in_force(&records, tool.tool.digest(), parts.env.clock.now());
    Ok(found.map(|found| PriorConsent::Lasting {
        number: found.number,
        approved: found.consent.approved,
        by: found.consent.by.clone(),
    }))
}
