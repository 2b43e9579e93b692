//! Commands about runs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use taskrun_journal::answers::Answers;
use taskrun_journal::delivery::DeliverySettings;
use taskrun_journal::list::Cursor;
use taskrun_journal::message::LogLevel;
use taskrun_journal::spec::TreeBounds;
use taskrun_journal::status::{Status, StopReason, UnknownStatus, UnknownStopReason};

use super::columns::RunColumn;
use super::delivery::delivery;
use super::exports::RecordingArgs;
use super::parse::{
    Budget, Since, answers, budget, duration, label, pair, since, some_text, tool_timeout, tree,
};

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Agent of the policy
    pub agent: String,
    /// Task of the run; `-` reads it from stdin, `@FILE` from a file
    pub task: Option<String>,
    /// Image that belongs to the task: a PNG, JPEG, GIF or WebP; may be repeated
    #[arg(short, long = "image", value_name = "FILE")]
    pub images: Vec<PathBuf>,
    /// Prints the id and leaves the run in the background
    #[arg(short, long, conflicts_with = "wait")]
    pub detach: bool,
    /// Waits for the end and prints the result; with a duration, at most that long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, value_parser = duration)]
    pub wait: Option<Option<Duration>>,
    /// Key and value to find the run by; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Key and value that are shown with the run; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub metadata: Vec<(String, String)>,
    /// Key and text that the components of the run, and of the runs that it starts, find in its
    /// context (`envelope`); may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub state: Vec<(String, String)>,
    /// Message of the person who asks, which stands before the task; `-` reads it from stdin,
    /// `@FILE` from a file; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub context: Vec<String>,
    /// Running time that the run may take: what it waits in the queue, for answers, for other runs, until
    /// a wake-up, for a provider that wants a pause, or while it is paused does not count
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// The same key with the same request gives the run that was started first
    #[arg(long, value_name = "KEY", value_parser = some_text)]
    pub idempotency_key: Option<String>,
    /// Gives the result of the same task of the same agent where one was completed so recently
    /// [default: 5m]; with --idempotency-key, of the run with that key
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, value_parser = duration)]
    pub reuse: Option<Option<Duration>>,
    /// Run beneath which this one stands: it is canceled with it, and belongs to its owner, session
    /// and application unless others are named
    #[arg(long, value_name = "RUN")]
    pub parent: Option<String>,
    /// Cancels the run when the one beneath which it stands ends, however that ends
    #[arg(long, requires = "parent")]
    pub attached: bool,
    /// Name that stands for the run where an id is asked for: a letter, then letters, digits, - and
    /// _; free again when the run has ended
    #[arg(long)]
    pub name: Option<String>,
    /// Application to which the run, and the runs that it starts, belong: it is told nothing of
    /// earlier runs of its session that belong to another
    #[arg(long, value_name = "NAME", value_parser = some_text)]
    pub app: Option<String>,
    /// The only function that the run and all beneath it may call, or `TOOL/*`; may be repeated
    #[arg(long = "only-tool", value_name = "TOOL/FUNCTION")]
    pub only_tools: Vec<String>,
    /// Tag that functions need which the run and all beneath it may call; may be repeated
    #[arg(long = "only-tag", value_name = "TAG")]
    pub only_tags: Vec<String>,
    /// Tag of functions that the run and all beneath it may not call; may be repeated
    #[arg(long = "deny-tag", value_name = "TAG")]
    pub deny_tags: Vec<String>,
    /// Longest call of a function, of those whose names begin so (`TOOL/*`), or of any; may be
    /// repeated
    #[arg(long = "tool-timeout", value_name = "[TOOL/FUNCTION=]DURATION", value_parser = tool_timeout)]
    pub tool_timeouts: Vec<(String, Duration)>,
    /// Rule as under `deny` of an agent, for the run and all beneath it; may be repeated
    #[arg(long, value_name = "RULE")]
    pub deny: Vec<String>,
    /// Less than the agent's own budget: turns=N,tokens=N,prompt-tokens=N,completion-tokens=N,usd=N,
    /// tool-calls=N,wall=DURATION,turn-calls=N,tool-failures=N,step=DURATION,last-step=DURATION
    #[arg(long, value_name = "KEY=VALUE,..", value_parser = budget)]
    pub budget: Option<Budget>,
    /// The run cannot be paused
    #[arg(long)]
    pub no_pause: bool,
    /// Bounds of the tree of runs, where they are smaller than its agent's: depth=N,runs=N,slots=N;
    /// with --parent the depth alone
    #[arg(long, value_name = "KEY=VALUE,..", value_parser = tree)]
    pub tree: Option<TreeBounds>,
    /// Goes on at the task, round after round, until the agent says that it is done or a budget is
    /// used up
    #[arg(long)]
    pub autonomous: bool,
    /// Most rounds of an autonomous run, no more than its agent's
    #[arg(long, value_name = "N", requires = "autonomous", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Prompt of every round of an autonomous run but the first [default: that of the agent, or
    /// "continue"]
    #[arg(long, value_name = "TEXT", requires = "autonomous")]
    pub continuation: Option<String>,
    /// JSON schema of the result that an autonomous run has to give; `@FILE` reads it from a file
    #[arg(long, value_name = "SCHEMA", requires = "autonomous")]
    pub result_schema: Option<String>,
    /// Longest time for which the run is deferred, whatever it asks for
    #[arg(long, value_name = "DURATION", requires = "autonomous", value_parser = duration)]
    pub max_defer: Option<Duration>,
    /// Ends it where it would be deferred, as `deferred`; `taskrun resume` goes on when its time has come
    #[arg(long, requires = "autonomous")]
    pub exit_on_defer: bool,
    /// Begins only when no earlier serial run of the session is open
    #[arg(long)]
    pub serial: bool,
    /// The run belongs to no session: only its own journal tells of it
    #[arg(long)]
    pub one_shot: bool,
    /// Takes no part in the conversation of the session: the run is told nothing of earlier ones, and
    /// later ones are told nothing of it. Runs without --session take no part in any
    #[arg(long)]
    pub no_history: bool,
    /// Tells a conversation of the session of the outcome so, instead of with the answer alone:
    /// none, context-only, immediate, wait-for-idle[,buffer=DURATION][,timeout=DURATION][,interrupt]
    /// or queued[,buffer=..][,timeout=..][,separator=TEXT]; `,notify=AGENT` names whose conversation
    #[allow(rustdoc::broken_intra_doc_links, reason = "a form that people are shown")]
    #[arg(long, value_name = "STRATEGY[,KEY=VALUE,..]", value_parser = delivery)]
    pub deliver: Option<DeliverySettings>,
    /// Task of the run that is told
    #[arg(long, value_name = "TEXT", requires = "deliver")]
    pub deliver_prompt: Option<String>,
    /// Refuses the run, with exit code 4, if it cannot begin at once
    #[arg(long)]
    pub no_queue: bool,
    /// Has what is asked answered by: `inbox` (people), `refuse` or `refuse:WHY` (the host, by
    /// refusing), `fixed:TEXT` (the host, with this text, which is no consent) [default: that of
    /// --parent; of a run with --autonomous that no terminal follows, `answers` of its agent, or
    /// nobody; else inbox]
    #[arg(long, value_name = "WHO", value_parser = answers)]
    pub answers: Option<Answers>,
    /// Nobody answers: refuses the run if its rules, or those above it, ask somebody
    #[arg(long, conflicts_with = "answers")]
    pub unattended: bool,
    /// Leaves the task to the next heartbeat of the agent, and prints the id
    #[arg(long, conflicts_with_all = [
        "wait", "timeout", "serial", "no_queue", "images", "autonomous", "state", "context",
    ])]
    pub heartbeat: bool,
    /// The file of the run
    #[command(flatten)]
    pub recording: RecordingArgs,
    /// Told of the run beside the subscribers of its agent, as in webhook/ci; may be repeated
    #[arg(long, value_name = "SUBSCRIBER")]
    pub subscriber: Vec<String>,
    /// Channel of the run beside those of its agent, or, with --parent, one of that run which it has
    /// as well; may be repeated
    #[arg(long, value_name = "CHANNEL")]
    pub channel: Vec<String>,
    /// Id of the run [default: a new UUID]
    #[arg(long, value_parser = some_text)]
    pub id: Option<String>,
}

/// The statuses that one word of `--status` means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatusWord(pub Vec<Status>);

fn status(word: &str) -> Result<StatusWord, UnknownStatus> {
    Status::meant_by(word).map(StatusWord)
}

/// The reasons that one word of `--stop-reason` means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StopReasonWord(pub Vec<StopReason>);

fn stop_reason(word: &str) -> Result<StopReasonWord, UnknownStopReason> {
    StopReason::meant_by(word).map(StopReasonWord)
}

/// Arguments of `ps`.
#[derive(Debug, Default, Args)]
pub(crate) struct PsArgs {
    /// All runs, ended ones too, page by page
    #[arg(short, long)]
    pub all: bool,
    /// Only these statuses
    #[arg(long, value_delimiter = ',', value_name = "STATUS,..", value_parser = status)]
    pub status: Vec<StatusWord>,
    /// Only runs that ended for these reasons
    #[arg(long, value_delimiter = ',', value_name = "REASON,..", value_parser = stop_reason)]
    pub stop_reason: Vec<StopReasonWord>,
    /// Only runs of this agent
    #[arg(long)]
    pub agent: Option<String>,
    /// Only runs with this label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Only runs that this one started
    #[arg(long, value_name = "RUN")]
    pub parent: Option<String>,
    /// Only runs that were asked for from this application
    #[arg(long, value_name = "NAME", value_parser = some_text)]
    pub app: Option<String>,
    /// Only runs accepted since then: 1h, or a time
    #[arg(long, value_name = "WHEN", value_parser = since)]
    pub since: Option<Since>,
    /// Most runs on the page, 1 to 200 [default: 16; with -a 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=200))]
    pub limit: Option<u16>,
    /// Where the page begins, as printed by the page before
    #[arg(long, value_parser = str::parse::<Cursor>)]
    pub cursor: Option<Cursor>,
    /// Shows runs under the runs that started them
    #[arg(long)]
    pub tree: bool,
    /// Columns of the table, in this order [default: run, agent, status, age, time, turns, tools and
    /// task, and name where a run has one]
    #[arg(long, value_delimiter = ',', value_name = "COLUMN,..")]
    pub columns: Vec<RunColumn>,
}

/// Arguments of `tree`.
#[derive(Debug, Args)]
pub(crate) struct TreeArgs {
    /// The run
    pub run: String,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The run
    pub run: String,
    /// Prints the whole result and nothing else
    #[arg(long)]
    pub result: bool,
    /// Prints an artifact of the run and nothing else: the result of a tool call that was too
    /// large for its conversation, by its hash
    #[arg(long, value_name = "HASH", conflicts_with = "result")]
    pub artifact: Option<String>,
    /// Shows the phase of its work, its tool calls and the runs that it started too
    #[arg(long, conflicts_with_all = ["result", "artifact"])]
    pub calls: bool,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The runs
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Goal of the wait: the end, or a status on the way there
    #[arg(long = "for", value_name = "terminal|STATUS", default_value = "terminal", value_parser = target)]
    pub target: Target,
    /// Returns when one of them has ended
    #[arg(long, conflicts_with = "all")]
    pub any: bool,
    /// Returns when all of them have ended; the default
    #[arg(long)]
    pub all: bool,
    /// Longest wait; then the exit code is 124
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
}

/// The goal of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The end, whatever it is.
    Terminal,
    /// One status.
    Status(Status),
}

impl Target {
    /// True if a run in this status need not be waited for any more.
    #[must_use]
    pub(crate) fn is_reached(self, status: Status) -> bool {
        match self {
            Self::Terminal => status.is_terminal(),
            Self::Status(wanted) => status == wanted,
        }
    }
}

/// Arguments of `cancel`.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// The runs
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Reason, in words; kept in the journal
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Leaves the runs beneath them as they are
    #[arg(long)]
    pub keep_children: bool,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The run
    pub run: String,
    /// Goes on until the run has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last lines
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// Only lines that matter at least so much
    #[arg(long, value_name = "LEVEL", default_value = "trace", value_parser = level)]
    pub level: LogLevel,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// The run; without one, all runs of the session named by --session
    pub run: Option<String>,
    /// Goes on until the run, or the session with all of its runs, has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Only events after this position; of a session, after this place
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub after: u64,
    /// Only events of these kinds
    #[arg(long, value_delimiter = ',', value_name = "KIND,..",
        value_parser = clap::builder::PossibleValuesParser::new(taskrun_journal::event::Event::KINDS),
        hide_possible_values = true)]
    pub kind: Vec<String>,
}

/// Arguments of `transcript`.
#[derive(Debug, Args)]
pub(crate) struct TranscriptArgs {
    /// The run
    pub run: String,
    /// Goes on until the run has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last entries, 1 to 200
    #[arg(long, value_name = "N", default_value_t = 40,
        value_parser = clap::value_parser!(u16).range(1..=200))]
    pub limit: u16,
    /// Only entries before this position; a transcript that is cut says which to give
    #[arg(long, value_name = "SEQ", conflicts_with = "follow")]
    pub before: Option<u64>,
    /// Form of the transcript [default: md, or that of -o]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<TranscriptFormat>,
}

/// Form of a transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TranscriptFormat {
    /// Markdown for people.
    Md,
    /// One JSON document.
    Json,
    /// One JSON object for each entry.
    Ndjson,
}

fn target(text: &str) -> Result<Target, String> {
    if text == "terminal" {
        return Ok(Target::Terminal);
    }
    let status = text.parse().map_err(|error| format!("{error}; or terminal"))?;
    Ok(Target::Status(status))
}

fn level(text: &str) -> Result<LogLevel, String> {
    let all = [LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error];
    all.into_iter().find(|level| level.as_str() == text).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|level| level.as_str()).collect();
        format!("known are: {}", known.join(", "))
    })
}
