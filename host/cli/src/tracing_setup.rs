//! Where the program's own log goes.

use anstream::{AutoStream, ColorChoice};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{EnvFilter, fmt};

use crate::args::{Cli, Command};

/// To stderr: by default warnings, of a host more. A host's lines have times.
pub(crate) fn start(cli: &Cli) {
    let is_host = matches!(cli.command, Command::Host(_));
    let in_background = matches!(&cli.command, Command::Host(args) if args.background);
    let level = match (cli.globals.verbose, in_background) {
        (0, true) => "info",
        (0, false) => "warn",
        (1, _) => "debug",
        (2.., _) => "trace",
    };
    // Of other people's code, what is worth a warning.
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::WARN.into())
        .parse_lossy(format!(
            "warn,taskrun={level},taskrun_cli={level},taskrun_runtime={level},taskrun_engine={level},taskrun_store={level},taskrun_models={level}"
        ));
    // A log that somebody keeps in a file, or pipes on, is text alone.
    let is_colourful = AutoStream::choice(&std::io::stderr()) != ColorChoice::Never;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let builder = builder.with_ansi(is_colourful && !in_background);
    // Setting it twice is the only way to fail.
    if is_host {
        builder.try_init().ok();
    } else {
        builder.without_time().with_target(false).try_init().ok();
    }
}
