//! `taskrun replay`.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde_json::Value;
use similar::TextDiff;
use taskrun_journal::event::Event;
use taskrun_runtime::{
    Export, ExportError, NotedQuestion, ReplayEngine, ReplayFailure, ReplayOptions, ReplayedStep,
    StepComparison, StepDifference,
};

use super::export::export_failure;
use crate::args::{OutputFormat, ReplayArgs};
use crate::context::{Context, compile_worker};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, agent_failure, engine_failure};
use crate::lookup::agent_of;
use crate::output::paint::{BAD, BOLD, DIM, GOOD, with};
use crate::output::{excerpt_block, human, side_by_side, versioned};
use crate::shell;
use crate::signals::Interrupts;

/// Lines without a difference around each that has one.
const CONTEXT_LINES: usize = 3;
/// Most characters of a question that is shown alone.
const QUESTION_CHARS_MAX: usize = 4_000;

/// A replay, as programs are shown it.
#[derive(Serialize)]
struct Report {
    run_id: String,
    /// Steps on record whose ends tell what they did.
    steps: usize,
    same: usize,
    differences: Vec<Difference>,
    skipped: Vec<Skipped>,
}

#[derive(Serialize)]
struct Difference {
    turn: u32,
    attempt: u32,
    /// The event that ended the step.
    seq: u64,
    recorded: String,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    question: Option<Questions>,
}

#[derive(Serialize)]
struct Questions {
    number: u32,
    kind: &'static str,
    /// The one that the recorded component put, where that was asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<Value>,
    asked: Value,
}

#[derive(Serialize)]
struct Skipped {
    turn: u32,
    attempt: u32,
    seq: u64,
    reason: String,
}

pub(super) async fn replay(context: &Context, args: &ReplayArgs) -> Outcome {
    let mut interrupts = Interrupts::new();
    let export = open(&args.file, &mut interrupts).await?;
    let Some(export) = export else { return Ok(Exit::Interrupted) };
    execute(context, &export, args.against.as_deref(), interrupts).await
}

/// Executes a run of an agent again by the component that this has now.
pub(super) async fn by_agent(context: &Context, agent: &str, file: &Path) -> Outcome {
    let policy = context.policy()?;
    let component = &agent_of(&policy, agent)?.component;
    let mut interrupts = Interrupts::new();
    let export = open(file, &mut interrupts).await?;
    let Some(export) = export else { return Ok(Exit::Interrupted) };
    match export.records().first().map(|first| &first.event) {
        Some(Event::Queued { spec }) if spec.agent_name != agent => {
            let (shown, other) = (file.display(), &spec.agent_name);
            let message = format!("the run in {shown} is one of agent {other}, not of {agent}");
            let file = shell::path(file, "FILE");
            let hint = format!("`taskrun replay {file} --against COMPONENT` takes any component");
            Err(Failure::usage("other-agent", message).hint(hint))
        }
        Some(_) | None => execute(context, &export, Some(component.as_path()), interrupts).await,
    }
}

/// Reads an export; `None` if Ctrl-C was pressed meanwhile.
async fn open(file: &Path, interrupts: &mut Interrupts) -> Outcome<Option<Export>> {
    let (file, given_up) = (file.to_owned(), Arc::new(AtomicBool::new(false)));
    let is_given_up = Arc::clone(&given_up);
    let mut reading = tokio::task::spawn_blocking(move || Export::open_unless(&file, &is_given_up));
    let opened = tokio::select! {
        biased;
        () = interrupts.pressed() => None,
        opened = &mut reading => Some(opened),
    };
    let Some(opened) = opened else {
        given_up.store(true, Ordering::Relaxed);
        // If the program ended before its thread, the temporary folder would stay.
        reading.await.ok();
        return Ok(None);
    };
    let opened = opened.map_err(|_| Failure::unexpected("the export cannot be read"))?;
    opened.map(Some).map_err(|error| unreadable(&error))
}

/// An export that is not read.
fn unreadable(error: &ExportError) -> Box<Failure> {
    let hint = "name one that `taskrun export RUN` or `taskrun run AGENT TASK --record FILE` wrote";
    match error {
        ExportError::Io { path, source } if source.kind() == ErrorKind::NotFound => {
            let message = format!("there is no file {}", path.display());
            Failure::usage("export-file", message).hint(hint)
        }
        ExportError::Io { .. } | ExportError::TooLarge { .. } => export_failure(error).hint(hint),
        ExportError::Store(_)
        | ExportError::Exists { .. }
        | ExportError::Form { .. }
        | ExportError::Format { .. }
        | ExportError::Malformed { .. }
        | ExportError::Panicked => export_failure(error),
    }
}

/// Executes the steps of an export until that is done or Ctrl-C is pressed.
async fn execute(
    context: &Context,
    export: &Export,
    against: Option<&Path>,
    mut interrupts: Interrupts,
) -> Outcome {
    let cache = context.cache_folder();
    let options = ReplayOptions { cache, compile_worker: compile_worker() };
    let engine = ReplayEngine::start(&options).map_err(|error| engine_failure(&error))?;
    let mut steps = Vec::new();
    let replayed = engine.replay(export, against, |step| steps.push(step));
    tokio::select! {
        biased;
        () = interrupts.pressed() => return Ok(Exit::Interrupted),
        replayed = replayed => replayed.map_err(|error| replay_failure(&error))?,
    }
    let report = Report::of(export, steps);
    let printer = &context.printer;
    match printer.format() {
        OutputFormat::Table => report.print(context),
        OutputFormat::Json => printer.json(&versioned(&report)),
        OutputFormat::Ndjson => printer.json_line(&versioned(&report)),
        OutputFormat::Name => {
            report.differences.iter().for_each(|difference| printer.line(difference.turn));
        }
    }
    Ok(match report.differences.is_empty() {
        true => Exit::Completed,
        false => Exit::Differs,
    })
}

fn replay_failure(error: &ReplayFailure) -> Box<Failure> {
    match error {
        ReplayFailure::Engine(error) => engine_failure(error),
        ReplayFailure::Against(error) => agent_failure(error),
        ReplayFailure::Missing(_) => Failure::usage("export-incomplete", error.to_string())
            .hint("export the run where its policy and its components are kept"),
        ReplayFailure::Record(_) => Failure::usage("export-damaged", error.to_string())
            .hint("export the run again, or read it with a later version of taskrun"),
    }
}

impl Report {
    fn of(export: &Export, steps: Vec<ReplayedStep>) -> Self {
        let mut report = Self {
            run_id: export.list().run.clone(),
            steps: steps.len(),
            same: 0,
            differences: Vec::new(),
            skipped: Vec::new(),
        };
        for ReplayedStep { turn, attempt, seq, outcome } in steps {
            match outcome {
                StepComparison::Same => report.same += 1,
                StepComparison::Skipped(reason) => {
                    report.skipped.push(Skipped { turn, attempt, seq, reason });
                }
                StepComparison::Differs(difference) => {
                    let StepDifference { recorded, found, question } = *difference;
                    let question = question.map(|(recorded, asked)| Questions::of(recorded, asked));
                    report.differences.push(Difference {
                        turn,
                        attempt,
                        seq,
                        recorded,
                        found,
                        question,
                    });
                }
            }
        }
        report
    }

    fn print(&self, context: &Context) {
        let printer = &context.printer;
        for difference in &self.differences {
            printer.line(difference.text(printer.width()));
        }
        for step in &self.skipped {
            let (turn, reason) = (step.turn, &step.reason);
            printer.line(format!("step {turn} was not compared: {reason}"));
        }
        let (steps, same, differ) = (self.steps, self.same, self.differences.len());
        let skipped = self.skipped.len();
        let steps = human::count(steps as u64, "step");
        printer.line(format!(
            "{steps}: {same} did the same, {differ} something else, {skipped} not compared"
        ));
    }
}

impl Questions {
    fn of(recorded: Option<NotedQuestion>, asked: NotedQuestion) -> Self {
        let value = |question: NotedQuestion| {
            serde_json::from_str(&question.text).unwrap_or(Value::String(question.text))
        };
        let (number, kind) = (asked.number, asked.kind);
        Self { number, kind, recorded: recorded.map(value), asked: value(asked) }
    }

    /// The lines in which the two differ; the one that was asked where the other is not known.
    fn text(&self) -> String {
        let lines = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
        let asked = lines(&self.asked);
        let Some(recorded) = &self.recorded else {
            return excerpt_block(&asked, QUESTION_CHARS_MAX);
        };
        let recorded = lines(recorded);
        let diff = TextDiff::from_lines(&recorded, &asked);
        let mut unified = diff.unified_diff();
        let unified = unified.context_radius(CONTEXT_LINES).header("recorded", "now").to_string();
        unified.lines().map(painted).collect::<Vec<_>>().join("\n")
    }
}

impl Difference {
    fn text(&self, width: Option<usize>) -> String {
        let Self { turn, attempt, seq, recorded, found, question } = self;
        let again = if *attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
        let mut text = with(BOLD, &format!("step {turn}{again} differs (event {seq})"));
        text.push('\n');
        text.push_str(&side_by_side(("recorded", recorded), ("now", found), width));
        if let Some(question) = question {
            text.push_str(&format!("\nquestion {} ({}):\n", question.number, question.kind));
            text.push_str(&question.text());
        }
        text
    }
}

fn painted(line: &str) -> String {
    let style = match line.as_bytes() {
        [b'-', b'-', b'-', ..] | [b'+', b'+', b'+', ..] => BOLD,
        [b'-', ..] => BAD,
        [b'+', ..] => GOOD,
        [b'@', ..] => DIM,
        [..] => return line.to_owned(),
    };
    with(style, line)
}
