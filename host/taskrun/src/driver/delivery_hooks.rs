//! Asking the host's hooks before a run is told of outcomes, and telling them afterwards.

use std::sync::Arc;

use futures::future::join_all;
use taskrun_journal::run::Run;
use taskrun_journal::spec::RunSpec;
use taskrun_journal::store::ReportChange;
use taskrun_journal::time::Clock;

use super::parts::Parts;
use super::recorder::Recorder;
use super::reports::{ReportText, report, room_of};
use super::stop::Halt;
use super::time_up::TimeUp;
use crate::ports::delivery_hook::{DeliveryHookEntry, DeliveryVerdict, OutcomeDelivery, tell_all};

/// The name of a text that a hook gave.
const REWRITTEN: &str = "result";

/// The reports that the hooks let pass, in their words; the others become dead letters.
///
/// A host that dies here has changed nothing, or made dead letters of reports that would be blocked
/// the next time as well.
pub(super) async fn let_pass(
    parts: &Parts,
    recorder: &mut Recorder,
    reports: Vec<ReportText>,
) -> Result<Vec<ReportText>, Halt> {
    let hooks = parts.env.hooks.deliveries();
    if hooks.is_empty() || reports.is_empty() {
        return Ok(reports);
    }
    let spec = Arc::clone(&recorder.run().spec);
    let (clock, room) = (&*parts.env.machine, room_of(parts));
    let each = |one: ReportText| {
        let spec = &spec;
        async move {
            // Of this one nothing is told.
            if one.words.is_empty() {
                return Ok(one);
            }
            match words(hooks, clock, (spec, &one.run, room), one.words).await {
                Some(words) => Ok(ReportText { run: one.run, words }),
                None => Err(one.run),
            }
        }
    };
    let mut time_up = TimeUp::never(Arc::clone(&parts.env.clock));
    let asked = join_all(reports.into_iter().map(each));
    let asked = recorder.attend(&mut time_up, asked).await?;
    let mut passed = Vec::with_capacity(asked.len());
    for one in asked {
        match one {
            Ok(report) => passed.push(report),
            Err(run) => {
                let change = ReportChange::Block;
                parts.env.store.change_report(run.id(), change).await.map_err(Halt::Read)?;
                tracing::info!(run = %run.id(), to = %spec.id, "a hook blocked a delivery");
            }
        }
    }
    Ok(passed)
}

/// Tells the hooks that the run was told.
pub(super) async fn tell(
    parts: &Parts,
    recorder: &mut Recorder,
    told: &[ReportText],
) -> Result<(), Halt> {
    let hooks = parts.env.hooks.deliveries();
    if hooks.is_empty() {
        return Ok(());
    }
    let to = Arc::clone(&recorder.run().spec);
    let told = told.iter().filter(|one| !one.words.is_empty());
    let deliveries: Vec<OutcomeDelivery<'_>> = told
        .map(|ReportText { run, words }| OutcomeDelivery { to: &to, ended: run, words })
        .collect();
    let mut time_up = TimeUp::never(Arc::clone(&parts.env.clock));
    recorder.attend(&mut time_up, tell_all(hooks, &*parts.env.machine, &deliveries)).await
}

/// The words in which the hooks let one run be told of the end of another, where it has so much room;
/// `None` if one blocks it.
async fn words(
    hooks: &[DeliveryHookEntry],
    clock: &dyn Clock,
    (to, ended, room): (&RunSpec, &Run, usize),
    mut words: String,
) -> Option<String> {
    for hook in hooks {
        match hook.before(clock, &OutcomeDelivery { to, ended, words: &words }).await {
            DeliveryVerdict::Go => {}
            DeliveryVerdict::Rewrite { text } => words = report(ended, &[(REWRITTEN, &text)], room),
            DeliveryVerdict::Block => return None,
        }
    }
    Some(words)
}
