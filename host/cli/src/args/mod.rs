//! The command line as it is typed.

mod chat;
mod columns;
mod command_line;
mod consents;
mod delivery;
mod exports;
mod lazy;
mod memory;
mod outbox;
mod parse;
mod pauses;
mod runs;
mod sessions;
mod system;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use chat::ChatArgs;
pub(crate) use columns::RunColumn;
pub(crate) use consents::{ConsentsArgs, ConsentsCommand};
pub(crate) use exports::{ExportArgs, ReplayArgs};
pub(crate) use lazy::Lazy;
pub(crate) use memory::{
    MemoryCommand, MemoryKeyArgs, MemoryLsArgs, MemoryPutArgs, MemoryRmArgs, MemorySearchArgs,
};
pub(crate) use outbox::{OutboxChangeArgs, OutboxCommand, OutboxListArgs};
pub(crate) use parse::Budget;
pub(crate) use pauses::{AdoptArgs, InjectArgs, PauseArgs, ResumeArgs, WakeArgs};
pub(crate) use runs::{
    CancelArgs, EventsArgs, GetArgs, LogsArgs, PsArgs, RunArgs, StatusWord, Target, TranscriptArgs,
    TranscriptFormat, TreeArgs, WaitArgs,
};
pub(crate) use sessions::{AnswerArgs, GcArgs, InboxArgs, SessionCommand};
pub(crate) use system::{
    AgentCommand, AgentDiffArgs, ApplyArgs, DemoArgs, DoctorArgs, ExplainArgs, HostArgs,
    InspectArgs, ModelCommand, PolicyCommand, ToolCallArgs, ToolCommand,
};

const AFTER_HELP: &str = "\
Runs are durable: they go on when this program is gone, and every command finds them again.
A RUN is a whole id, the beginning of one (at least 4 characters), a name, or @last: the run
started last, but for those that agents and hosts start.

Exit codes: 0 completed, 1 unexpected, 2 usage, 3 not authorised, 4 denied by policy,
5 run failed, 6 canceled, 7 the run timed out, 8 blocked and nobody here can answer,
or ended as `deferred`, 9 stopped by its budget, 10 store or host unreachable,
11 a replay differs from its record, 124 the wait timed out, 130 Ctrl-C.

Begin with `taskrun demo`.";

/// Runs agents and tools as sandboxed WebAssembly components.
#[derive(Debug, Parser)]
#[command(
    name = "taskrun",
    version,
    propagate_version = false,
    after_help = AFTER_HELP,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub(crate) globals: Globals,
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Form of what is printed to stdout [default: table]
    #[arg(
        short,
        long,
        global = true,
        env = "TASKRUN_OUTPUT",
        value_name = "FORMAT",
        hide_env = true
    )]
    pub output: Option<OutputFormat>,
    /// Prints no colours; so does NO_COLOR
    #[arg(long, global = true, env = "TASKRUN_NO_COLOR", hide_env = true,
        value_parser = clap::builder::FalseyValueParser::new())]
    pub no_color: bool,
    /// Prints data and errors only
    #[arg(short, long, global = true, env = "TASKRUN_QUIET", hide_env = true,
        value_parser = clap::builder::FalseyValueParser::new())]
    pub quiet: bool,
    /// Says more of what happens; twice: much more
    #[arg(short, long, global = true, env = "TASKRUN_VERBOSE", hide_env = true,
        action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Levels of the program's own log, as in warn,taskrun=debug; spans say how long they took
    #[arg(long, global = true, env = "TASKRUN_LOG", value_name = "FILTER", hide_env = true)]
    pub log: Option<String>,
    /// Form of the program's own log [default: text]
    #[arg(
        long,
        global = true,
        env = "TASKRUN_LOG_FORMAT",
        value_name = "FORMAT",
        hide_env = true,
        default_value = "text",
        hide_default_value = true
    )]
    pub log_format: LogFormat,
    /// Policy file [default: the nearest taskrun.toml, from here upward]
    #[arg(long, global = true, env = "TASKRUN_CONFIG", value_name = "FILE", hide_env = true)]
    pub config: Option<PathBuf>,
    /// Where runs are kept [default: .taskrun beside the policy file]
    #[arg(long, global = true, env = "TASKRUN_DATA_DIR", value_name = "DIR", hide_env = true)]
    pub data_dir: Option<PathBuf>,
    /// Most bytes of the file in which runs are kept, as in 4GiB [default: 16GiB]
    #[arg(long, global = true, env = "TASKRUN_STORE_MAX", value_name = "SIZE", hide_env = true,
        value_parser = parse::store_max)]
    pub store_max: Option<u64>,
    /// Tenant whose runs are meant [default: default]
    #[arg(long, global = true, env = "TASKRUN_TENANT", value_name = "NAME", hide_env = true,
        value_parser = parse::some_text)]
    pub tenant: Option<String>,
    /// Owner of a new run [default: local]; elsewhere, sees only the runs of that owner
    #[arg(long, global = true, env = "TASKRUN_OWNER", value_name = "NAME", hide_env = true)]
    pub owner: Option<String>,
    /// Session that asks for a new run [default: cli]; elsewhere, sees only the runs of that one
    #[arg(long, global = true, env = "TASKRUN_SESSION", value_name = "NAME", hide_env = true)]
    pub session: Option<String>,
}

/// Form of the program's own log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object for each line.
    Json,
}

/// Form of what is printed to stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table for people.
    Table,
    /// One JSON document.
    Json,
    /// One JSON object for each line.
    Ndjson,
    /// Ids or names only, one for each line.
    Name,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Starts a run of an agent
    ///
    /// In a terminal the run is shown as it goes; Ctrl-C leaves it running, a second Ctrl-C
    /// cancels it. Elsewhere its id is printed and it goes on in the background, unless --wait
    /// asks for the result.
    Run(Lazy<RunArgs>),
    /// Speaks with an agent, line by line; what it left to other agents goes on meanwhile
    ///
    /// Each line is a run that continues the session, one after the other. Outcomes of background runs
    /// are told to the agent with the next line, and questions of any run of the session are asked in
    /// place. Ctrl-C or Ctrl-D leaves; what runs goes on, and the same command comes back to it.
    Chat(Lazy<ChatArgs>),
    /// Lists runs, the one changed last first
    ///
    /// Without a filter: all that have not ended, and the 16 changed last.
    Ps(Lazy<PsArgs>),
    /// Shows the open runs and what they are at, on one page that goes with them
    ///
    /// Keys look at a run, answer what it asks, pause, resume and cancel it. In a pipe, or with a form
    /// of output, it prints the open runs once: a line of JSON for each, unless another form is asked
    /// for.
    Top,
    /// Shows a run
    Get(Lazy<GetArgs>),
    /// Shows a run with everything beneath it, and what all of that has used
    Tree(Lazy<TreeArgs>),
    /// Waits until runs have ended, however they end
    ///
    /// The exit code says how: of several runs, that of the first one that did not complete. It is
    /// 8 as soon as a run needs an answer from outside; `inbox` lists the questions.
    Wait(Lazy<WaitArgs>),
    /// Asks runs and everything beneath them to stop
    ///
    /// A run that no host executes ends at once, and where its agent has a finalizer once that was
    /// heard, for up to 5 seconds. Others end when their guest is gone.
    Cancel(Lazy<CancelArgs>),
    /// Pauses runs: nothing more of them begins
    ///
    /// A step or tool call that is under way comes to its end first. A paused run costs nothing,
    /// and its time stands still; one that asks something takes answers.
    Pause(Lazy<PauseArgs>),
    /// Lets paused runs go on
    Resume(Lazy<ResumeArgs>),
    /// Gives runs their agent as it is now: components, settings, prompts and rules
    ///
    /// A run has those that it was accepted with, within the rules of now, until it is adopted. No
    /// step or tool call may be under way: pause it first.
    Adopt(Lazy<AdoptArgs>),
    /// Tells a run something, which its next turn is shown
    Inject(Lazy<InjectArgs>),
    /// Wakes deferred runs before their time
    Wake(Lazy<WakeArgs>),
    /// Prints the log lines of a run
    Logs(Lazy<LogsArgs>),
    /// Prints the journal of a run, or of all runs of a session as it comes about
    Events(Lazy<EventsArgs>),
    /// Prints the conversation of a run: what was asked, said, called and answered
    Transcript(Lazy<TranscriptArgs>),
    /// Writes a run into a file, from which its steps can be executed again
    ///
    /// It has the journal, the policies and components that the run has had, and neither keys nor
    /// addresses of models.
    Export(Lazy<ExportArgs>),
    /// Executes the steps of an exported run again, and tells where they differ from the record
    ///
    /// Models, tools, people, time and chance answer as they did; network, files and other runs are
    /// not touched. The exit code is 11 if a step does something else.
    Replay(Lazy<ReplayArgs>),
    /// Lists open questions of runs
    Inbox(Lazy<InboxArgs>),
    /// Answers what a run asks
    ///
    /// When everything that it asks is answered, the run goes on. An answer that does not fit is
    /// refused and changes nothing. Without an answer it asks for each in a terminal, and elsewhere
    /// says what is asked.
    Answer(Lazy<AnswerArgs>),
    /// Lists and revokes consents to tool calls that hold in more than one run
    ///
    /// `taskrun answer RUN --accept` gives one with --for-session or --always, and --decline a
    /// refusal.
    Consents(Lazy<ConsentsArgs>),
    /// The outcomes of background runs, and who is told of them
    ///
    /// When a run that another one started ends and nobody waited for it, the nearest open run above
    /// it is told before its next turn, or else the next run of the conversation.
    #[command(subcommand)]
    Outbox(Lazy<OutboxCommand>),
    /// The sessions from which runs are started
    #[command(subcommand)]
    Session(Lazy<SessionCommand>),
    /// Shows and changes the facts that tools and people keep for agents
    ///
    /// With --session the facts of that session, which end with it, or else those of the tenant.
    #[command(subcommand)]
    Memory(Lazy<MemoryCommand>),
    /// Removes runs that ended long ago, with their journals
    ///
    /// Runs that open runs or conversations still need stay. With --session, only runs of that one.
    Gc(Lazy<GcArgs>),
    /// The agents of the policy
    #[command(subcommand)]
    Agent(Lazy<AgentCommand>),
    /// The tools of the policy
    #[command(subcommand)]
    Tool(Lazy<ToolCommand>),
    /// The models of the policy
    #[command(subcommand)]
    Model(Lazy<ModelCommand>),
    /// The policy: what it decides, and whether it is used where it is found
    #[command(subcommand)]
    Policy(Lazy<PolicyCommand>),
    /// Says what a component is and what it asks for
    Inspect(Lazy<InspectArgs>),
    /// Makes ./taskrun-demo and shows in a minute what this is
    ///
    /// The folder gets a policy, agents, tools and documents; then an agent answers a question,
    /// one is refused by its policy, and one is stopped by its deadline. Run again, it refreshes
    /// the folder: what was in a file that you changed is kept below before-demo there.
    Demo(Lazy<DemoArgs>),
    /// Checks this installation, the policy and the store
    Doctor(Lazy<DoctorArgs>),
    /// Executes the runs of a data directory; `run`, `wait` and `answer` start one by themselves
    ///
    /// It takes the runs of the agents of its policy, each as it was when the run was accepted.
    /// Ctrl-C and SIGTERM make it hand over what runs here, in at most ten seconds: another host
    /// continues it, or the next one. SIGHUP makes it look at its policy at once.
    Host(Lazy<HostArgs>),
    /// Prints a completion script for a shell
    Completions {
        /// Name of the shell.
        shell: clap_complete::Shell,
    },
    /// Compiles one component for the engine, which calls this itself.
    #[command(hide = true)]
    CompileWorker,
}
