//! `taskrun export`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;
use taskrun::controller::Controller;
use taskrun_journal::ids::RunId;
use taskrun_journal::run::Run;
use taskrun_runtime::{ExportError, ExportOptions, ExportSummary, Storage, export_run};

use crate::args::{ExportArgs, OutputFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, store_failure};
use crate::output::{human, versioned};
use crate::resolve::resolve;
use crate::shell;

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
    let id = run.id().as_str();
    let file = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{id}.taskrun")));
    check_free(&file)?;
    let summary = write(context, &storage, &run, &file).await?;
    let printer = &context.printer;
    let shown = file.display().to_string();
    let object = || {
        let (events, bytes) = (summary.events, summary.bytes);
        versioned(Exported { run_id: id, file: shown.clone(), events, bytes })
    };
    match printer.format() {
        OutputFormat::Table => printer.line(text(&file, &summary)),
        OutputFormat::Json => printer.json(&object()),
        OutputFormat::Ndjson => printer.json_line(&object()),
        OutputFormat::Name => printer.line(&shown),
    }
    tell_missing(context, &summary);
    Ok(Exit::Completed)
}

/// Refuses the file that a run is to be written into if it is there, or its folder is not.
pub(super) fn check_free(file: &Path) -> Outcome<()> {
    if std::fs::symlink_metadata(file).is_ok() {
        return Err(export_failure(&ExportError::Exists { path: file.to_owned() }));
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let about = std::fs::metadata(folder.unwrap_or(Path::new(".")));
    let source = match about {
        Ok(about) if about.is_dir() => return Ok(()),
        Ok(_) => ErrorKind::NotADirectory.into(),
        Err(source) => source,
    };
    Err(export_failure(&ExportError::Io { path: file.to_owned(), source }))
}

/// Writes a run into a file that was followed to this outcome, if it has ended.
pub(super) async fn record(
    context: &Context,
    (storage, controller): (&Storage, &Controller),
    id: &RunId,
    file: &Path,
    outcome: Outcome,
) -> Outcome {
    let run = context.client(controller).get(id.as_str()).await?;
    if !run.status().is_terminal() {
        let into = shell::path(file, "FILE");
        let text = format!(
            "{id} has not ended; `taskrun export {id} {into}` writes it into the file when it has"
        );
        context.printer.advise(&text);
        return outcome;
    }
    match write(context, storage, &run, file).await {
        Ok(summary) => {
            context.printer.talk(text(file, &summary));
            tell_missing(context, &summary);
            outcome
        }
        // How the run ended is told first.
        Err(failure) => outcome.and(Err(failure)),
    }
}

fn text(file: &Path, summary: &ExportSummary) -> String {
    let (events, bytes) = (summary.events, human::bytes(summary.bytes));
    format!("{}: {events} events, {bytes}", file.display())
}

fn tell_missing(context: &Context, summary: &ExportSummary) {
    for (pin, why) in &summary.missing {
        let line = format!("steps under {pin} cannot be executed again: {why}");
        context.printer.talk(line);
    }
}

async fn write(
    context: &Context,
    storage: &Storage,
    run: &Run,
    file: &Path,
) -> Outcome<ExportSummary> {
    // Without a policy, or with one that has a mistake, there is still what is kept.
    let policy = match context.policy_file()? {
        Some(_) => context.policy().ok(),
        None => None,
    };
    let options = ExportOptions {
        policy,
        data_dir: storage.data_dir().map(Path::to_owned),
        program: context.program.version.to_owned(),
        format: context.program.format,
    };
    let exported = export_run(&*storage.store, run, options, file).await;
    exported.map_err(|error| export_failure(&error))
}

/// An export that is not written, or not read.
pub(super) fn export_failure(error: &ExportError) -> Box<Failure> {
    let usage = |code| Failure::usage(code, error.to_string());
    match error {
        ExportError::Store(error) => store_failure(error),
        ExportError::Io { source, .. } => {
            let message = format!("{error} cannot be read or written");
            Failure::usage("export-file", message)
                .because(source)
                .hint("make its folder, or name a file in another one")
        }
        ExportError::Exists { .. } => {
            usage("export-file").hint("name another file, or remove that one")
        }
        ExportError::Form { .. } | ExportError::Format { .. } => {
            usage("export-later").hint("read it with a later version of taskrun")
        }
        ExportError::Malformed { .. } => usage("export-damaged")
            .hint("export the run again: the file is cut off or damaged, or is no export"),
        ExportError::TooLarge { .. } => usage("export-too-large").hint(
            "look at a run of that size with `taskrun events RUN` and `taskrun transcript RUN`",
        ),
        ExportError::Panicked => Failure::unexpected(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_is_not_written_or_read_says_what_to_do_instead() {
        let path = || PathBuf::from("run.taskrun");
        let what = "events";
        for error in [
            ExportError::Io { path: path(), source: ErrorKind::NotFound.into() },
            ExportError::Exists { path: path() },
            ExportError::Form { path: path(), found: 9 },
            ExportError::Format { path: path(), found: 9, known: 1 },
            ExportError::Malformed { path: path(), detail: "it is empty".to_owned() },
            ExportError::TooLarge { path: path(), what, limit: 1 },
        ] {
            assert!(export_failure(&error).hint.is_some(), "{error}");
        }
    }
}
