//! Where the program's own log goes, and in which form.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use anstream::{AutoStream, ColorChoice};
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::args::{Cli, Command, LogFormat};
use crate::failure::{Failure, Outcome};
use crate::host_log;
use crate::output::stream::BlockingStream;

/// The crates of the program whose lines are shown from the level that is asked for.
const OURS: [&str; 6] = [
    "taskrun",
    "taskrun_cli",
    "taskrun_runtime",
    "taskrun_engine",
    "taskrun_store",
    "taskrun_models",
];
/// The functions that guests call, each with a span of level `TRACE`.
const HOST_CALLS: &str = "taskrun_engine::bindings";
/// The module that tells what an edit of the policy changed: a line for each edit.
const POLICY_CHANGES: &str = "taskrun::controller::reload";

/// Most bytes of the log that are held while a screen has the terminal; further lines are left out.
const HELD_BYTES_MAX: usize = 64 << 10;
/// The lines that were logged since a screen took the terminal; `None` while none has it.
static HELD: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Holds the lines of the log from now on, if they would be written over a screen.
pub(crate) fn hold() {
    if io::stderr().is_terminal() {
        *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }
}

/// Writes the lines that were held, and holds no more. It never waits: a thread that panics calls it.
pub(crate) fn release() {
    let held = HELD.try_lock().ok().and_then(|mut held| held.take());
    if let Some(lines) = held {
        // Nobody listens: there is nowhere to say that.
        io::stderr().write_all(&lines).ok();
    }
}

/// Stderr, or what is held for it, or the log of a host. It is given each line at once.
struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if host_log::note(line) {
            return Ok(line.len());
        }
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            Some(lines) if lines.len() + line.len() > HELD_BYTES_MAX => Ok(line.len()),
            Some(lines) => lines.write(line),
            None => BlockingStream(io::stderr()).write(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// To stderr: by default warnings, of a host also the edits of its policy, and of one in the
/// background more. A host's lines have times. From `debug` on, a span says at its end how long it
/// took.
///
/// # Errors
/// If the filter that was asked for is none. A host in the background goes without the parts of it
/// that are none, as the command that starts it refuses them.
pub(crate) fn start(cli: &Cli) -> Outcome<()> {
    let is_host = matches!(cli.command, Command::Host(_));
    let in_background = matches!(&cli.command, Command::Host(args) if args.background);
    let (level, host_calls) = match (cli.globals.verbose, in_background) {
        (0, true) => ("info", "off"),
        (0, false) => ("warn", "off"),
        (1, _) => ("debug", "off"),
        (2.., _) => ("trace", "trace"),
    };
    let ours: Vec<String> = OURS.iter().map(|name| format!("{name}={level}")).collect();
    let mut own = format!("warn,{},{HOST_CALLS}={host_calls}", ours.join(","));
    if is_host && level == "warn" {
        // At `info` a terminal would have lines of single runs, too.
        own.push_str(&format!(",{POLICY_CHANGES}=info"));
    }
    let asked = cli.globals.log.as_deref();
    // Of other people's code, what is worth a warning.
    let builder = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let filter = match asked {
        Some(asked) if !in_background => builder.parse(asked).map_err(|error| {
            Failure::usage("usage", format!("--log {asked:?} is no filter: {error}")).hint(
                "write levels (off, error, warn, info, debug or trace), as in warn,taskrun=debug",
            )
        })?,
        Some(_) | None => builder.parse_lossy(asked.unwrap_or(&own)),
    };
    let spans = match cli.globals.verbose > 0 || asked.is_some() {
        true => FmtSpan::CLOSE,
        false => FmtSpan::NONE,
    };
    // What a guest gives to a function, and what it is given, is nobody's but the guest's.
    let without_values = filter_fn(|of| of.is_span() || !of.target().starts_with(HOST_CALLS));
    let filter = filter.and(without_values);
    // A log that somebody keeps in a file, or pipes on, is text alone.
    let is_colourful = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
    let layer = fmt::layer().with_writer(|| Log).with_span_events(spans);
    // Stderr may be gone: there is nowhere to say that, and it would be said by a panic.
    let layer = layer.with_ansi(is_colourful && !in_background).log_internal_errors(false);
    let layer = match (cli.globals.log_format, is_host) {
        (LogFormat::Json, _) => layer.json().with_filter(filter).boxed(),
        (LogFormat::Text, true) => layer.with_filter(filter).boxed(),
        (LogFormat::Text, false) => {
            layer.without_time().with_target(false).with_filter(filter).boxed()
        }
    };
    if is_host {
        let started = host_log::start();
        started.map_err(|error| Failure::unexpected("no thread for the log").because(&error))?;
    }
    // Setting it twice is the only way to fail.
    tracing_subscriber::registry().with(layer).try_init().ok();
    Ok(())
}
