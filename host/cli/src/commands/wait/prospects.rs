//! The prospects of runs that are waited for.

use std::collections::BTreeMap;

use taskrun::controller::Client;
use taskrun_journal::hold::Hold;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_runtime::{Storage, awaited_runs, hindrance_of};

use crate::context::Context;
use crate::failure::Outcome;
use crate::follow::{Attendance, Lack, Outlook, due_later};

/// Says so of runs that do not go on before the policy is another one, and of those that these wait
/// for. Of one that could go on at once the supervisor says it.
///
/// # Errors
/// Those of the store.
pub(super) async fn tell_stranded(
    context: &Context,
    (client, storage): (&Client, &Storage),
    runs: &[Run],
) -> Outcome<()> {
    let (printer, now) = (&context.printer, context.now());
    let mut waiting = Vec::new();
    for run in runs {
        waiting.extend(awaited_runs(client, run).await?);
    }
    waiting.retain(|run| due_later(run, now).is_some() || run.state.hold == Hold::Beat);
    if waiting.is_empty() {
        return Ok(());
    }
    let attendance = Attendance::look(context, storage).await?;
    for run in &waiting {
        let lack = attendance.lack(run, now).filter(|lack| match lack {
            Lack::Heartbeat | Lack::Load(_) => true,
            Lack::Agent(_) => due_later(run, now).is_some(),
            Lack::Host(_) => false,
        });
        if let Some(lack) = lack {
            printer.talk(attendance.text(run, &lack, now, printer));
        }
    }
    Ok(())
}

/// The prospects of open runs for which the time was too short, where it is not that they go on.
///
/// # Errors
/// Those of the store.
pub(super) async fn outlooks(
    context: &Context,
    (client, storage): (&Client, &Storage),
    runs: &[Run],
) -> Outcome<BTreeMap<RunId, Outlook>> {
    let attendance = Attendance::look(context, storage).await?;
    let mut outlooks = BTreeMap::new();
    for run in runs.iter().filter(|run| !run.status().is_terminal()) {
        let find = |one: &Run| attendance.outlook(run.id(), one, context.now());
        let outlook = hindrance_of(client, run, find).await?;
        outlooks.extend(outlook.map(|outlook| (run.id().clone(), outlook)));
    }
    Ok(outlooks)
}
