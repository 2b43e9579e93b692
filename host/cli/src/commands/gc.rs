//! `taskrun gc`.

use std::time::Duration;

use serde::Serialize;
use taskrun_journal::store::RemovalOutcome;
use taskrun_journal::time::{Timestamp, millis};
use taskrun_policy::COMPONENTS_KEPT_DEFAULT;
use taskrun_runtime::{CachedFiles, KeptRemoval, RemovedBlobs, RemovedKept, remove_kept};

use crate::args::{GcArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Outcome, kept_removal_failure};
use crate::output::{human, versioned};

/// Longest that room is given back to the file system.
const GIVE_BACK_MAX: Duration = Duration::from_secs(60);

/// The runs that were removed, as the JSON output shows them.
#[derive(Serialize)]
pub(super) struct RemovedView {
    runs: u64,
    events: u64,
    bytes: u64,
    /// Runs that are old enough and stay, as they are still needed.
    kept: u64,
}

impl From<RemovalOutcome> for RemovedView {
    fn from(removed: RemovalOutcome) -> Self {
        let RemovalOutcome { runs, events, bytes, kept, unused: _ } = removed;
        Self { runs, events, bytes, kept }
    }
}

/// Components, or policies, that were kept for runs, or native code, as the JSON output shows them.
#[derive(Serialize)]
struct RemovedKeptView {
    count: u64,
    bytes: u64,
}

impl From<RemovedBlobs> for RemovedKeptView {
    fn from(removed: RemovedBlobs) -> Self {
        let RemovedBlobs { count, bytes } = removed;
        Self { count, bytes }
    }
}

impl From<CachedFiles> for RemovedKeptView {
    fn from(removed: CachedFiles) -> Self {
        let CachedFiles { count, bytes } = removed;
        Self { count, bytes }
    }
}

#[derive(Serialize)]
struct Report {
    dry_run: bool,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    before: Timestamp,
    #[serde(flatten)]
    removed: RemovedView,
    components: RemovedKeptView,
    policies: RemovedKeptView,
    native: RemovedKeptView,
    /// Consents that were over.
    #[serde(skip_serializing_if = "Option::is_none")]
    consents: Option<u64>,
}

pub(super) async fn gc(context: &Context, args: &GcArgs) -> Outcome {
    let policy = match context.policy_file() {
        Ok(file) => file.map(|file| context.read_policy(&file)).transpose(),
        Err(failure) => Err(failure),
    };
    let policy = match policy {
        // The data directory is named, and the policy that is found here may be another one's.
        Err(_) if context.globals.data_dir.is_some() && context.globals.config.is_none() => None,
        policy => policy?,
    };
    let (storage, controller) = context.looking().await?;
    let now = context.now();
    let before = Timestamp(now.0.saturating_sub(millis(args.older_than)));
    let client = context.client(&controller);
    let removed = client.gc(before, args.dry_run).await?;
    let consents = client.remove_consents(before, args.dry_run).await?;
    let consents = Some(consents).filter(|count| *count > 0);
    let removal = KeptRemoval {
        older_than: args.components_older_than.unwrap_or_else(|| {
            policy.as_ref().map_or(COMPONENTS_KEPT_DEFAULT, |policy| policy.components_kept)
        }),
        now,
        policy: policy.as_ref(),
        dry_run: args.dry_run,
    };
    let kept = remove_kept(&storage, removal).await;
    let amounts = kept.as_ref().copied().unwrap_or_default();
    let printer = &context.printer;
    let report = || {
        versioned(Report {
            dry_run: args.dry_run,
            before,
            removed: removed.into(),
            components: amounts.components.into(),
            policies: amounts.policies.into(),
            native: amounts.native.into(),
            consents,
        })
    };
    match printer.format() {
        OutputFormat::Table => {
            let did = if args.dry_run { "would remove" } else { "removed" };
            printer.line(format!("{did} {}", removed_text(&removed)));
            printer.line(format!("{did} {}", kept_text(&amounts)));
            printer.line(format!("{did} {}", native_text(amounts.native)));
            if let Some(count) = consents {
                let consents = human::count(count, "consent");
                printer.line(format!("{did} {consents} that were over"));
            }
        }
        OutputFormat::Json => printer.json(&report()),
        OutputFormat::Ndjson => printer.json_line(&report()),
        OutputFormat::Name => printer.line(removed.runs),
    }
    kept.map_err(|error| kept_removal_failure(&error))?;
    if !args.dry_run {
        // It comes last, as it may take a while.
        match client.give_back_room(GIVE_BACK_MAX).await {
            Ok(0) => {}
            Ok(unused) => {
                let (bytes, again) = (human::bytes(unused), printer.command("taskrun gc"));
                printer.advise(&format!(
                    "{bytes} of the store's file are unused and not given back yet: `{again}` \
                     goes on"
                ));
            }
            // All that was to be removed is.
            Err(error) => {
                printer.advise(&format!("what is unused of the store's file stays in it: {error}"));
            }
        }
    }
    Ok(Exit::Completed)
}

/// `2 components, 1 policy, 3 MiB`.
fn kept_text(removed: &RemovedKept) -> String {
    let RemovedKept { components, policies, native: _ } = removed;
    let policies_text = match policies.count {
        1 => "1 policy".to_owned(),
        many => format!("{many} policies"),
    };
    format!(
        "{}, {policies_text}, {}",
        human::count(components.count, "component"),
        human::bytes(components.bytes + policies.bytes)
    )
}

/// `12 files of native code, 80 MiB`.
fn native_text(removed: CachedFiles) -> String {
    let files = human::count(removed.count, "file");
    format!("{files} of native code, {}", human::bytes(removed.bytes))
}

/// `3 runs, 120 events, 12 KiB; kept 1 run that is still needed`.
pub(super) fn removed_text(removed: &RemovalOutcome) -> String {
    let mut text = format!(
        "{}, {}, {}",
        human::count(removed.runs, "run"),
        human::count(removed.events, "event"),
        human::bytes(removed.bytes)
    );
    match removed.kept {
        0 => {}
        1 => text.push_str("; kept 1 run that is still needed"),
        many => text.push_str(&format!("; kept {many} runs that are still needed")),
    }
    text
}
