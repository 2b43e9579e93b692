//! `taskrun transcript`.

use std::time::Duration;

use taskrun::controller::{Transcript, TranscriptEntry};
use taskrun_journal::run::Run;

use super::events::follow;
use crate::args::{OutputFormat, TranscriptArgs, TranscriptFormat};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::escape::{escaped_line, excerpt, fenced, quoted};
use crate::output::paint::{BAD, BOLD, DIM, with};
use crate::output::{Printer, human, status_text, versioned};
use crate::resolve::resolve;
use crate::setback::Setback;

/// Bytes of a tool's result that are shown to people; the whole is in the JSON forms.
const RESULT_BYTES_MAX: usize = 1_000;
/// Characters of a tool call's arguments that are shown to people.
const ARGUMENTS_CHARS_MAX: usize = 120;

/// Characters of the word for an error.
const CODE_CHARS_MAX: usize = 64;

pub(super) async fn transcript(context: &Context, args: &TranscriptArgs) -> Outcome {
    let (storage, controller) = context.looking().await?;
    let client = context.client(&controller);
    let run = resolve(&client, &args.run).await?;
    let printer = &context.printer;
    let format = args.format.unwrap_or(match printer.format() {
        OutputFormat::Table | OutputFormat::Name => TranscriptFormat::Md,
        OutputFormat::Json => TranscriptFormat::Json,
        OutputFormat::Ndjson => TranscriptFormat::Ndjson,
    });
    if args.follow && format == TranscriptFormat::Json {
        return Err(Failure::usage("usage", "a run cannot be followed as one JSON document")
            .hint("use --format ndjson: one object for each line"));
    }
    let transcript =
        client.transcript(run.id().as_str(), args.before, usize::from(args.limit)).await?;
    match format {
        TranscriptFormat::Json => printer.json(&versioned(&transcript)),
        TranscriptFormat::Md => print_head(printer, &run, &transcript),
        TranscriptFormat::Ndjson => {}
    }
    if format != TranscriptFormat::Json {
        transcript.events.iter().for_each(|entry| print_entry(printer, format, entry));
    }
    if args.follow {
        // Entries are numbered by their positions in the journal.
        let seen = transcript.events.last().and_then(|entry| entry.id.parse().ok()).unwrap_or(0);
        return follow(context, (controller, storage), &run, seen, |recorded| {
            for entry in TranscriptEntry::of(&run, recorded) {
                print_entry(printer, format, &entry);
            }
        })
        .await;
    }
    if format == TranscriptFormat::Md
        && let Some(error) = run.ending().and_then(|ending| ending.error.as_deref())
    {
        printer.line(format!("## {}\n\n{}\n", with(BAD, "error"), quoted(error)));
        if let Some(told) = Setback::of(&client, &run).await?.and_then(|setback| setback.told()) {
            printer.advise(&told);
        }
    }
    Ok(Exit::Completed)
}

fn print_head(printer: &Printer, run: &Run, transcript: &Transcript) {
    let title = format!("# {} {}", run.spec.agent_name, status_text(run));
    printer.line(format!(
        "{}\n\n{}\n",
        with(BOLD, &title),
        with(DIM, &format!("run {}", run.id()))
    ));
    if transcript.truncated {
        let count = transcript.events.len();
        let earlier = match transcript.before {
            Some(before) => format!("--before {before} shows earlier ones"),
            None => "--limit shows more".to_owned(),
        };
        printer.line(with(DIM, &format!("({count} entries; {earlier})\n")));
    }
}

fn print_entry(printer: &Printer, format: TranscriptFormat, entry: &TranscriptEntry) {
    match format {
        TranscriptFormat::Md => printer.line(markdown(entry)),
        TranscriptFormat::Json | TranscriptFormat::Ndjson => printer.json_line(&versioned(entry)),
    }
}

/// An entry for people.
fn markdown(entry: &TranscriptEntry) -> String {
    let author = escaped_line(&entry.author);
    let mut text = if entry.role == "tool" {
        let took = entry.duration_ms.map(|ms| human::duration(Duration::from_millis(ms)));
        let took = took.map_or_else(String::new, |took| with(DIM, &format!(" {took}")));
        format!("### {author}{took}\n")
    } else {
        format!("{}\n", with(BOLD, &format!("## {author}")))
    };
    // The text of an entry is somebody's: quoted, it is told from the page's own headings.
    if let Some(error) = &entry.error {
        let code = entry.error_code.as_deref().map(|code| excerpt(code, CODE_CHARS_MAX));
        let head = code.map_or_else(|| "error:".to_owned(), |code| format!("error ({code}):"));
        text.push_str(&format!("\n{}\n{}\n", with(BAD, &head), quoted(error)));
    } else if entry.role == "tool" {
        text.push_str(&format!("\n{}\n", shortened(&entry.content)));
    } else if !entry.content.is_empty() {
        text.push_str(&format!("\n{}\n", quoted(&entry.content)));
    }
    for image in &entry.images {
        text.push_str(&format!("\n- image {}", human::image(image)));
    }
    if !entry.images.is_empty() {
        text.push('\n');
    }
    for call in &entry.tool_calls {
        let arguments = excerpt(&call.payload, ARGUMENTS_CHARS_MAX);
        text.push_str(&format!("\n- calls `{}` `{arguments}`", escaped_line(&call.name)));
    }
    if !entry.tool_calls.is_empty() {
        text.push('\n');
    }
    text
}

fn shortened(content: &str) -> String {
    let end = content.floor_char_boundary(RESULT_BYTES_MAX);
    let shown = fenced(&content[..end], "json");
    match content.len() - end {
        0 => shown,
        left => format!("{shown}\n… ({left} more bytes; --format json has them)"),
    }
}
