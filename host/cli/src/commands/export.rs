//! `taskrun export`.

use std::path::{Path, PathBuf};

use serde::Serialize;
use taskrun_runtime::{ExportError, ExportOptions, export_run};

use crate::args::{ExportArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, store_failure};
use crate::output::{human, versioned};
use crate::resolve::resolve;

#[derive(Serialize)]
struct Exported<'a> {
    run_id: &'a str,
    file: String,
    events: u64,
    bytes: u64,
}

pub(super) async fn export(context: &Context, args: &ExportArgs) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let run = resolve(&context.client(&controller), &args.run).await?;
    // Without a policy, or with one that has a mistake, there is still what is kept.
    let policy = match context.policy_file()? {
        Some(_) => context.policy().ok(),
        None => None,
    };
    let id = run.id().as_str();
    let file = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{id}.taskrun")));
    let options = ExportOptions {
        policy,
        data_dir: storage.data_dir().map(Path::to_owned),
        program: context.program.version.to_owned(),
        format: context.program.format,
    };
    let exported = export_run(&*storage.store, &run, options, &file).await;
    let summary = exported.map_err(|error| export_failure(&error))?;
    let printer = &context.printer;
    let shown = file.display().to_string();
    let object = || {
        let (events, bytes) = (summary.events, summary.bytes);
        versioned(Exported { run_id: id, file: shown.clone(), events, bytes })
    };
    match printer.format() {
        OutputFormat::Table => printer.line(format!(
            "{shown}: {} events, {}",
            summary.events,
            human::bytes(summary.bytes)
        )),
        OutputFormat::Json => printer.json(&object()),
        OutputFormat::Ndjson => printer.json_line(&object()),
        OutputFormat::Name => printer.line(&shown),
    }
    for (pin, why) in &summary.missing {
        printer.talk(format!("steps under {pin} cannot be executed again: {why}"));
    }
    Ok(Exit::Completed)
}

/// An export that is not written, or not read.
pub(super) fn export_failure(error: &ExportError) -> Box<Failure> {
    let usage = |code| Failure::usage(code, error.to_string());
    match error {
        ExportError::Store(error) => store_failure(error),
        ExportError::Io { source, .. } => {
            Failure::usage("export-file", error.to_string()).because(source)
        }
        ExportError::Exists { .. } => {
            usage("export-file").hint("name another file, or remove that one")
        }
        ExportError::Form { .. } | ExportError::Format { .. } => usage("export-later"),
        ExportError::Malformed { .. } => usage("export-damaged"),
        ExportError::TooLarge { .. } => usage("export-too-large"),
        ExportError::Panicked => Failure::unexpected(error.to_string()),
    }
}
