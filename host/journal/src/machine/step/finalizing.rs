//! Transitions of a run whose outcome is fixed.

use super::{MachineState, Meaning, held_by, moved_to, wanted_again};
use crate::ending::Ending;
use crate::event::{Event, EventRecord};
use crate::hold::Hold;
use crate::run::{Execution, Lifecycle};

pub(super) fn from_finalizing(
    (execution, ending, finalizer_began): (Option<Execution>, Ending, bool),
    hold: Hold,
    meaning: &Meaning<'_>,
    recorded: &EventRecord,
) -> Option<MachineState> {
    let held = hold.host().is_some();
    match meaning {
        Meaning::Finished => {
            let finished_at = recorded.at;
            Some((Lifecycle::Ended { execution, ending, finished_at }, Hold::Nobody))
        }
        Meaning::FinalizerStarted if held && !finalizer_began => {
            Some((Lifecycle::Finalizing { execution, ending, finalizer_began: true }, hold))
        }
        Meaning::Work if held && finalizer_began && is_of_finalizer(&recorded.event) => {
            Some((Lifecycle::Finalizing { execution, ending, finalizer_began }, hold))
        }
        Meaning::Lost { not_before } if held => {
            let hold = wanted_again(*not_before);
            Some((Lifecycle::Finalizing { execution, ending, finalizer_began }, hold))
        }
        Meaning::Resumed { host } if !held => {
            let execution = execution.map(|execution| moved_to(execution, host));
            Some((Lifecycle::Finalizing { execution, ending, finalizer_began }, held_by(host)))
        }
        Meaning::FinalizerStarted
        | Meaning::Lost { .. }
        | Meaning::Resumed { .. }
        | Meaning::Work
        | Meaning::Effect
        | Meaning::Queued
        | Meaning::Started { .. }
        | Meaning::Blocked { .. }
        | Meaning::Answered
        | Meaning::PauseRequested { .. }
        | Meaning::PauseEnded
        | Meaning::Injected
        | Meaning::Adopted
        | Meaning::CancelRequested { .. }
        | Meaning::Finalizing { .. } => None,
    }
}

/// True for what is on record of a finalizer: the tokens that it used, its refusals and its lines.
/// None of it changes the outcome.
fn is_of_finalizer(event: &Event) -> bool {
    matches!(
        event,
        Event::Usage { .. } | Event::PolicyDecision { decided: None, .. } | Event::Log { .. }
    )
}
