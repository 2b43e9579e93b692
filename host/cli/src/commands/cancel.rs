//! `taskrun cancel`.

use taskrun::controller::CancelOutcome;

use super::changes::{Change, print};
use crate::args::CancelArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::follow::supervisor_at_hand;
use crate::resolve::resolve_all;

pub(super) async fn cancel(context: &Context, args: &CancelArgs) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let client = context.client(&controller);
    let mut answers = Vec::new();
    for run in resolve_all(&client, &args.runs).await? {
        let (id, reason) = (run.id().as_str(), args.reason.as_deref());
        answers.push(match args.keep_children {
            true => client.cancel_alone(id, reason).await?,
            false => client.cancel(id, reason).await?,
        });
    }
    let changes = answers.iter().map(|answer| {
        let CancelOutcome { run, changed, descendants } = answer;
        Change { run, changed: *changed, descendants }
    });
    print(context, changes);
    let mut supervisor = supervisor_at_hand(context, &controller, &storage);
    for answer in answers.iter().filter(|answer| answer.changed) {
        // Whoever waited for it can go on, and its finalizer wants to be heard.
        supervisor.find_host(&answer.run).await?;
        // The entries of a batch end with it, and somebody has to write that down.
        if let Some(entry) = answer.run.spec.entries.first() {
            supervisor.attend(entry).await?;
        }
    }
    Ok(Exit::Completed)
}
