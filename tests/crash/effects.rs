//! The effects of the tools, held against the words of the journals.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::status::Status;
use taskrun_journal::tool::{ToolOutcome, ToolOutput};

use crate::book::Book;
use crate::journal::is_interrupted;

/// A call that began.
struct Call<'a> {
    run: &'a str,
    name: &'a str,
    /// The text that it was to write; of no other call where the tool is a note.
    text: String,
    output: Option<&'a ToolOutput>,
    /// The times that it began again; the journal is held to its promises elsewhere.
    repeated: usize,
}

/// Lines of the ledger: for each text the ids of the calls that wrote it.
type Notes = BTreeMap<String, Vec<String>>;

/// Holds what the tools left to the journals: a note is there if its result says so, once at most
/// and once more for each time that a person accepted that its call begins again, and never if no
/// journal says that its call began; a kept text is there if its result says so; and calls that may
/// be repeated were, where the run was completed.
pub(crate) fn check(book: &mut Book, folder: &Path) {
    let notes = read(folder);
    let mut wrong: Vec<(String, String)> = Vec::new();
    let mut began: BTreeMap<String, usize> = BTreeMap::new();
    for (run, journal) in &book.journals {
        let completed = book.run(run).is_some_and(|run| run.status() == Status::Completed);
        for call in calls(run, journal) {
            let found = match call.name {
                "ledger/put" => check_put(folder, &call, completed),
                "ledger/note" | "careful/note" => check_note(&notes, &call),
                _ => Ok(()),
            };
            wrong.extend(found.err().map(|what| (call.run.to_owned(), what)));
            began.insert(call.text, 1 + call.repeated);
        }
    }
    for (text, ids) in &notes {
        let run = text.split('.').next().unwrap_or_default();
        let most = began.get(text).copied().unwrap_or_default();
        if most == 0 {
            wrong.push((run.to_owned(), format!("no journal says that the note {text} began")));
        } else if ids.len() > most {
            let what = format!("the note {text} was made by {ids:?}, and began {most} times");
            wrong.push((run.to_owned(), what));
        }
    }
    wrong.into_iter().for_each(|(run, what)| book.say(&run, what));
}

fn read(folder: &Path) -> Notes {
    let mut notes = Notes::new();
    // There is no ledger where no note was made.
    let text = fs::read_to_string(folder.join("ledger.txt")).unwrap_or_default();
    for line in text.lines() {
        let (id, text) = line.split_once(' ').unwrap_or(("", line));
        notes.entry(text.to_owned()).or_default().push(id.to_owned());
    }
    notes
}

/// The calls of a journal that began, each with its result if it has one.
fn calls<'a>(run: &'a str, journal: &'a [EventRecord]) -> Vec<Call<'a>> {
    let mut calls: Vec<Call<'a>> = Vec::new();
    // By the id in its turn; a turn's ids come again in the next.
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for recorded in journal {
        if let Event::ToolCallScheduled { name, tool_call_id, payload, .. } = &recorded.event {
            let text = text(payload, "text");
            open.insert(tool_call_id, calls.len());
            calls.push(Call { run, name, text, output: None, repeated: 0 });
        }
        if let Event::ToolCallRepeated { tool_call_id, .. } = &recorded.event
            && let Some(place) = open.get(tool_call_id.as_str())
        {
            calls[*place].repeated += 1;
        }
        if let Event::ToolResult { output, .. } = &recorded.event
            && let Some(place) = open.remove(output.tool_call_id.as_str())
        {
            calls[place].output = Some(output);
        }
    }
    calls
}

fn text(json: &str, key: &str) -> String {
    let value: Value = serde_json::from_str(json).unwrap_or_default();
    value[key].as_str().unwrap_or_default().to_owned()
}

fn check_note(notes: &Notes, call: &Call<'_>) -> Result<(), String> {
    let Some(ToolOutput { outcome: ToolOutcome::Value(value), .. }) = call.output else {
        return Ok(());
    };
    let id = text(value, "id");
    match notes.get(&call.text) {
        Some(ids) if ids.iter().all(|one| *one == id) => Ok(()),
        found => Err(format!("the note {} was made by {id}; there is {found:?}", call.text)),
    }
}

fn check_put(folder: &Path, call: &Call<'_>, completed: bool) -> Result<(), String> {
    let name = &call.text;
    match call.output {
        Some(ToolOutput { outcome: ToolOutcome::Value(value), .. }) => {
            let path = text(value, "path");
            match fs::read_to_string(folder.join(&path)) {
                Ok(kept) if kept == call.text => Ok(()),
                Ok(kept) => Err(format!("{path} has {kept:?} and not {name:?}")),
                Err(error) => Err(format!("{path} was kept and is not there: {error}")),
            }
        }
        Some(output) if is_interrupted(output) => {
            Err(format!("{name} may be repeated, and was given up as interrupted"))
        }
        Some(_) | None if completed => Err(format!("{name} has no result, and the run its end")),
        Some(_) | None => Ok(()),
    }
}
