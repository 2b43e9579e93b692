//! The command line of taskrun: a front door over [`taskrun_runtime`] that speaks to terminals and
//! to programs that read its output.

mod args;
mod budget;
mod commands;
mod context;
mod demo;
mod exit;
mod failure;
mod follow;
mod host;
mod host_log;
mod invocation;
mod lookup;
mod output;
mod paths;
mod place;
mod resolve;
mod setback;
mod shell;
mod signals;
mod terminal;
mod top;
mod tracing_setup;
mod trust;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use taskrun_journal::format::JournalFormat;
use taskrun_policy::Defaults;
use taskrun_runtime::{COMPONENT_BYTES_DEFAULT, StoreLayer};

pub use crate::args::Cli;
use crate::args::Command;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Outcome;
pub use crate::failure::{Failure, policy_failure};
use crate::invocation::Invocation;
use crate::output::stream;
pub use crate::output::{
    Beats, RunList, Surroundings, UsageBeneath, run_details, run_object, run_table, run_tree,
    versioned,
};

/// The parts in which a program that is built on this one may differ from it.
#[derive(Clone)]
pub struct Program {
    /// Its version.
    pub version: &'static str,
    /// The format in which it writes journals.
    pub format: JournalFormat,
    /// The settings of agents and tools of which a policy states none.
    pub defaults: Arc<Defaults>,
    /// Most bytes of a component that it loads.
    pub component_bytes_max: u64,
    /// A layer between the store and the controller of `taskrun host`, such as one that records or
    /// fails.
    pub store_layer: Option<StoreLayer>,
}

impl Default for Program {
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            format: JournalFormat::CURRENT,
            defaults: Arc::default(),
            component_bytes_max: COMPONENT_BYTES_DEFAULT,
            store_layer: None,
        }
    }
}

/// Reads the command line and does what it says.
#[must_use]
pub fn main() -> ExitCode {
    main_with(Program::default())
}

/// The same, as another program.
#[must_use]
pub fn main_with(program: Program) -> ExitCode {
    // Before anything is written.
    let survives = taskrun_runtime::survive_file_size_limit();
    let words: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::parse_words(words.clone()) {
        Ok(cli) => cli,
        Err(error) => return of_arguments(&error, &words),
    };
    if matches!(cli.command, Command::CompileWorker) {
        return taskrun_runtime::compile_worker_main();
    }
    let started = tracing_setup::start(&cli);
    if let Err(error) = survives {
        tracing::warn!(%error, "a file larger than this process may make will end it");
    }
    // Its stderr is a log for people.
    let in_background = matches!(&cli.command, Command::Host(args) if args.background);
    let invocation = Invocation::new(&words, &cli.globals);
    let mut context = Context::new(cli.globals, program).called_with(invocation);
    context.is_brief = commands::is_brief(&context, &cli.command);
    let outcome = started.and_then(|()| in_runtime(&context, cli.command));
    let (exit, failure) = match (outcome, context.printer.written()) {
        (Ok(Exit::Completed), Err(lost)) => (lost.exit, Some(lost)),
        (Ok(exit), written) => (exit, written.err()),
        (Err(failure), written) => {
            // Programs are told the one that decides.
            if let Err(lost) = written
                && lost.code != failure.code
                && !lost.is_silent()
            {
                context.printer.tell_failure(lost, false);
            }
            (failure.exit, Some(failure))
        }
    };
    if let Some(failure) = failure.filter(|failure| !failure.is_silent()) {
        context.printer.tell_failure(failure, !in_background);
    }
    host_log::flush();
    exit.into()
}

fn in_runtime(context: &Context, command: Command) -> Outcome {
    let runtime = match context.is_brief {
        true => taskrun_runtime::control_plane_of_one(),
        false => taskrun_runtime::control_plane(),
    };
    let runtime = runtime.map_err(|error| Failure::unexpected("no runtime").because(&error))?;
    let outcome = runtime.block_on(commands::execute(context, command));
    // A file operation or a compilation that hangs must not keep the program from ending.
    runtime.shutdown_background();
    outcome
}

/// The message of clap about these words, which programs get in the form of every other failure.
fn of_arguments(error: &clap::Error, words: &[OsString]) -> ExitCode {
    use std::io::{IsTerminal, stderr, stdout};
    let text = error.render().ansi().to_string();
    let printed = match error.use_stderr() {
        true => stream::say(text),
        false => stream::print(stream::styled(text, &stdout()).as_bytes()),
    };
    // Nobody listens: there is nowhere to say that.
    let say = |text: String| {
        stream::say(format!("{text}\n")).ok();
    };
    let for_programs = !stderr().is_terminal();
    if !error.use_stderr() {
        let failure = printed.err().map(|fault| Failure::of_output(&fault));
        let Some(failure) = failure.filter(|failure| !failure.is_silent()) else {
            return Exit::Completed.into();
        };
        say(failure.text());
        if for_programs {
            say(failure.json());
        }
        return failure.exit.into();
    }
    if for_programs {
        let is_bare = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        let message = match is_bare {
            true => "no command is given".to_owned(),
            false => first_paragraph(&error.to_string()),
        };
        let hint = format!("see `{} --help`", Cli::named_in(words));
        say(Failure::usage("usage", message).hint(hint).json());
    }
    Exit::Usage.into()
}

/// The first paragraph of a text of clap, with the arguments or values listed there, in one line.
fn first_paragraph(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let listed = lines.collect::<Vec<_>>().join(", ");
    format!("{first} {listed}").trim_end().to_owned()
}
