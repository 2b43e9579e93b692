//! The checks of what is kept for runs.

use std::path::{Path, PathBuf};

use serde::Serialize;
use taskrun_journal::ids::RunId;
use taskrun_journal::status::Status;
use taskrun_runtime::{
    CLOSURE_UNUSABLE, KeptComponents, KeptError, NeedFault, Storage, UNMET_RUNS_MAX, UnmetNeeds,
    UnmetRun, check_components, unmet_needs,
};

use super::{Check, Health};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::escape::escaped_line;
use crate::output::human;
use crate::paths::shown;

/// The needs of open runs that are not met, as the JSON output shows them.
#[derive(Serialize)]
pub(super) struct UnmetView {
    runs: Vec<UnmetRunView>,
    more_runs: u64,
    /// The first of the pins that have a fault, and of which no run can be seen from here.
    pins_of_others: Vec<UnmetPinView>,
    more_pins_of_others: u64,
}

#[derive(Serialize)]
struct UnmetRunView {
    run_id: RunId,
    agent_name: String,
    status: Status,
    pins: Vec<UnmetPinView>,
}

#[derive(Clone, Serialize)]
struct UnmetPinView {
    pin: String,
    faults: Vec<FaultView>,
}

#[derive(Clone, Serialize)]
struct FaultView {
    kind: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
}

impl From<&NeedFault> for FaultView {
    fn from(fault: &NeedFault) -> Self {
        let (kind, path) = match fault {
            NeedFault::Policy(_) => ("policy", None),
            NeedFault::Unusable(_) => (CLOSURE_UNUSABLE, None),
            NeedFault::Missing(path) => ("missing", Some(path.clone())),
            NeedFault::Damaged(path) => ("damaged", Some(path.clone())),
        };
        Self { kind, detail: fault.to_string(), path }
    }
}

impl From<&UnmetNeeds> for UnmetView {
    fn from(unmet: &UnmetNeeds) -> Self {
        let faults = |pin: &String| unmet.pins.get(pin).into_iter().flatten();
        let pin = |pin: &String| UnmetPinView {
            pin: pin.clone(),
            faults: faults(pin).map(FaultView::from).collect(),
        };
        let run = |run: &UnmetRun| UnmetRunView {
            run_id: run.id.clone(),
            agent_name: run.agent.clone(),
            status: run.status,
            pins: run.pins.iter().map(pin).collect(),
        };
        let others = unmet.of_others.len().saturating_sub(UNMET_RUNS_MAX);
        Self {
            runs: unmet.runs.iter().map(run).collect(),
            more_runs: unmet.more,
            pins_of_others: unmet.of_others.iter().take(UNMET_RUNS_MAX).map(pin).collect(),
            more_pins_of_others: others as u64,
        }
    }
}

/// The components that are kept for runs; and if `all` is to be checked, those of them that are
/// damaged, and the open runs that need what is damaged or missing.
pub(super) async fn checks(
    context: &Context,
    dir: &Path,
    storage: &Storage,
    all: bool,
) -> Vec<Check> {
    let folder = dir.to_owned();
    let looked = tokio::task::spawn_blocking(move || check_components(&folder, all)).await;
    let kept = match looked.expect("a look does not panic") {
        Ok(kept) => kept,
        Err(error) => {
            let failure = Failure::unexpected("what is kept for runs cannot be read");
            return vec![Check::failed("components", &failure.because(&error))];
        }
    };
    let mut checks = vec![components(&kept)];
    if all {
        let scope = context.principal().scope;
        checks.push(match unmet_needs(storage, &scope, &kept.damaged).await {
            Ok(unmet) => needs(&unmet),
            Err(KeptError::Store(error)) => {
                Check::failed("open runs", &Box::<Failure>::from(error))
            }
            Err(error @ (KeptError::Blobs(_) | KeptError::Panicked)) => {
                let failure = Failure::unexpected("what open runs need is not known");
                Check::failed("open runs", &failure.because(&error))
            }
        });
    }
    checks
}

fn components(kept: &KeptComponents) -> Check {
    let KeptComponents { count, bytes, damaged, unreadable, unwritable } = kept;
    let count = human::count(*count, "component");
    let detail =
        format!("{count} kept for the runs that were accepted with them, {}", human::bytes(*bytes));
    let damaged = damaged.iter().map(|path| format!("damaged: {}", shown(path)));
    let unreadable = unreadable.iter().map(|path| format!("cannot be read: {}", shown(path)));
    let unwritable =
        unwritable.iter().map(|why| format!("no more can be kept: {}", escaped_line(why)));
    let lines: Vec<_> =
        std::iter::once(detail).chain(damaged).chain(unreadable).chain(unwritable).collect();
    let (detail, hint) = (lines.join("\n"), kept_hint(kept));
    match hint {
        Some(hint) => Check::new("components", Health::Bad, detail).hint(hint),
        None => Check::new("components", Health::Good, detail),
    }
}

/// The remedy for the worst that there is of what is kept; `None` if nothing is bad.
fn kept_hint(kept: &KeptComponents) -> Option<&'static str> {
    let KeptComponents { count: _, bytes: _, damaged, unreadable, unwritable } = kept;
    if unwritable.is_some() {
        Some("make room there, or make it writable for whoever runs this: no run is accepted")
    } else if !damaged.is_empty() {
        Some(
            "runs that need one wait; remove it, and a run that is started with the same component \
             keeps it anew",
        )
    } else if !unreadable.is_empty() {
        Some(
            "runs that need one wait; give it to whoever runs this (`chown`), or remove it, and a run \
             that is started with the same policy keeps it anew",
        )
    } else {
        None
    }
}

fn needs(unmet: &UnmetNeeds) -> Check {
    if unmet.pins.is_empty() {
        let detail = "the policies and components that open runs need are kept";
        return Check::new("open runs", Health::Good, detail);
    }
    let view = UnmetView::from(unmet);
    let mut lines = Vec::new();
    let count = view.runs.len() as u64 + view.more_runs;
    if count > 0 {
        let need = if count == 1 { "needs" } else { "need" };
        let runs = human::count(count, "open run");
        lines.push(format!("{runs} {need} what is damaged or missing, and cannot go on"));
    }
    for run in &view.runs {
        let which = format!("{} ({}, {})", run.run_id, run.agent_name, run.status.as_str());
        lines.extend(run.pins.iter().flat_map(|pin| &pin.faults).map(|fault| line(&which, fault)));
    }
    lines.extend(more(view.more_runs));
    for pin in &view.pins_of_others {
        let which = format!("runs that are not shown here, of {}", pin.pin);
        lines.extend(pin.faults.iter().map(|fault| line(&which, fault)));
    }
    lines.extend(more(view.more_pins_of_others));
    let mut check = Check::new("open runs", Health::Bad, lines.join("\n")).hint(
        "a host makes a component whole if its policy names a file with the same bytes, so put that \
         back; `taskrun cancel RUN` gives a run up",
    );
    check.unmet = Some(view);
    check
}

fn line(which: &str, fault: &FaultView) -> String {
    let what = fault.path.as_ref().map(|path| format!("{} is {}", shown(path), fault.kind));
    let what = what.as_ref().unwrap_or(&fault.detail);
    format!("{}: {}", escaped_line(which), escaped_line(what))
}

fn more(count: u64) -> Option<String> {
    (count > 0).then(|| format!("and {count} more"))
}
