//! `taskrun gc`.

use serde::Serialize;
use taskrun_journal::store::RemovalOutcome;
use taskrun_journal::time::{Timestamp, millis};

use crate::args::{GcArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output::{human, versioned};

/// The runs that were removed, as the JSON output shows them.
#[derive(Serialize)]
pub(super) struct RemovedView {
    runs: u64,
    events: u64,
    bytes: u64,
    /// Runs that are old enough and stay, as one under them is open.
    kept: u64,
}

impl From<RemovalOutcome> for RemovedView {
    fn from(removed: RemovalOutcome) -> Self {
        let RemovalOutcome { runs, events, bytes, kept } = removed;
        Self { runs, events, bytes, kept }
    }
}

#[derive(Serialize)]
struct Report {
    dry_run: bool,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    before: Timestamp,
    #[serde(flatten)]
    removed: RemovedView,
}

pub(super) async fn gc(context: &Context, args: &GcArgs) -> Outcome {
    let (_, controller) = context.looking().await?;
    let before = Timestamp(context.now().0.saturating_sub(millis(args.older_than)));
    let removed = context.client(&controller).gc(before, args.dry_run).await?;
    let printer = &context.printer;
    let report = || versioned(Report { dry_run: args.dry_run, before, removed: removed.into() });
    match printer.format() {
        OutputFormat::Table => {
            let did = if args.dry_run { "would remove" } else { "removed" };
            printer.line(format!("{did} {}", removed_text(&removed)));
        }
        OutputFormat::Json => printer.json(&report()),
        OutputFormat::Ndjson => printer.json_line(&report()),
        OutputFormat::Name => printer.line(removed.runs),
    }
    Ok(Exit::Completed)
}

/// `3 runs, 120 events, 12 KiB; kept 1 run: another one under it is open`.
pub(super) fn removed_text(removed: &RemovalOutcome) -> String {
    let mut text = format!(
        "{}, {}, {}",
        human::count(removed.runs, "run"),
        human::count(removed.events, "event"),
        human::bytes(removed.bytes)
    );
    match removed.kept {
        0 => {}
        1 => text.push_str("; kept 1 run, under which another one is open"),
        many => text.push_str(&format!("; kept {many} runs, under which others are open")),
    }
    text
}
