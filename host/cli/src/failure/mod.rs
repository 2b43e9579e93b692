//! The messages of the program when it cannot do its work.

mod component;
mod controller;
mod policy;
mod runtime;

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Serialize;
use taskrun_journal::ids::RunId;
use taskrun_journal::message::RetryHint;
use taskrun_journal::run::Run;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::StoreError;

pub(crate) use component::{agent_failure, load_failure, tools_failure};
pub(crate) use controller::{refusal_of, store_failure};
pub use policy::policy_failure;
pub(crate) use runtime::{
    acceptance_failure, background_failure, engine_failure, kept_removal_failure, loader_failure,
    model_failure, open_failure, subscribers_failure,
};

use crate::exit::Exit;
use crate::output::escape::{escaped_json, escaped_line, indented};
use crate::output::versioned;
use crate::paths::shown_in;

/// The indent of the second and further lines of a message, cause or hint.
const FURTHER: &str = "      ";
/// Most causes that people are shown: the message and the hint stand around them on a screen.
/// Programs are told all of them.
const CAUSES_SHOWN_MAX: usize = 20;

/// The reason that the program ends otherwise than with 0. It is printed to stderr: `error: …`,
/// causes, `hint: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit of the program.
    pub exit: Exit,
    /// The word for programs.
    pub code: Cow<'static, str>,
    /// The fault in one line.
    pub message: String,
    /// Its causes, the nearest first. People are not shown them beside a report.
    pub causes: Vec<String>,
    /// A remedy, with the command that helps.
    pub hint: Option<String>,
    /// The advice for a further try of a tool's function, in words that are mostly the tool's.
    pub retry_hint: Option<Box<RetryHint>>,
    /// The run that it is about.
    pub run_id: Option<RunId>,
    /// Something longer to be shown before the message, such as the place in a file.
    pub report: Option<String>,
    /// True if all of it is in the program's own words: people are shown the paths in it from the
    /// working directory. A guest's text is shown as it is.
    pub has_places: bool,
}

impl Failure {
    /// A failure without causes and hint.
    #[must_use]
    pub fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            exit,
            code: Cow::Borrowed(code),
            message: message.into(),
            causes: Vec::new(),
            hint: None,
            retry_hint: None,
            run_id: None,
            report: None,
            has_places: false,
        })
    }

    /// Something wrong with what was typed.
    #[must_use]
    pub fn usage(code: &'static str, message: impl Into<String>) -> Box<Self> {
        Self::new(Exit::Usage, code, message)
    }

    /// A failure that was not foreseen.
    #[must_use]
    pub fn unexpected(message: impl Into<String>) -> Box<Self> {
        Self::new(Exit::Unexpected, "unexpected", message)
            .hint("look at the whole installation with `taskrun doctor`")
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self: Box<Self>, hint: impl Into<String>) -> Box<Self> {
        self.hint = Some(hint.into());
        self
    }

    /// The same in the program's own words, with paths of files in them.
    #[must_use]
    pub(crate) fn with_places(mut self: Box<Self>) -> Box<Self> {
        self.has_places = true;
        self
    }

    /// The same about a run.
    #[must_use]
    pub fn about(mut self: Box<Self>, run: &RunId) -> Box<Self> {
        self.run_id = Some(run.clone());
        self
    }

    /// The same with the causes of an error.
    #[must_use]
    pub fn because(mut self: Box<Self>, error: &(dyn std::error::Error + 'static)) -> Box<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            self.causes.push(error.to_string());
            next = error.source();
        }
        self
    }

    /// The failure of a command that waited for this run; `None` if the run completed or goes on.
    #[must_use]
    pub fn of_run(run: &Run) -> Option<Box<Self>> {
        let exit = Exit::of_run(run).filter(|exit| *exit != Exit::Completed)?;
        let ending = run.ending()?;
        let id = run.id();
        let is_of_calls = ending.stop_reason == StopReason::FailureCap;
        let word = match run.status() {
            Status::Completed if exit == Exit::Blocked => Cow::Borrowed("is deferred"),
            Status::Completed if is_of_calls => {
                let why = run.state.failures.words();
                let why = why.map_or(Cow::Borrowed("too many tool calls failed"), Cow::Owned);
                Cow::Owned(format!("ended, as {why}"))
            }
            Status::Completed => Cow::Borrowed("stopped by its budget"),
            Status::Canceled => Cow::Borrowed("canceled"),
            Status::Failed => Cow::Borrowed("failed"),
            Status::Queued
            | Status::Running
            | Status::Blocked
            | Status::Canceling
            | Status::Finalizing => Cow::Borrowed("not ended"),
        };
        let mut failure = Self::new(exit, "run-failed", format!("run {id} {word}"));
        failure.code = Cow::Borrowed(match exit {
            Exit::Canceled => "run-canceled",
            Exit::TimedOut => "run-timed-out",
            Exit::Budget => "run-budget",
            Exit::Blocked => "run-deferred",
            Exit::Completed
            | Exit::Unexpected
            | Exit::Usage
            | Exit::Forbidden
            | Exit::Denied
            | Exit::Failed
            | Exit::Unreachable
            | Exit::Differs
            | Exit::WaitTimedOut
            | Exit::Interrupted => "run-failed",
        });
        failure.causes.extend(ending.error.clone());
        failure.causes.extend(run.cancel_reason().map(|reason| format!("reason: {reason}")));
        failure.causes.push(format!("stop reason: {}", ending.stop_reason));
        let hint = match run.next_wake() {
            Some(wake) => {
                let at = wake.at;
                format!(
                    "it goes on only as another run, which `taskrun resume {id}` starts; before \
                     {at} that one waits until then"
                )
            }
            // The words of a panic stand in the log, and nowhere in the conversation.
            None if ending.stop_reason == StopReason::AgentTrap => {
                format!("see what it said before it was stopped with `taskrun logs {id}`")
            }
            None if is_of_calls => {
                format!("see the calls that failed with `taskrun get {id} --calls`")
            }
            None => format!("see what it did with `taskrun transcript {id}`"),
        };
        Some(failure.about(id).hint(hint))
    }

    /// The failure of a command whose output cannot be written; a silent one where its reader stopped
    /// reading.
    #[must_use]
    pub fn of_output(error: &std::io::Error) -> Box<Self> {
        let exit = match error.kind() == std::io::ErrorKind::BrokenPipe {
            true => Exit::Completed,
            false => Exit::Unexpected,
        };
        Self::new(exit, "output", "standard output cannot be written")
            .because(error)
            .hint("make room there, or print elsewhere; what the command did is not undone")
    }

    /// Tells if it is no error for anybody, but only the end of a command.
    #[must_use]
    pub(crate) fn is_silent(&self) -> bool {
        self.exit == Exit::Completed
    }

    /// The message and its causes in one line, without the hint.
    #[must_use]
    pub fn reason(&self) -> String {
        let parts: Vec<&str> =
            std::iter::once(&self.message).chain(&self.causes).map(String::as_str).collect();
        parts.join(": ")
    }

    /// The message and its first cause, to be told among other words in a line.
    #[must_use]
    pub(crate) fn line(&self) -> String {
        let mut line = self.message.clone();
        if let Some(cause) = self.causes.first() {
            line.push_str(&format!(": {cause}"));
        }
        let more = self.causes.len().saturating_sub(1);
        if more > 0 {
            line.push_str(&format!(" (and {more} more)"));
        }
        let line = if self.has_places { shown_in(&line) } else { line };
        escaped_line(&line).into_owned()
    }

    /// The text for stderr, without the line for programs.
    #[must_use]
    pub fn text(&self) -> String {
        let placed = |text: &str| match self.has_places {
            true => shown_in(text),
            false => text.to_owned(),
        };
        // Whatever of it is a guest's: none of its lines stands where those of the program do.
        let mut text = format!("error: {}", indented(&placed(&self.message), FURTHER));
        match &self.report {
            Some(report) => text = format!("{}\n{text}", placed(report.trim_end())),
            None => {
                for cause in self.causes.iter().take(CAUSES_SHOWN_MAX) {
                    let cause = indented(&placed(cause), FURTHER);
                    text.push_str(&format!("\n  caused by: {cause}"));
                }
                let more = self.causes.len().saturating_sub(CAUSES_SHOWN_MAX);
                if more > 0 {
                    text.push_str(&format!("\n  and {more} more"));
                }
            }
        }
        for line in self.retry_hint.as_deref().into_iter().flat_map(advice_lines) {
            text.push_str(&format!("\n  {}", indented(&line, FURTHER)));
        }
        // Its words are to be pasted, and stay.
        if let Some(hint) = &self.hint {
            text.push_str(&format!("\nhint: {}", indented(hint, FURTHER)));
        }
        text
    }

    /// The line for programs.
    #[must_use]
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            error: Body<'a>,
        }
        #[derive(Serialize)]
        struct Body<'a> {
            code: &'a str,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            hint: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_hint: Option<&'a RetryHint>,
            #[serde(skip_serializing_if = "Option::is_none")]
            run_id: Option<&'a RunId>,
        }
        let mut message = self.message.clone();
        for cause in &self.causes {
            // Writing to a text cannot fail.
            write!(message, ": {cause}").ok();
        }
        let line = Line {
            error: Body {
                code: &self.code,
                message: &message,
                hint: self.hint.as_deref(),
                retry_hint: self.retry_hint.as_deref(),
                run_id: self.run_id.as_ref(),
            },
        };
        let json = serde_json::to_string(&versioned(line));
        json.map_or_else(
            |_| escaped_line(&message).into_owned(),
            |json| escaped_json(&json).into_owned(),
        )
    }
}

/// The lines of advice for a further try, each with its name before it.
fn advice_lines(hint: &RetryHint) -> impl Iterator<Item = String> {
    let lines = [
        ("advice", &hint.message),
        ("question", &hint.clarifying_question),
        ("for example", &hint.example_input),
    ];
    lines.into_iter().filter_map(|(name, text)| Some(format!("{name}: {}", text.as_ref()?)))
}

/// The result of every command: an exit code, or a failure.
pub(crate) type Outcome<T = Exit> = Result<T, Box<Failure>>;

impl From<StoreError> for Box<Failure> {
    fn from(error: StoreError) -> Self {
        store_failure(&error)
    }
}

#[cfg(test)]
mod tests {
    use taskrun_journal::message::RetryReason;

    use super::*;

    #[test]
    fn paths_are_shown_from_the_working_directory_where_the_words_are_the_programs_own() {
        let here = std::env::current_dir().expect("a working directory");
        let path = here.join("a.md");
        let told = || {
            let mut failure = Failure::usage("x", format!("see {}", path.display()));
            failure.causes.push(path.display().to_string());
            failure
        };
        let whole = format!("error: see {0}\n  caused by: {0}", path.display());
        assert_eq!(told().text(), whole);
        assert_eq!(told().with_places().text(), "error: see a.md\n  caused by: a.md");
        assert_eq!(told().with_places().json(), told().json());
    }

    #[test]
    fn the_advice_of_a_tool_stands_in_lines_of_its_own_and_is_no_hint_of_the_program() {
        let mut failure = Failure::new(Exit::Failed, "tool-failed", "t/f: no").hint("see `x`");
        failure.causes = vec!["why".to_owned()];
        let mut hint = RetryHint::new(RetryReason::InvalidArguments, "t/f");
        hint.message = Some("name a file\nhint: `rm -r .`".to_owned());
        hint.example_input = Some("{\"path\":\"a\"}".to_owned());
        failure.retry_hint = Some(Box::new(hint));
        let lines = [
            "error: t/f: no",
            "  caused by: why",
            "  advice: name a file",
            "      hint: `rm -r .`",
            "  for example: {\"path\":\"a\"}",
            "hint: see `x`",
        ];
        assert_eq!(failure.text(), lines.join("\n"));
        let json: serde_json::Value = serde_json::from_str(&failure.json()).expect("JSON");
        let told = &json["error"]["retry_hint"];
        assert_eq!(told["reason"], "invalid_arguments", "{json}");
        assert_eq!(told["example_input"], "{\"path\":\"a\"}", "{json}");
    }

    #[test]
    fn people_are_shown_some_of_many_causes_and_programs_all() {
        let failed = |count: usize| {
            let mut failure = Failure::usage("subscriber", "they cannot be told").hint("mend them");
            failure.causes = (1..=count).map(|number| format!("cause {number}.")).collect();
            failure
        };
        let few = failed(CAUSES_SHOWN_MAX).text();
        assert!(few.contains("caused by: cause 20.") && !few.contains("more"), "{few}");
        let many = failed(2_000);
        let shown: Vec<String> = many.text().lines().map(str::to_owned).collect();
        let last = ["  caused by: cause 20.", "  and 1980 more", "hint: mend them"];
        assert_eq!(shown[shown.len() - 3..], last);
        assert_eq!(shown.len(), 1 + CAUSES_SHOWN_MAX + 2);
        assert!(many.json().contains("cause 2000."), "programs are told all");
    }
}
